"""Figures of a shift: seconds of its parts, GPU-seconds that no target could use, and lost jobs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import datetime
from typing import Any

from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.node_choice import work_of
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Seconds, GPU-seconds and jobs; None for a part that did not happen."""

    #: From the first release to the last.
    release_seconds: float | None
    #: From then until the last unit was ready at its new target.
    arrive_seconds: float | None
    total_seconds: float
    #: Delay after the wanted time.
    late_seconds: float
    #: GPU-seconds that no target could use.
    limbo_gpu_seconds: float
    jobs_ended: int
    jobs_requeued: int
    jobs_killed: int
    lost_gpu_seconds: float
    #: GPUs bought outside the block: always 0, because every target is held to its reservation.
    bought_gpus: int = 0

    def describe(self) -> dict[str, Any]:
        return {name: round(value, 1) if isinstance(value, float) else value for name, value in asdict(self).items()}


class Meter:
    """Sums up idle GPU-seconds between two observations."""

    def __init__(self, gpus: Mapping[str, int]) -> None:
        self._gpus = gpus
        self._usable: int | None = None
        self._limbo = 0.0
        self._seen: datetime | None = None

    def see(self, world: World, now: datetime) -> None:
        usable = sum((seen.ready + seen.finishing) * self._gpus[name] for name, seen in world.holdings.items())
        # The highest number seen so far counts as usable.
        self._usable = max(usable, self._usable or 0)
        if self._seen is not None:
            self._limbo += (self._usable - usable) * (now - self._seen).total_seconds()
        self._seen = now

    def figures(self, marks: Mapping[str, float], wanted_at: datetime, losses: Sequence[JobLosses]) -> Figures:
        """The figures of a finished shift; ``marks`` are the times at which its parts were over."""
        total = sum(losses, JobLosses())
        return Figures(
            release_seconds=_between(marks, "leaving", "released"),
            arrive_seconds=_between(marks, "released", "ready"),
            total_seconds=_between(marks, "began", "ready") or 0.0,
            late_seconds=max(0.0, marks["ready"] - wanted_at.timestamp()),
            limbo_gpu_seconds=self._limbo,
            jobs_ended=total.ended,
            jobs_requeued=total.requeued,
            jobs_killed=total.killed,
            lost_gpu_seconds=total.lost_gpu_seconds,
        )


def _between(marks: Mapping[str, float], start: str, end: str) -> float | None:
    return marks[end] - marks[start] if start in marks and end in marks else None


@dataclass(frozen=True)
class JobLosses:
    """Jobs on nodes that a shift took, counted by their end.

    >>> JobLosses(ended=2) + JobLosses(killed=1, lost_gpu_seconds=80.0)
    JobLosses(ended=2, requeued=0, killed=1, lost_gpu_seconds=80.0)
    """

    #: Ended by themselves.
    ended: int = 0
    #: Back in the queue.
    requeued: int = 0
    killed: int = 0
    #: GPU-seconds of work of the requeued and killed jobs.
    lost_gpu_seconds: float = 0.0

    def __add__(self, other: JobLosses) -> JobLosses:
        return JobLosses(*map(operator.add, astuple(self), astuple(other)))


class DisplacedJobs:
    """Remembers the jobs on nodes that leave, and counts at the end how they ended."""

    def __init__(self) -> None:
        self._seen: dict[JobId, Job] = {}
        #: When jobs were ended on them for the first time.
        self.forced: datetime | None = None

    def see(self, jobs: Iterable[Job], staying: Iterable[Job] = ()) -> None:
        """Note the jobs on nodes that leave, and that others run on nodes that stay."""
        for job in staying:
            self._seen.pop(job.id, None)
        for job in jobs:
            self._seen.setdefault(job.id, job)

    @property
    def jobs(self) -> tuple[JobId, ...]:
        return tuple(self._seen)

    def losses(self, found: Mapping[JobId, JobStatus]) -> JobLosses:
        """Count the jobs by their present states."""
        total = JobLosses()
        for job, before in self._seen.items():
            status = found.get(job)
            if status is None or not status.parts:
                continue
            restarts = max(part.restarts for part in status.parts)
            if restarts > before.restarts:
                total += JobLosses(requeued=1, lost_gpu_seconds=self._lost(before))
            elif status.is_over and not status.succeeded and self._was_forced(status):
                total += JobLosses(killed=1, lost_gpu_seconds=self._lost(before))
            elif status.is_over:
                total += JobLosses(ended=1)
        return total

    def _was_forced(self, status: JobStatus) -> bool:
        # Slurm knows whole seconds only.
        forced = self.forced and self.forced.replace(microsecond=0)
        return bool(forced and any(part.ends and part.ends >= forced for part in status.parts))

    def _lost(self, job: Job) -> float:
        return work_of(job, self.forced) if self.forced else 0.0
