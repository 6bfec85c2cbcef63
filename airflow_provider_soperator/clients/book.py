"""Who waits for which job, and what is known of each: the part of watching that needs no connection.

Whatever the number of those who wait, a round asks the queue once, and accounting once for what the queue does not
have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from airflow_provider_soperator.clients.pace import Pace
from airflow_provider_soperator.clients.steps import Steps
from airflow_provider_soperator.clients.watched import Patience, WatchedJob
from airflow_provider_soperator.slurm.errors import AccountingDisabled, SlurmError
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.records import AccountingJob, Job
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs
from airflow_provider_soperator.slurm.requests.accounting import MOST_IDS
from airflow_provider_soperator.slurm.status import JobStatus
from airflow_provider_soperator.transports.errors import TransportError


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


@dataclass(slots=True)
class _Entry(Generic[W]):
    """A job and those who wait for it, by their identity in the order in which they came."""

    job: WatchedJob
    waiters: dict[int, W] = field(default_factory=dict)


class JobBook(Generic[W]):
    """Jobs and those who wait for them."""

    def __init__(
        self,
        patience: Patience = Patience(),  # noqa: B008 - it cannot change
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience, self._clock = patience, clock
        #: By a job's number, and the name that it must have.
        self._entries: dict[tuple[int, str], _Entry[W]] = {}
        self._not_mine = 0
        #: When the queue was asked last, and the seconds that its answer took.
        self.asked_at = self.effort = 0.0
        # Accounting has a pace of its own: the queue's news must not wait for a slurmdbd that does not answer.
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
            self._entries[place] = _Entry(WatchedJob(*place))
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
        """Ask for all jobs, note what is said, and tell each waiter what is news to it."""
        # Of who comes while the question is under way the answer says nothing.
        entries = list(self._entries.values())
        if not entries:
            return
        try:
            queue = yield from self._ask_queue(entries)
        except BaseException:
            for entry in entries:
                entry.job.could_not_ask()
            raise
        open_ones: list[_Entry[W]] = []
        settled: list[_Entry[W]] = []
        for entry in entries:
            entry.job.look_at_queue(queue.get(entry.job.number, ()))
            if entry.job.is_open:
                open_ones.append(entry)
            else:
                entry.job.judge(self.asked_at, self._patience)
                settled.append(entry)
        # Whatever becomes of the question to accounting, they need not wait for it.
        self._tell(settled)
        if open_ones:
            yield from self._ask_accounting(open_ones)
            self._tell(open_ones)

    def tell_all(self, trouble: str) -> None:
        """Tell all that the queue cannot be asked."""
        self._tell(list(self._entries.values()), trouble)

    def _ask_queue(self, entries: list[_Entry[W]]) -> Steps[dict[int, list[Job]]]:
        self.asked_at = self._clock()
        rows = yield ListJobs(ids=_ids(entries), mine=not self._not_mine)
        self.effort = self._clock() - self.asked_at
        queue: dict[int, list[Job]] = {}
        for row in rows:
            queue.setdefault(row.id.job, []).append(row)
        return queue

    def _ask_accounting(self, entries: list[_Entry[W]]) -> Steps[None]:
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

    def _tell(self, entries: Iterable[_Entry[W]], trouble: str = "") -> None:
        for entry in entries:
            parts = entry.job.parts()
            for waiter in list(entry.waiters.values()):
                status = entry.job.status_of(waiter.job, parts, trouble)
                if status and (waiter.told is None or waiter.told.news != status.news):
                    waiter.tell(status)
                    if status.is_over:
                        self.remove(waiter)


def first_of_kind(before: Exception | None, now: Exception) -> Exception:
    """The failure to tell of: its words may differ each time, but only another kind of failure is news."""
    return before if before is not None and type(before) is type(now) else now


def _ids(entries: Iterable[_Entry[W]]) -> tuple[JobId, ...]:
    return tuple(JobId(number) for number in dict.fromkeys(entry.job.number for entry in entries))
