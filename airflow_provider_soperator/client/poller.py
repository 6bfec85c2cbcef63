"""The poller: one for all waiters for jobs of a cluster in an event loop.

It polls only while there are watches.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from async_timeout import timeout

from airflow_provider_soperator.client.job_tracker import LossLimits
from airflow_provider_soperator.client.poll_interval import Pace
from airflow_provider_soperator.client.poll_rounds import Waiter, WatchList, first_of_kind
from airflow_provider_soperator.slurm.errors import InvalidRequest, RateLimited, SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.requests import Request, ShowConfig
from airflow_provider_soperator.slurm.requests.commands import Steps, run_steps_async
from airflow_provider_soperator.transports.transport_errors import NotSupported, TransportError

#: Seconds between two polls of a job that has been watched for long.
POLL_INTERVAL = 10.0
#: Seconds that the first watch waits for others.
GATHERING = 0.05


class JobNews(Waiter):
    """Updates of a job: iterate, or wait for its end.

    The first status comes as soon as anything is known, others when something changes; the last is the job's end.
    """

    def __init__(self, watcher: Poller, job: JobId, name: str, mine: bool, poll_interval: float) -> None:
        super().__init__(job, name, mine)
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

    def fail(self, failure: BaseException) -> None:
        self._failure = failure
        self._news.set()

    def wake(self) -> None:
        self._news.set()


class Poller:
    """Polls in a task of the loop that it is first used in; the task ends with the last watch."""

    def __init__(
        self,
        ask: Callable[[Request[Any]], Awaitable[Any]],
        patience: LossLimits = LossLimits(),  # noqa: B008
    ) -> None:
        self._ask = ask
        self._book: WatchList[JobNews] = WatchList(patience)
        self._pace = Pace()
        self._paced = False
        #: The next round, and the earliest one, also for new watches.
        self._due = self._soonest = 0.0
        #: Why the last round got no answer.
        self._failure: Exception | None = None
        self._sooner = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def watch(self, job: JobId, *, name: str = "", mine: bool = False, poll_interval: float = POLL_INTERVAL) -> JobNews:
        watch = JobNews(self, job, name, mine, poll_interval)
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
        watch.is_closed = True
        watch.wake()
        if not self._book:
            self._sooner.set()

    async def close(self) -> None:
        """Close all watches, and end the task."""
        for watch in self._book:
            self.remove(watch)
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])

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
                await run_steps_async(self._round(), self._ask)
        except Exception as failure:
            # It is permanent, and the watches would wait for ever.
            for watch in self._book:
                watch.fail(failure)
                self._book.remove(watch)
        finally:
            self._task = None

    def _round(self) -> Steps[None]:
        """Take one round, and plan the next."""
        try:
            if not self._paced:
                yield from self._learn_pace()
            yield from self._book.round()
        except (InvalidRequest, NotSupported):
            # It would fail the same way each time.
            raise
        except (SlurmError, TransportError) as error:
            if isinstance(error, RateLimited):
                # The cluster's limit has become stricter.
                self._paced = False
            self._due = self._soonest = time.monotonic() + self._pace.after_failure()
            self._failure = first_of_kind(self._failure, error)
            self._book.tell_all(str(self._failure))
        else:
            self._failure = None
            now = time.monotonic()
            youngest = min((now - watch.since for watch in self._book), default=0.0)
            longest = min((watch.poll_interval for watch in self._book), default=POLL_INTERVAL)
            asked_at, effort = self._book.asked_at, self._book.effort
            self._soonest = asked_at + self._pace.soonest(effort)
            self._due = asked_at + self._pace.after_answer(youngest=youngest, longest=longest, effort=effort)

    def _learn_pace(self) -> Steps[None]:
        with contextlib.suppress(NotSupported):
            self._pace.respect((yield ShowConfig()))
        self._paced = True
