"""Reasons for drains that are meant for Soperator, and others that it is to leave alone."""

from __future__ import annotations

import re

from airflow_provider_soperator.slurm.node_conditions import DrainReason

#: Soperator makes a word of the name before the first ": ", and has an error in its log, and no more, if it cannot.
_FOR_SOPERATOR = re.compile(r"\[(?:node|hardware)_problem\] (?:(?!: ).)*[A-Za-z](?:(?!: ).)*: \S.*", re.DOTALL)
_PREFIX = re.compile(r"\[\w+\]")


def drain_reason(owner: str, why: str) -> str:
    """A reason of the provider's own, unless it is written for Soperator.

    >>> drain_reason("nightly", "gpu-checks failed")
    'airflow:nightly: gpu-checks failed'
    >>> drain_reason("nightly", "[hardware_problem] gpu-checks: failed")
    '[hardware_problem] gpu-checks: failed'
    """
    refuse_unread(why)
    return why if _PREFIX.match(why) else str(DrainReason(owner, why))


def refuse_unread(why: str) -> None:
    """Raise ``ValueError`` for what looks as if Soperator would act on it, and is not read by it.

    >>> refuse_unread("[node_problem] broken")
    Traceback (most recent call last):
    ValueError: Soperator does not act on '[node_problem] broken': write it as '[node_problem] name: what is wrong', \
or without brackets if it is to be left alone
    """
    if _PREFIX.match(why) and not _FOR_SOPERATOR.fullmatch(why):
        raise ValueError(
            f"Soperator does not act on {why!r}: write it as '[node_problem] name: what is wrong', or without "
            "brackets if it is to be left alone"
        )
