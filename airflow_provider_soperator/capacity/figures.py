"""Figures of a shift: seconds of its parts, GPU-seconds that no target could use, and lost jobs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from airflow_provider_soperator.capacity.holdings import Allocation, World
from airflow_provider_soperator.capacity.node_choice import work_of
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus


def in_words(report: Mapping[str, Any]) -> str:
    """The report of a shift, as lines of its log, without figures that are unknown.

    >>> hours = {"gpu_hours": {"training": 16.0}, "idle_gpu_hours": 0.5, "limbo_gpu_hours": 0.25}
    >>> print(in_words(hours | {"seconds": 723.0, "jobs": {"ended": 2, "killed": 1}, "bought_gpus": 0}))
    It took 0:12:03
    GPU-hours: training 16.0, idle 0.5, limbo 0.25
    Jobs on nodes that left: 2 ended, 1 killed
    GPUs bought beside the block: 0
    """
    named = {name.removesuffix("_gpu_hours"): hours for name, hours in report.items() if name.endswith("_gpu_hours")}
    jobs = {name: number for name, number in report["jobs"].items() if number is not None}
    parts = {
        "GPU-hours": [f"{name} {hours}" for name, hours in (report["gpu_hours"] | named).items() if hours is not None],
        "Jobs on nodes that left": [f"{number} {name}" for name, number in jobs.items()],
        "GPUs bought beside the block": ["unknown" if report["bought_gpus"] is None else str(report["bought_gpus"])],
    }
    took = timedelta(seconds=round(report["seconds"]))
    return "\n".join([f"It took {took}", *(f"{name}: {', '.join(said)}" for name, said in parts.items() if said)])


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
    #: GPU-seconds of units that were idle, and reserved for the shift.
    idle_gpu_seconds: float
    #: GPU-seconds that were free in the block, while a target was to have them.
    unused_gpu_seconds: float
    #: GPU-seconds that each target could use.
    target_gpu_seconds: dict[str, float]
    jobs_ended: int | None
    jobs_requeued: int | None
    jobs_killed: int | None
    lost_gpu_seconds: float | None
    #: GPUs of the targets' machines that are not of the block; None if that is unknown.
    bought_gpus: int | None

    def describe(self) -> dict[str, Any]:
        targets = {name: round(value, 1) for name, value in self.target_gpu_seconds.items()}
        said = {name: round(value, 1) if isinstance(value, float) else value for name, value in asdict(self).items()}
        return said | {"target_gpu_seconds": targets}

    def report(self) -> dict[str, Any]:
        """GPU-hours, jobs and bought GPUs, as JSON for an XCom."""
        named = ("idle", "limbo", "unused", "lost")
        seconds = self.target_gpu_seconds | {name: getattr(self, f"{name}_gpu_seconds") for name in named}
        hours = {name: None if value is None else round(value / 3600, 2) for name, value in seconds.items()}
        jobs = {name: getattr(self, f"jobs_{name}") for name in ("ended", "requeued", "killed")}
        return {
            "seconds": round(self.total_seconds, 1),
            "gpu_hours": {name: hours[name] for name in self.target_gpu_seconds},
            **{f"{name}_gpu_hours": hours[name] for name in named},
            "bought_gpus": self.bought_gpus,
            "jobs": jobs,
        }


class Meter:
    """Sums up GPU-seconds between two observations.

    :param gpus: GPUs of one unit of each target
    :param sums: what another process has summed up so far, to continue from
    """

    def __init__(self, gpus: Mapping[str, int], sums: Mapping[str, float] | None = None) -> None:
        self._gpus = gpus
        #: Plain values. A colon is before each name of a target.
        self.sums: dict[str, float] = dict(sums or {})

    def see(self, world: World, now: datetime, wished: Allocation = MappingProxyType({})) -> None:
        """Note what has been since the last observation; ``wished``: the units that each target is to have by now."""
        seen, gpus = world.holdings, self._gpus
        had = {f":{name}": (one.ready + one.finishing) * gpus[name] for name, one in seen.items()}
        usable = sum(had.values())
        lacking = sum(max(0, units - seen[name].held) * gpus[name] for name, units in wished.items())
        # The highest number seen so far counts as usable.
        most = max(usable, self.sums.get("usable", 0))
        rates = {
            **had,
            "limbo": most - usable,
            "idle": sum(one.idle * gpus[name] for name, one in seen.items()),
            "unused": min(world.block.free or 0, lacking),
        }
        at = now.timestamp()
        passed = at - self.sums.get("at", at)
        self.sums |= {name: self.sums.get(name, 0.0) + rate * passed for name, rate in rates.items()}
        self.sums |= {"usable": most, "at": at}

    def figures(
        self,
        marks: Mapping[str, float],
        wanted_at: datetime,
        now: datetime,
        losses: Sequence[JobLosses] | None = None,
        bought_gpus: int | None = None,
    ) -> Figures:
        """The figures of a shift until now; ``marks`` are the times at which its parts were over."""
        total = None if losses is None else sum(losses, JobLosses())
        marks = {"ended": marks.get("ready", now.timestamp()), **marks}
        return Figures(
            release_seconds=_between(marks, "leaving", "released"),
            arrive_seconds=_between(marks, "released", "ready"),
            total_seconds=_between(marks, "began", "ended") or 0.0,
            late_seconds=max(0.0, marks["ended"] - wanted_at.timestamp()),
            limbo_gpu_seconds=self.sums.get("limbo", 0.0),
            idle_gpu_seconds=self.sums.get("idle", 0.0),
            unused_gpu_seconds=self.sums.get("unused", 0.0),
            target_gpu_seconds={name: self.sums.get(f":{name}", 0.0) for name in self._gpus},
            jobs_ended=total.ended if total else None,
            jobs_requeued=total.requeued if total else None,
            jobs_killed=total.killed if total else None,
            lost_gpu_seconds=total.lost_gpu_seconds if total else None,
            bought_gpus=bought_gpus,
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
