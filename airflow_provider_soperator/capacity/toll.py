"""What a shift has cost those whose jobs were on the nodes that it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_soperator.capacity.selection import work_of
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus


@dataclass(frozen=True)
class Toll:
    """Jobs that were on nodes as these were taken, by what became of them.

    >>> Toll(ended=2) + Toll(killed=1, lost_gpu_seconds=80.0)
    Toll(ended=2, requeued=0, killed=1, lost_gpu_seconds=80.0)
    """

    #: Those that ended by themselves, as they would have done anyway.
    ended: int = 0
    #: Those that wait in the queue again.
    requeued: int = 0
    killed: int = 0
    #: GPU-seconds that those had worked which were requeued or killed.
    lost_gpu_seconds: float = 0.0

    def __add__(self, other: Toll) -> Toll:
        return Toll(
            self.ended + other.ended,
            self.requeued + other.requeued,
            self.killed + other.killed,
            self.lost_gpu_seconds + other.lost_gpu_seconds,
        )


class Witness:
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

    def toll(self, found: Mapping[JobId, JobStatus]) -> Toll:
        """What became of them, from where they stand now."""
        total = Toll()
        for job, before in self._seen.items():
            status = found.get(job)
            if status is None or not status.parts:
                continue
            restarts = max(part.restarts for part in status.parts)
            if restarts > before.restarts:
                total += Toll(requeued=1, lost_gpu_seconds=self._lost(before))
            elif status.is_over and not status.succeeded and self._was_forced(status):
                total += Toll(killed=1, lost_gpu_seconds=self._lost(before))
            elif status.is_over:
                total += Toll(ended=1)
        return total

    def _was_forced(self, status: JobStatus) -> bool:
        # Slurm knows whole seconds only.
        forced = self.forced and self.forced.replace(microsecond=0)
        return bool(forced and any(part.ends and part.ends >= forced for part in status.parts))

    def _lost(self, job: Job) -> float:
        return work_of(job, self.forced) if self.forced else 0.0
