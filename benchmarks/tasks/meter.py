"""What an Airflow and the sandbox beside it have cost so far."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields

import psutil

from benchmarks.sdiag import counts
from sandbox.lifecycle import Sandbox
from sandbox.settings import USER


@dataclass(frozen=True)
class Reading:
    """Counters at one moment, or what they have gained between two."""

    seconds: float
    #: Processor time of Airflow and the sandbox, also of those of their processes that have ended.
    cpu: float
    triggerer_cpu: float
    #: SSH connections that the login node has accepted.
    connections: int
    #: What slurmctld was asked in the name of the user who submits all jobs.
    rpcs: int

    @property
    def cores(self) -> float:
        return self.cpu / self.seconds

    @property
    def rpcs_per_minute(self) -> float:
        return 60 * self.rpcs / self.seconds

    def __add__(self, other: Reading) -> Reading:
        return Reading(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __sub__(self, before: Reading) -> Reading:
        return Reading(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(self)))


class Meter:
    """Reads the counters of one sandbox with an Airflow that runs beside it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def read(self) -> Reading:
        log = (self._sandbox.paths.logs / "sshd.log").read_text()
        return Reading(
            time.monotonic(),
            _cpu(self._all()),
            _cpu(self._triggerer()),
            log.count(f"Accepted publickey for {USER} "),
            self._rpcs()[USER],
        )

    def submitted(self) -> int:
        """Jobs that were ever submitted."""
        return self._rpcs()["REQUEST_SUBMIT_BATCH_JOB"]

    def triggerer_memory(self) -> int:
        """In bytes."""
        total = 0
        for process in self._triggerer():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def _triggerer(self) -> list[psutil.Process]:
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                # The first is the one that the others descend from.
                if process.cmdline()[-1:] == ["triggerer"]:
                    return [process, *process.children(recursive=True)]
        raise AssertionError("the triggerer has ended")

    def _all(self) -> list[psutil.Process]:
        outer = self._sandbox.init.outer()
        assert outer is not None, "the sandbox has ended"
        return [outer, *outer.children(recursive=True)]

    def _rpcs(self) -> Counter[str]:
        return counts(self._sandbox.init.run("slurmctld", ["sdiag"]).stdout)


def _cpu(processes: Iterable[psutil.Process]) -> float:
    """With that of children that have ended, which their parents have."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
