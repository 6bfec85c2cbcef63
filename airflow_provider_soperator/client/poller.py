"""The poller: one for all waiters for jobs of a cluster in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.client.job_tracker import LossLimits, TrackedJob
from airflow_provider_soperator.client.output import Ask
from airflow_provider_soperator.client.pace import OF_MEMORY, Effort, Pace, first_of_kind
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig
from airflow_provider_soperator.slurm.errors import AccountingDisabled, InvalidRequest, RateLimited
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs, ShowConfig
from airflow_provider_soperator.slurm.requests.accounting import MOST_IDS
from airflow_provider_soperator.slurm.requests.commands import Steps, run_steps_async
from airflow_provider_soperator.slurm.requests.submission import CancelWithdrawn
from airflow_provider_soperator.transports.transport_errors import NotSupported, TransportError

_log = logging.getLogger(__name__)

#: Seconds between two polls of a job that has been watched for long.
POLL_INTERVAL = 10.0
#: Seconds that the first watch waits for others.
GATHERING = 0.05
#: Seconds for which a round waits for accounting. An answer that takes longer is used when it comes.
PROMPT = 2.0


class Waiter:
    """A waiter for a job; see ``AsyncSlurmClient.watch`` for the arguments."""

    def __init__(self, job: JobId, name: str = "", mine: bool = False, indices: Iterable[int] = ()) -> None:
        self.job, self.name, self.mine, self.indices = job, name, mine, frozenset(indices)
        #: The newest status.
        self.told: JobStatus | None = None

    def tell(self, status: JobStatus) -> None:
        self.told = status


W = TypeVar("W", bound=Waiter)


class WatchList(Generic[W]):
    """Jobs and their waiters."""

    def __init__(
        self,
        patience: LossLimits = LossLimits(),  # noqa: B008 - it cannot change
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self._patience, self._clock = patience, clock
        #: By a job's number, and the name that it must have.
        self._jobs: dict[tuple[int, str], TrackedJob] = {}
        self._not_mine = 0
        #: When the queue was last asked, and what its answers cost.
        self.asked_at = self.effort = 0.0
        self._effort, self._accounting_effort = Effort(), Effort()
        # Accounting has its own pace: updates from the queue must not wait for a slurmdbd that does not answer.
        self._accounting = Pace()
        self._accounting_due = 0.0
        self._accounting_failure: Exception | None = None
        #: True once accounting has answered.
        self.has_accounting = False
        #: Why the queue could not be asked the last time.
        self._trouble = ""

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __iter__(self) -> Iterator[W]:
        return (waiter for job in list(self._jobs.values()) for waiter in list(job.waiters.values()))

    def add(self, waiter: W) -> None:
        place = (waiter.job.job, waiter.name)
        job = self._jobs.setdefault(place, TrackedJob(*place))
        job.waiters[id(waiter)] = waiter
        job.expect(waiter.job, waiter.indices)
        self._not_mine += not waiter.mine

    def respect(self, config: ClusterConfig) -> None:
        """Know for how long the queue has jobs that have ended."""
        self._patience = replace(self._patience, remembered=config.min_job_age.total_seconds())

    def remove(self, waiter: W) -> None:
        place = (waiter.job.job, waiter.name)
        job = self._jobs.get(place)
        if job is None or job.waiters.pop(id(waiter), None) is None:
            return
        self._not_mine -= not waiter.mine
        if not job.waiters:
            del self._jobs[place]

    def round(self) -> Steps[None]:
        """Ask for all jobs, and give each waiter its new status."""
        yield from self.ask_accounting((yield from self.ask_queue()))

    def ask_queue(self) -> Steps[list[TrackedJob]]:
        """Ask the queue, and tell of jobs that it knows enough of; returns those that accounting may know more of."""
        # Waiters that come while the request is under way are not in its answer.
        jobs = list(self._jobs.values())
        if not jobs:
            return []
        try:
            queue = yield from self._queue_of(jobs)
        except BaseException:
            for job in jobs:
                job.could_not_ask()
            raise
        self._trouble = ""
        open_ones: list[TrackedJob] = []
        settled: list[TrackedJob] = []
        for job in jobs:
            job.look_at_queue(queue.get(job.number, ()))
            (open_ones if job.is_open else settled).append(job)
        for job in settled:
            job.judge(self.asked_at, self._patience)
        # They need not wait for accounting.
        self._tell(settled)
        return open_ones

    def ask_accounting(self, jobs: list[TrackedJob]) -> Steps[None]:
        """Ask accounting for these jobs, if it is due, and give waiters their new status."""
        if jobs and self._clock() >= self._accounting_due:
            yield from self._look_at_accounting(jobs)
        self.go_on(jobs)

    def go_on(self, jobs: Iterable[TrackedJob]) -> None:
        """Tell of jobs that accounting may know more of; a failure of it lasts until its next answer."""
        for job in jobs:
            # An answer may come while the queue cannot be asked.
            self._tell([job], self._trouble or (str(self._accounting_failure or "") if job.is_open else ""))

    def tell_all(self, trouble: str) -> None:
        """Tell all waiters why the queue cannot be asked."""
        self._trouble = trouble
        self._tell(list(self._jobs.values()), trouble)

    def _queue_of(self, jobs: list[TrackedJob]) -> Steps[dict[int, list[Job]]]:
        self.asked_at = self._clock()
        rows = yield ListJobs(ids=_ids(jobs), mine=not self._not_mine)
        self.effort = self._effort.of(self._clock() - self.asked_at)
        queue: dict[int, list[Job]] = {}
        for row in rows:
            queue.setdefault(row.id.job, []).append(row)
        return queue

    def _look_at_accounting(self, jobs: list[TrackedJob]) -> Steps[None]:
        # The queue may be asked again before the answer comes.
        asked_at, here = self._clock(), [job.here for job in jobs]
        past: dict[int, list[AccountingJob]] = {}
        ids = _ids(jobs)
        try:
            for start in range(0, len(ids), MOST_IDS):
                for found in (yield Accounting(ids=ids[start : start + MOST_IDS], mine=not self._not_mine)):
                    past.setdefault(found.id.job, []).append(found)
        except AccountingDisabled:
            self._accounting_failure = None
            for job in jobs:
                job.do_without_accounting()
                job.judge(asked_at, self._patience)
            return
        except ClusterError as error:
            self._accounting_failure = first_of_kind(self._accounting_failure, error)
            self._accounting_due = self._clock() + self._accounting.after_failure()
            for job in jobs:
                job.could_not_ask()
            return
        self._accounting_failure, self.has_accounting = None, True
        effort = self._accounting_effort.of(self._clock() - asked_at)
        self._accounting_due = asked_at + self._accounting.after_answer(effort=effort)
        for job, then in zip(jobs, here, strict=True):
            job.look_at_accounting(past.get(job.number, ()), then)
            job.judge(self._clock(), self._patience)

    def _tell(self, jobs: Iterable[TrackedJob], trouble: str = "") -> None:
        for job in jobs:
            parts = job.parts() if any(waiter.job.element is None for waiter in job.waiters.values()) else ()
            for waiter in list(job.waiters.values()):
                status = job.status_of(waiter.job, parts, trouble)
                if status and (waiter.told is None or waiter.told.news != status.news):
                    waiter.tell(status)
                    if status.is_over:
                        self.remove(waiter)


def _ids(jobs: Iterable[TrackedJob]) -> tuple[JobId, ...]:
    return tuple(map(JobId, dict.fromkeys(job.number for job in jobs)))


def statuses(jobs: Mapping[JobId, str]) -> Steps[dict[JobId, JobStatus]]:
    """The current status of each job; one with a name is one's own, and ``lost`` if nothing knows it by that name."""
    book: WatchList[Waiter] = WatchList(LossLimits(unknown=0, runaway=0))
    asked = [Waiter(job, name, mine=bool(name)) for job, name in jobs.items()]
    for one in asked:
        book.add(one)
    yield from book.round()
    return {one.job: one.told for one in asked if one.told}


class JobNews(Waiter):
    """Updates of a job: iterate, or wait for its end.

    The first status comes as soon as anything is known, others when something changes; the last is the job's end.
    """

    def __init__(self, watcher: Poller, job: JobId, poll_interval: float, **of_waiter: Any) -> None:
        super().__init__(job, **of_waiter)
        self.poll_interval, self.since = poll_interval, time.monotonic()
        self.is_closed = False
        self._watcher = watcher
        self._is_read = True
        self._failure: BaseException | None = None
        self._news = asyncio.Event()

    async def next(self) -> JobStatus | None:
        """Wait for the next status; None after the last."""
        while True:
            self._news.clear()
            if self._failure:
                raise self._failure
            if not self._is_read:
                self._is_read = True
                return self.told
            if self.is_closed or (self.told is not None and self.told.is_over):
                return None
            await self._news.wait()

    async def __aiter__(self) -> AsyncIterator[JobStatus]:
        try:
            while status := await self.next():
                yield status
        finally:
            self.close()

    async def end(self) -> JobStatus | None:
        """Wait until the job is over; None if the watch is closed before."""
        try:
            while status := await self.next():
                if status.is_over:
                    return status
            return None
        finally:
            self.close()

    def close(self) -> None:
        """Stop watching."""
        self._watcher.remove(self)

    # Called by the poller

    def tell(self, status: JobStatus) -> None:
        super().tell(status)
        self._is_read = False
        self._news.set()

    def stop(self, failure: BaseException | None = None) -> None:
        self.is_closed, self._failure = True, self._failure or failure
        self._news.set()


class Poller:
    """Polls in a task of the loop that it is first used in; the task ends with the last watch."""

    def __init__(
        self,
        ask: Ask,
        patience: LossLimits = LossLimits(),  # noqa: B008
    ) -> None:
        self._ask = ask
        self._book: WatchList[JobNews] = WatchList(patience)
        # Until more is known, there may be no accounting.
        self._pace = Pace(rarest=OF_MEMORY * ClusterConfig.min_job_age.total_seconds())
        self._paced = False
        #: The next round, and the earliest one, also for new watches.
        self._due = self._soonest = 0.0
        #: Why the last round got no answer.
        self._failure: Exception | None = None
        #: True if jobs may have been withdrawn that could not be cancelled, as the cluster was away.
        self._may_be_withdrawn = True
        self._sooner = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: The question to accounting that is under way: news from the queue do not wait for its answer.
        self._past: asyncio.Task[None] | None = None

    def watch(self, job: JobId, *, poll_interval: float = POLL_INTERVAL, **of_waiter: Any) -> JobNews:
        """Watch a job; the other arguments are those of a ``Waiter``."""
        watch = JobNews(self, job, poll_interval, **of_waiter)
        is_first = not self._book
        self._book.add(watch)
        # Soon, but watches that start together share one round.
        soon = max(time.monotonic() + GATHERING, self._soonest)
        if is_first:
            # The last failure may be long ago.
            self._failure = None
            self._due = soon
        elif self._failure:
            # A cluster that does not answer is not polled more often because there are more watches.
            watch.tell(JobStatus(id=watch.job, trouble=str(self._failure)))
        else:
            self._due = min(self._due, soon)
        self._sooner.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll(), name="slurm-watcher")
        return watch

    def remove(self, watch: JobNews) -> None:
        self._book.remove(watch)
        watch.stop()
        if not self._book:
            self._sooner.set()

    async def close(self) -> None:
        """Close all watches, and end the task."""
        for watch in self._book:
            self.remove(watch)
        for task in filter(None, (self._task, self._past)):
            task.cancel()
            await asyncio.wait([task])

    async def _poll(self) -> None:
        try:
            while self._book:
                self._sooner.clear()
                left = self._due - time.monotonic()
                if left > 0:
                    with contextlib.suppress(asyncio.TimeoutError):
                        async with timeout(left):
                            await self._sooner.wait()
                    continue
                await self._round()
        except Exception as failure:
            # It is permanent, and the watches would wait for ever.
            for watch in self._book:
                self._book.remove(watch)
                watch.stop(failure)
        finally:
            self._task = None

    async def _round(self) -> None:
        """Take one round, and plan the next."""
        try:
            if not self._paced:
                await self._learn_pace()
            await self._look()
            await self._cancel_withdrawn()
        except (InvalidRequest, NotSupported):
            # It would fail the same way each time.
            raise
        except Exception as error:
            if not isinstance(error, ClusterError):
                # Jobs whose watches end with it would run on, and nobody would follow or cancel them.
                _log.exception("A poll has failed unexpectedly, and is repeated")
                error = TransportError(f"the poll failed unexpectedly ({error!r})", "it is repeated")
            if isinstance(error, RateLimited):
                # The cluster's limit has become stricter.
                self._paced = False
            self._due = self._soonest = time.monotonic() + self._pace.after_failure()
            self._failure, self._may_be_withdrawn = first_of_kind(self._failure, error), True
            self._book.tell_all(str(self._failure))
        else:
            self._failure = None
            if self._book.has_accounting:
                self._pace.rarest = math.inf
            now = time.monotonic()
            youngest = min((now - watch.since for watch in self._book), default=0.0)
            longest = min((watch.poll_interval for watch in self._book), default=POLL_INTERVAL)
            asked_at, effort = self._book.asked_at, self._book.effort
            self._soonest = asked_at + self._pace.soonest(effort)
            self._due = asked_at + self._pace.after_answer(youngest=youngest, longest=longest, effort=effort)

    async def _look(self) -> None:
        self._has_answered()
        jobs = await run_steps_async(self._book.ask_queue(), self._ask)
        if self._past is None:
            self._past = asyncio.create_task(run_steps_async(self._book.ask_accounting(jobs), self._ask))
            await asyncio.wait([self._past], timeout=PROMPT)
        if not self._has_answered():
            self._book.go_on(jobs)

    def _has_answered(self) -> bool:
        """True if the question to accounting is over; raises an unexpected failure of it once."""
        if self._past is None or not self._past.done():
            return False
        past, self._past = self._past, None
        past.result()
        return True

    async def _cancel_withdrawn(self) -> None:
        # Its failure is no matter of those who watch.
        with contextlib.suppress(ClusterError):
            if self._may_be_withdrawn:
                await self._ask(CancelWithdrawn())
            self._may_be_withdrawn = False

    async def _learn_pace(self) -> None:
        with contextlib.suppress(NotSupported):
            config = await self._ask(ShowConfig())
            self._pace.respect(config)
            self._book.respect(config)
        self._paced = True
