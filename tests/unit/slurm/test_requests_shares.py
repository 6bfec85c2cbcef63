"""Fair shares, as sshare prints them and as slurmrestd answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from airflow_provider_soperator.slurm.cluster_records import Share
from airflow_provider_soperator.slurm.errors import UnreadableAnswer
from airflow_provider_soperator.slurm.requests import CommandOutput, ListShares
from airflow_provider_soperator.slurm.rest.calls import RestAnswer, Site, steps

PRINTED = b"""\
root||||0.000000|1200||1.000000||
 root|root||1|0.500000|0|0.000000|0.000000|1.000000|inf
 research|||1|0.500000|1200|1.000000|1.000000||0.500000
  research|alice|main|parent|0.500000|1200|1.000000|1.000000|0.250000|
"""
READ = (
    Share(
        account="research", shares=1, normal_shares=0.5, usage=1200, normal_usage=1.0, effective_usage=1.0, level=0.5
    ),
    Share(
        account="research",
        user="alice",
        partition="main",
        normal_shares=0.5,
        usage=1200,
        normal_usage=1.0,
        effective_usage=1.0,
        fair_share=0.25,
    ),
    Share(account="root", normal_shares=0.0, usage=1200, effective_usage=1.0),
    Share(
        account="root",
        user="root",
        shares=1,
        normal_shares=0.5,
        normal_usage=0.0,
        effective_usage=0.0,
        fair_share=1.0,
        level=math.inf,
    ),
)


def set_(number: float | None) -> dict[str, Any]:
    infinite = number == math.inf
    return {"set": number is not None and not infinite, "infinite": infinite, "number": 0 if infinite else number or 0}


def row(name: str, parent: str, shares: int | None, **fields: Any) -> dict[str, Any]:
    kind = "USER" if fields.pop("is_user", False) else "ASSOCIATION"
    return {"name": name, "parent": parent, "partition": "", "shares": set_(shares), "type": [kind], **fields}


def use(usage: int, normal: float | None, effective: Any) -> dict[str, Any]:
    return {"usage": usage, "usage_normalized": set_(normal), "effective_usage": effective}


def rows(wrap: Any, none: Any, infinite: Any) -> list[dict[str, Any]]:
    def fair(factor: float, level: Any) -> dict[str, Any]:
        return {"fairshare": {"factor": wrap(factor), "level": level}}

    half = {"shares_normalized": set_(0.5)}
    root = {"shares_normalized": set_(2.3e-10)}
    alice = {"is_user": True, "partition": "main"}
    return [
        row("root", "", None, **root, **use(1200, None, wrap(1.0)), **fair(0.0, none)),
        row("root", "root", 1, is_user=True, **half, **use(0, 0.0, wrap(0.0)), **fair(1.0, infinite)),
        row("research", "root", 1, **half, **use(1200, 1.0, wrap(1.0)), **fair(0.0, wrap(0.5))),
        row("alice", "research", 0x7FFFFFFF, **alice, **half, **use(1200, 1.0, wrap(1.0)), **fair(0.25, infinite)),
    ]


def test_what_sshare_prints() -> None:
    assert ListShares().read(CommandOutput(0, PRINTED)) == READ


def test_without_accounting_there_are_none() -> None:
    assert ListShares().read(CommandOutput(0, b"")) == ()


def test_a_row_that_is_cut_short_is_not_guessed_at() -> None:
    with pytest.raises(UnreadableAnswer, match="expected 10 columns"):
        ListShares().read(CommandOutput(0, b"root|||1\n"))


@pytest.mark.parametrize(
    "said",
    [
        # v0.0.41, v0.0.42 and v0.0.45 have words of their own for nothing and for infinity.
        rows(float, 4294967294.0, math.inf),
        rows(set_, set_(None), set_(math.inf)),
        rows(set_, set_(None), set_(1.8446744073709552e19)),
    ],
    ids=["41", "42", "45"],
)
def test_what_slurmrestd_answers(said: list[dict[str, Any]]) -> None:
    asked = steps(ListShares(), Site(version=42))
    assert str(next(asked)) == "GET /slurm/shares"
    with pytest.raises(StopIteration) as end:
        asked.send(RestAnswer(200, {"shares": {"shares": said}, "errors": []}))
    assert end.value.value == READ
