"""Rounds of polling: the questions of a round, for whom they are asked, and the pause until the next one.

Whatever the number of those who wait, a round asks the queue once, and accounting once for what the queue does not
have. The connection is the poller's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from airflow_provider_soperator.client.job_tracker import LossLimits, TrackedJob
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig
from airflow_provider_soperator.slurm.errors import AccountingDisabled, SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs
from airflow_provider_soperator.slurm.requests.accounting import MOST_IDS
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.transports.transport_errors import TransportError

#: Seconds between two questions at the least.
SHORTEST = 1.0
#: Seconds between two tries of a cluster that does not answer, at the most.
LONGEST_SILENCE = 120.0

#: A job is asked for in intervals of so much of the time that it has been waited for.
_OF_AGE = 0.1
#: An answer that takes long costs slurmctld as much; the pause after it is so many times as long.
_OF_EFFORT = 10.0
#: What slurmctld counts when the queue is asked: squeue wants the partitions and the federation as well.
_CALLS = 3
#: Of what a rate limit lets through, so much is left to others of the same user.
_OF_LIMIT = 0.5


@dataclass
class Pace:
    """The seconds until the next question.

    It depends on the age of the youngest waiter, and not on how many there are or how much changes.

    >>> pace = Pace()
    >>> pace.after_answer(youngest=5, longest=10), pace.after_answer(youngest=45, longest=10)
    (1.0, 4.5)
    """

    shortest: float = SHORTEST
    _failures: int = 0

    def respect(self, config: ClusterConfig) -> None:
        """Stay well below a site's rate limit."""
        limit = config.rate_limit
        if limit and limit.refill:
            # Questions to accounting do not go to slurmctld.
            self.shortest = max(SHORTEST, _CALLS * limit.period.total_seconds() / limit.refill / _OF_LIMIT)
        else:
            self.shortest = SHORTEST

    def soonest(self, effort: float) -> float:
        """However urgent it is; ``effort`` is how long the last answer took."""
        return max(self.shortest, _OF_EFFORT * effort)

    def after_answer(self, *, youngest: float = 0.0, longest: float = 0.0, effort: float = 0.0) -> float:
        """``youngest`` is the age of the youngest waiter, ``longest`` what the users ask for."""
        self._failures = 0
        return max(self.soonest(effort), min(longest, _OF_AGE * youngest))

    def after_failure(self) -> float:
        """Longer with each failure, and spread, as many may wait for the same cluster to come back."""
        self._failures += 1
        longest = min(LONGEST_SILENCE, self.shortest * 2.0 ** min(self._failures, 10))
        return random.uniform(0.5, 1.0) * longest


class Waiter(Protocol):
    """A waiter for a job."""

    @property
    def job(self) -> JobId: ...

    @property
    def name(self) -> str:
        """The name that the job must have; a job of another name is another job. Empty: any."""

    @property
    def mine(self) -> bool:
        """True if it is a job of the user who asks; if all are, less is asked of slurmctld."""

    @property
    def told(self) -> JobStatus | None:
        """The status that it has been told last."""

    def tell(self, status: JobStatus) -> None: ...


W = TypeVar("W", bound=Waiter)


@dataclass(slots=True)
class _WatchedEntry(Generic[W]):
    """A job and those who wait for it, by their identity in the order in which they came."""

    job: TrackedJob
    waiters: dict[int, W] = field(default_factory=dict)


class WatchList(Generic[W]):
    """Jobs and those who wait for them."""

    def __init__(
        self,
        patience: LossLimits = LossLimits(),  # noqa: B008 - it cannot change
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience, self._clock = patience, clock
        #: By a job's number, and the name that it must have.
        self._entries: dict[tuple[int, str], _WatchedEntry[W]] = {}
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
        open_ones: list[_WatchedEntry[W]] = []
        settled: list[_WatchedEntry[W]] = []
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
    """The failure to tell of: its words may differ each time, but only another kind of failure is news."""
    return before if before is not None and type(before) is type(now) else now


def _ids(entries: Iterable[_WatchedEntry[W]]) -> tuple[JobId, ...]:
    return tuple(JobId(number) for number in dict.fromkeys(entry.job.number for entry in entries))


class _StatusQuery:
    """A waiter that wants the status now, and no more."""

    name = ""
    mine = False

    def __init__(self, job: JobId) -> None:
        self.job = job
        self.told: JobStatus | None = None

    def tell(self, status: JobStatus) -> None:
        self.told = status


def statuses(ids: Iterable[JobId]) -> Steps[dict[JobId, JobStatus]]:
    """The status of each job now; one that neither queue nor accounting knows is ``lost``."""
    book: WatchList[_StatusQuery] = WatchList(LossLimits(unknown=0, runaway=0))
    asked = [_StatusQuery(job) for job in dict.fromkeys(ids)]
    for one in asked:
        book.add(one)
    yield from book.round()
    return {one.job: one.told for one in asked if one.told}
