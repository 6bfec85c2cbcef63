"""Rounds of polling: the requests of a round, and the waiters that it serves.

For any number of waiters, a round asks the queue once, and accounting once for jobs that the queue does not have.
The connection is the poller's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from airflow_provider_soperator.client.job_tracker import LossLimits, TrackedJob
from airflow_provider_soperator.client.poll_interval import Pace
from airflow_provider_soperator.slurm.errors import AccountingDisabled, SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs
from airflow_provider_soperator.slurm.requests.accounting import MOST_IDS
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.transports.transport_errors import TransportError


class Waiter:
    """A waiter for a job.

    A job with another name than ``name`` is another job. If the jobs of all waiters are the connection's own user's
    (``mine``), slurmctld has less to list.
    """

    def __init__(self, job: JobId, name: str = "", mine: bool = False) -> None:
        self.job, self.name, self.mine = job, name, mine
        #: The newest status.
        self.told: JobStatus | None = None

    def tell(self, status: JobStatus) -> None:
        self.told = status


W = TypeVar("W", bound=Waiter)


@dataclass(slots=True)
class _WatchedEntry(Generic[W]):
    """A job and its waiters by identity, in order of arrival."""

    job: TrackedJob
    waiters: dict[int, W] = field(default_factory=dict)


class WatchList(Generic[W]):
    """Jobs and their waiters."""

    def __init__(
        self,
        patience: LossLimits = LossLimits(),  # noqa: B008 - it cannot change
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience, self._clock = patience, clock
        #: By a job's number, and the name that it must have.
        self._entries: dict[tuple[int, str], _WatchedEntry[W]] = {}
        self._not_mine = 0
        #: When the queue was last asked, and the seconds that its answer took.
        self.asked_at = self.effort = 0.0
        # Accounting has its own pace: updates from the queue must not wait for a slurmdbd that does not answer.
        self._accounting = Pace()
        self._accounting_due = 0.0
        self._accounting_failure: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[W]:
        return (waiter for entry in list(self._entries.values()) for waiter in list(entry.waiters.values()))

    def add(self, waiter: W) -> None:
        place = (waiter.job.job, waiter.name)
        if place not in self._entries:
            self._entries[place] = _WatchedEntry(TrackedJob(*place))
        self._entries[place].waiters[id(waiter)] = waiter
        self._not_mine += not waiter.mine

    def remove(self, waiter: W) -> None:
        place = (waiter.job.job, waiter.name)
        entry = self._entries.get(place)
        if entry is None or entry.waiters.pop(id(waiter), None) is None:
            return
        self._not_mine -= not waiter.mine
        if not entry.waiters:
            del self._entries[place]

    def round(self) -> Steps[None]:
        """Ask for all jobs, and give each waiter its new status."""
        # Waiters that come while the request is under way are not in its answer.
        entries = list(self._entries.values())
        if not entries:
            return
        try:
            queue = yield from self._ask_queue(entries)
        except BaseException:
            for entry in entries:
                entry.job.could_not_ask()
            raise
        open_ones: list[_WatchedEntry[W]] = []
        settled: list[_WatchedEntry[W]] = []
        for entry in entries:
            entry.job.look_at_queue(queue.get(entry.job.number, ()))
            if entry.job.is_open:
                open_ones.append(entry)
            else:
                entry.job.judge(self.asked_at, self._patience)
                settled.append(entry)
        # They need not wait for accounting.
        self._tell(settled)
        if open_ones:
            yield from self._ask_accounting(open_ones)
            self._tell(open_ones)

    def tell_all(self, trouble: str) -> None:
        """Tell all waiters why the queue cannot be asked."""
        self._tell(list(self._entries.values()), trouble)

    def _ask_queue(self, entries: list[_WatchedEntry[W]]) -> Steps[dict[int, list[Job]]]:
        self.asked_at = self._clock()
        rows = yield ListJobs(ids=_ids(entries), mine=not self._not_mine)
        self.effort = self._clock() - self.asked_at
        queue: dict[int, list[Job]] = {}
        for row in rows:
            queue.setdefault(row.id.job, []).append(row)
        return queue

    def _ask_accounting(self, entries: list[_WatchedEntry[W]]) -> Steps[None]:
        asked_at = self._clock()
        if asked_at < self._accounting_due:
            for entry in entries:
                entry.job.trouble = str(self._accounting_failure or "")
            return
        past: dict[int, list[AccountingJob]] = {}
        ids = _ids(entries)
        try:
            for start in range(0, len(ids), MOST_IDS):
                for found in (yield Accounting(ids=ids[start : start + MOST_IDS])):
                    past.setdefault(found.id.job, []).append(found)
        except AccountingDisabled:
            for entry in entries:
                entry.job.do_without_accounting()
                entry.job.judge(asked_at, self._patience)
            return
        except (SlurmError, TransportError) as error:
            self._accounting_failure = first_of_kind(self._accounting_failure, error)
            self._accounting_due = self._clock() + self._accounting.after_failure()
            for entry in entries:
                entry.job.could_not_ask(str(self._accounting_failure))
            return
        self._accounting_failure = None
        self._accounting_due = asked_at + self._accounting.after_answer(effort=self._clock() - asked_at)
        for entry in entries:
            entry.job.look_at_accounting(past.get(entry.job.number, ()))
            entry.job.judge(self._clock(), self._patience)

    def _tell(self, entries: Iterable[_WatchedEntry[W]], trouble: str = "") -> None:
        for entry in entries:
            parts = entry.job.parts()
            for waiter in list(entry.waiters.values()):
                status = entry.job.status_of(waiter.job, parts, trouble)
                if status and (waiter.told is None or waiter.told.news != status.news):
                    waiter.tell(status)
                    if status.is_over:
                        self.remove(waiter)


def first_of_kind(before: Exception | None, now: Exception) -> Exception:
    """The failure to report: its text may differ each time, but only a new type of failure is an update."""
    return before if before is not None and type(before) is type(now) else now


def _ids(entries: Iterable[_WatchedEntry[W]]) -> tuple[JobId, ...]:
    return tuple(JobId(number) for number in dict.fromkeys(entry.job.number for entry in entries))


def statuses(ids: Iterable[JobId]) -> Steps[dict[JobId, JobStatus]]:
    """The current status of each job; a job in neither the queue nor accounting is ``lost``."""
    book: WatchList[Waiter] = WatchList(LossLimits(unknown=0, runaway=0))
    asked = [Waiter(job) for job in dict.fromkeys(ids)]
    for one in asked:
        book.add(one)
    yield from book.round()
    return {one.job: one.told for one in asked if one.told}
