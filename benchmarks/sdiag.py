"""What slurmctld has been asked, as it counts that itself."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from airflow_provider_soperator.slurm.requests import Command, CommandOutput, Request

_COUNT = re.compile(r"^\s+(\S+)\s+\(\s*\d+\)\s+count:(\d+)", re.MULTILINE)


def counts(sdiag: str) -> Counter[str]:
    """The number of RPCs by their types and, beside these, by the users that sent them."""
    return Counter({name: int(count) for name, count in _COUNT.findall(sdiag.partition("Pending RPC statistics")[0])})


@dataclass(frozen=True)
class CountRpcs(Request[Counter[str]]):
    """Ask for these numbers over a client."""

    def command(self) -> Command:
        return Command(("sdiag",))

    def read(self, answer: CommandOutput) -> Counter[str]:
        return counts(self.check(answer).text)
