"""Who waits for which job, and what is known of each: the part of watching that needs neither clock nor connection.

Whatever the number of those who wait, a round asks the queue once, and accounting once for what the queue does not
have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from airflow_provider_soperator.clients.steps import Steps
from airflow_provider_soperator.clients.watched import Patience, WatchedJob
from airflow_provider_soperator.slurm.errors import AccountingDisabled, SlurmError
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.records import AccountingJob, Job
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs
from airflow_provider_soperator.slurm.requests.accounting import MOST_IDS
from airflow_provider_soperator.slurm.status import JobStatus
from airflow_provider_soperator.transports.errors import CommandTimedOut, NotSupported

#: A job's number, and the name that it must have.
_Place = tuple[int, str]


class Waiter(Protocol):
    """Somebody who is told of a job."""

    @property
    def job(self) -> JobId: ...

    @property
    def name(self) -> str:
        """The name that the job must have; a job of another name is another job. Empty: any."""

    @property
    def mine(self) -> bool:
        """Whether it is a job of the user who asks; if all are, less is asked of slurmctld."""

    @property
    def told(self) -> JobStatus | None:
        """What it has been told last."""

    def tell(self, status: JobStatus) -> None: ...


W = TypeVar("W", bound=Waiter)


class JobBook(Generic[W]):
    """Jobs and those who wait for them."""

    def __init__(self, patience: Patience = Patience()) -> None:  # noqa: B008 - it cannot change
        self._patience = patience
        self._jobs: dict[_Place, WatchedJob] = {}
        # By identity, in the order in which they came.
        self._waiters: dict[_Place, dict[int, W]] = {}
        self._not_mine = 0
        #: When the round before was, if it got an answer.
        self._before: float | None = None

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __iter__(self) -> Iterator[W]:
        return (waiter for waiters in list(self._waiters.values()) for waiter in list(waiters.values()))

    def add(self, waiter: W) -> None:
        place = (waiter.job.job, waiter.name)
        self._jobs.setdefault(place, WatchedJob(*place))
        self._waiters.setdefault(place, {})[id(waiter)] = waiter
        self._not_mine += not waiter.mine

    def remove(self, waiter: W) -> None:
        place = (waiter.job.job, waiter.name)
        if self._waiters.get(place, {}).pop(id(waiter), None) is None:
            return
        self._not_mine -= not waiter.mine
        if not self._waiters[place]:
            del self._waiters[place], self._jobs[place]

    def round(self, now: float) -> Steps[None]:
        """Ask for all jobs, and note what is said."""
        # Of who comes while the question is under way the answer says nothing.
        jobs = list(self._jobs.values())
        if not jobs:
            return
        before, self._before = self._before, None
        queue: dict[int, list[Job]] = {}
        for row in (yield ListJobs(ids=_ids(jobs), mine=not self._not_mine)):
            queue.setdefault(row.id.job, []).append(row)
        for job in jobs:
            job.look_at_queue(queue.get(job.number, ()))
        open_ones = [job for job in jobs if job.is_open]
        past: dict[int, list[AccountingJob]] = {}
        trouble = ""
        ids = _ids(open_ones)
        try:
            for start in range(0, len(ids), MOST_IDS):
                for found in (yield Accounting(ids=ids[start : start + MOST_IDS])):
                    past.setdefault(found.id.job, []).append(found)
        except AccountingDisabled:
            # Then the queue is all there is.
            pass
        except (SlurmError, NotSupported, CommandTimedOut) as error:
            # Those that the queue still has can be told of all the same.
            trouble = str(error)
        for job in open_ones:
            if trouble:
                job.trouble = trouble
            else:
                job.look_at_accounting(past.get(job.number, ()))
        for job in jobs:
            job.judge(0.0 if before is None else now - before, self._patience)
        self._before = now

    def tell(self, trouble: str = "") -> None:
        """Tell each waiter what is news to it."""
        for place, job in list(self._jobs.items()):
            parts = job.parts()
            for waiter in list(self._waiters[place].values()):
                status = job.status_of(waiter.job, parts, trouble)
                if status and (waiter.told is None or waiter.told.news != status.news):
                    waiter.tell(status)


def _ids(jobs: list[WatchedJob]) -> tuple[JobId, ...]:
    return tuple(JobId(number) for number in dict.fromkeys(job.number for job in jobs))
