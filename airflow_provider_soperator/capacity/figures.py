"""Figures of a shift: seconds by its parts, GPU-seconds that no side could use, and jobs that were lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.node_choice import work_of
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Seconds, GPU-seconds and jobs. A part that did not happen has no time."""

    #: From the first node's leave to the last one's.
    release_seconds: float | None
    #: From then until the last unit was ready where it was wanted.
    arrive_seconds: float | None
    total_seconds: float
    #: How much later than wanted it was.
    late_seconds: float
    #: GPU-seconds that neither side could use.
    limbo_gpu_seconds: float
    jobs_ended: int
    jobs_requeued: int
    jobs_killed: int
    lost_gpu_seconds: float
    #: GPUs beside the block. Every target is held to its reservation, so there are none.
    bought_gpus: int = 0

    def describe(self) -> dict[str, Any]:
        return {name: round(value, 1) if isinstance(value, float) else value for name, value in asdict(self).items()}


class Meter:
    """Adds up what passes between two looks at the world."""

    def __init__(self, gpus: Mapping[str, int]) -> None:
        self._gpus = gpus
        self._usable: int | None = None
        self._limbo = 0.0
        self._seen: datetime | None = None

    def see(self, world: World, now: datetime) -> None:
        usable = sum((seen.ready + seen.finishing) * self._gpus[name] for name, seen in world.holdings.items())
        # What was usable at the beginning, or has become so since, could be.
        self._usable = max(usable, self._usable or 0)
        if self._seen is not None:
            self._limbo += (self._usable - usable) * (now - self._seen).total_seconds()
        self._seen = now

    def figures(self, marks: Mapping[str, float], wanted_at: datetime, losses: Sequence[JobLosses]) -> Figures:
        """All of it, once the shift is over; ``marks`` say when which part was."""
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
    """Jobs that were on nodes when these were taken, by what became of them.

    >>> JobLosses(ended=2) + JobLosses(killed=1, lost_gpu_seconds=80.0)
    JobLosses(ended=2, requeued=0, killed=1, lost_gpu_seconds=80.0)
    """

    #: Those that ended by themselves, as they would have done anyway.
    ended: int = 0
    #: Those that wait in the queue again.
    requeued: int = 0
    killed: int = 0
    #: GPU-seconds that those had worked which were requeued or killed.
    lost_gpu_seconds: float = 0.0

    def __add__(self, other: JobLosses) -> JobLosses:
        return JobLosses(
            self.ended + other.ended,
            self.requeued + other.requeued,
            self.killed + other.killed,
            self.lost_gpu_seconds + other.lost_gpu_seconds,
        )


class DisplacedJobs:
    """Remembers the jobs on nodes that are to go, and tells them apart when it is over."""

    def __init__(self) -> None:
        self._seen: dict[JobId, Job] = {}
        #: When nodes were powered down under their jobs.
        self.forced: datetime | None = None

    def see(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._seen.setdefault(job.id, job)

    @property
    def jobs(self) -> tuple[JobId, ...]:
        return tuple(self._seen)

    def losses(self, found: Mapping[JobId, JobStatus]) -> JobLosses:
        """Count what became of them, by their states now."""
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
