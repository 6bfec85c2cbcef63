"""Questions about who is to have how much of the cluster, and who has had it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_soperator.slurm.accounts import Share
from airflow_provider_soperator.slurm.errors import UnreadableAnswer
from airflow_provider_soperator.slurm.requests.base import Command, CommandOutput, Request, number

#: Under the names that 22.05 and 26.05 share.
_COLUMNS = (
    "Account",
    "User",
    "Partition",
    "RawShares",
    "NormShares",
    "RawUsage",
    "NormUsage",
    "EffectvUsage",
    "FairShare",
    "LevelFS",
)


@dataclass(frozen=True)
class ListShares(Request[tuple[Share, ...]]):
    """The shares of all accounts and users, by their names; none where the cluster keeps no accounting.

    >>> ListShares().command().argv[:3]
    ('sshare', '--all', '--parsable2')
    """

    def command(self) -> Command:
        return Command(("sshare", "--all", "--parsable2", "--noheader", f"--format={','.join(_COLUMNS)}"))

    def read(self, answer: CommandOutput) -> tuple[Share, ...]:
        return by_name(map(_share, self.check(answer).text.splitlines()))


def by_name(shares: Iterable[Share]) -> tuple[Share, ...]:
    """In the same order whoever was asked: ``sshare`` has them as a tree, slurmrestd as they come."""
    return tuple(sorted(shares, key=lambda share: (share.account, share.user, share.partition)))


def _share(line: str) -> Share:
    said = dict(zip(_COLUMNS, line.split("|"), strict=False))
    if len(said) < len(_COLUMNS):
        raise UnreadableAnswer(f"no row of {len(_COLUMNS)} columns: {line[:200]!r}", "sshare")
    return Share(
        # Set in by a blank for each account above it.
        account=said["Account"].strip(),
        user=said["User"],
        partition=said["Partition"],
        # Of those that share with their parent it says so in place of a number.
        shares=int(said["RawShares"]) if said["RawShares"].isdecimal() else None,
        normal_shares=_part(said["NormShares"]),
        usage=number(said["RawUsage"]),
        normal_usage=_part(said["NormUsage"]),
        effective_usage=_part(said["EffectvUsage"]),
        fair_share=_part(said["FairShare"]) if said["User"] else None,
        level=_part(said["LevelFS"]),
    )


def _part(text: str) -> float | None:
    return None if not text else math.inf if text == "inf" else float(text)
