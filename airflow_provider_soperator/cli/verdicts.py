"""Verdicts of the doctor: what was looked at, what is wrong with it, and the remedy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from async_timeout import timeout

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.check import PATIENCE, cause_and_remedy, sentences
from airflow_provider_soperator.slurm.errors import ControllerUnreachable


@dataclass(frozen=True)
class Verdict:
    """What was found of one subject. ``note``: it works, but some features do not."""

    subject: str
    said: str
    remedy: str = ""
    state: Literal["ok", "note", "wrong"] = "ok"

    def __str__(self) -> str:
        line = f"{self.state:<6}{self.subject:<13}{sentences(self.said)}"
        return f"{line}\n{'':19}> {sentences(self.remedy)}" if self.remedy else line


async def judged(subject: str, checks: AsyncIterator[Verdict], patience: float = PATIENCE) -> list[Verdict]:
    """All verdicts of some checks; an error is the last of them."""
    found: list[Verdict] = []
    try:
        async with timeout(patience):
            async for one in checks:
                found.append(one)
    except asyncio.TimeoutError:
        found.append(Verdict(subject, f"no answer within {patience:g} s", _SLOW.get(subject, _IS_IT_UP), "wrong"))
    except Exception as error:
        found.append(of_error(subject, error))
    return found


_IS_IT_UP = "see whether it is up and not overloaded, and the firewalls between"
_SLOW = {"slurmctld": ControllerUnreachable.remedy}


def of_error(subject: str, error: Exception) -> Verdict:
    """The verdict that an error means."""
    said, remedy = cause_and_remedy(error)
    if isinstance(error, ConnectionMistake):
        said, _, remedy = said.partition(": ")
        remedy = remedy or "correct this field of the connection"
    said = "\n".join((*getattr(error, "lines", ()), said))
    return Verdict(subject, said, remedy or "correct what the message names", "wrong")
