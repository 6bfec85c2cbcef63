"""Orders to jobs that wait in the queue, given until all that are meant are as they were to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from airflow_provider_soperator.clients.steps import Steps
from airflow_provider_soperator.clients.work import tried
from airflow_provider_soperator.slurm.errors import InvalidStateTransition, JobFinished, SlurmError, UnknownJob
from airflow_provider_soperator.slurm.ids import JobId, JobIdSet
from airflow_provider_soperator.slurm.queue import QueueFilter
from airflow_provider_soperator.slurm.records import Job
from airflow_provider_soperator.slurm.requests import (
    HoldJobs,
    ListJobs,
    ReleaseJobs,
    Request,
    TopJobs,
    UpdateJob,
    batches,
)

#: Looks at the queue. A job may start or end between a look and an order, which then fails for it.
_LOOKS = 4
_MOVED_ON = (UnknownJob, JobFinished, InvalidStateTransition)


@dataclass(frozen=True)
class Ordered:
    """Jobs that an order has made what they were to be, those that were so before, and those it came too late for."""

    jobs: tuple[JobId, ...]
    already: tuple[JobId, ...]
    gone: tuple[JobId, ...] = ()


@dataclass(frozen=True)
class Meant:
    """Jobs by their ids or, without any, by what they have in common."""

    ids: tuple[JobId, ...] | None = None
    filter: QueueFilter = field(default_factory=QueueFilter)

    def request(self) -> ListJobs:
        return self.filter.request() if self.ids is None else ListJobs(ids=self.ids)

    def among(self, jobs: Iterable[Job]) -> list[Job]:
        """Those of them that have not ended."""
        there = [job for job in jobs if not job.state.is_finished]
        if self.ids is None:
            return self.filter.picked(there, datetime.now(timezone.utc))
        place = {job: number for number, job in enumerate(self.ids)}
        # In the order in which they are named.
        return sorted(there, key=lambda job: place.get(job.id, place.get(job.id.whole, len(place))))

    def gone_from(self, jobs: Sequence[Job]) -> tuple[JobId, ...]:
        """Those that are named and are none of these."""
        there = JobIdSet(job.id for job in jobs)
        return tuple(job for job in self.ids or () if not there.touches(job))


def hold(meant: Meant) -> Steps[Ordered]:
    """Keep jobs from starting; those that have started go on."""
    return _order(meant, lambda job: not job.is_wholly_held, lambda jobs: map(HoldJobs, batches(_ids(jobs))))


def release(meant: Meant) -> Steps[Ordered]:
    """Let jobs start that are held."""
    return _order(meant, lambda job: job.is_held, lambda jobs: map(ReleaseJobs, batches(_ids(jobs))))


def top(meant: Meant) -> Steps[Ordered]:
    """Put jobs before all others of their users, in the order in which they are named or stand in the queue."""
    return _order(meant, lambda job: not job.is_held, _tops)


def update(
    meant: Meant, changes: Mapping[str, str], is_so: Callable[[Job], bool], also_running: bool
) -> Steps[Ordered]:
    """Change fields of jobs; those of which ``is_so`` is true have them already."""

    def orders(jobs: Sequence[Job]) -> Iterable[Request[None]]:
        return (UpdateJob(job.id, changes) for job in jobs)

    return _order(meant, lambda job: not is_so(job), orders, also_running)


def _order(
    meant: Meant,
    is_due: Callable[[Job], bool],
    orders: Callable[[Sequence[Job]], Iterable[Request[None]]],
    also_running: bool = False,
) -> Steps[Ordered]:
    already: frozenset[JobId] | None = None
    failure: SlurmError | None = None
    for _ in range(_LOOKS):
        listed: tuple[Job, ...] = yield meant.request()
        found = [job for job in meant.among(listed) if also_running or job.state.is_pending]
        due = [job for job in found if is_due(job)]
        if already is None:
            already = frozenset(job.id for job in found if job not in due)
        try:
            if due:
                yield from tried(orders(due))
        except _MOVED_ON as error:
            failure = error
            continue
        ids = _ids(found)
        return Ordered(ids, tuple(job for job in ids if job in already), meant.gone_from(found))
    assert failure is not None
    raise failure


def _ids(jobs: Sequence[Job]) -> tuple[JobId, ...]:
    return tuple(job.id for job in jobs)


def _tops(jobs: Sequence[Job]) -> Iterable[Request[None]]:
    by_user: dict[str, dict[JobId, None]] = {}
    for job in jobs:
        by_user.setdefault(job.user, {})[job.id.whole] = None
    return (TopJobs(tuple(ids)) for ids in by_user.values())


def has_fields(job: Job, wanted: Mapping[str, str | int | timedelta]) -> bool:
    """Whether a job has these values in the fields of its record."""
    return all(getattr(job, name) == value for name, value in wanted.items())
