"""The client of a Slurm cluster, for event loops; ``sync`` has the one for threads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import TypeVar

from airflow_provider_soperator.answers import SharedAnswers
from airflow_provider_soperator.client import file_copies, poll_rounds, queue, submissions
from airflow_provider_soperator.client.output import Tail, Tails
from airflow_provider_soperator.client.poller import POLL_INTERVAL, JobNews, Poller
from airflow_provider_soperator.client.submissions import Batcher
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, RateLimit, Share
from airflow_provider_soperator.slurm.errors import AccountingDisabled
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId, SubmissionKey
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.requests import CancelJobs, ListJobs, ListNodes, ListShares, Request, ShowConfig
from airflow_provider_soperator.slurm.requests.commands import Steps, run_steps_async
from airflow_provider_soperator.slurm.requests.submission import Submitted
from airflow_provider_soperator.slurm.stats import SlurmStats, snapshot
from airflow_provider_soperator.transports.transport import RetryPolicy, Transport, repeated
from airflow_provider_soperator.transports.transport_errors import NotSupported

T = TypeVar("T")

#: Seconds for which the cluster's settings are taken to be the same.
_CONFIG_AGE = 600.0

#: A connection that was cut is opened again before anybody hears of it. What takes longer to fail, as Slurm's own
#: commands do, the watchers wait for in their own way, and tell.
_OF_WATCHERS = RetryPolicy(tries=2, within=5.0)


class _Remembered:
    """The cluster's settings, for a while."""

    def __init__(self) -> None:
        self._config: ClusterConfig | None = None
        self._since = 0.0

    def get(self) -> ClusterConfig | None:
        return self._config if time.monotonic() - self._since < _CONFIG_AGE else None

    def put(self, config: ClusterConfig) -> ClusterConfig:
        self._config, self._since = config, time.monotonic()
        return config


class AsyncSlurmClient:
    """A Slurm cluster, for an event loop; any number of tasks may use it at once.

    Whatever Slurm can be asked or told is a value of ``slurm.requests`` or ``slurm.files``, and goes through ``ask``.
    The other methods are for what takes more than one question. What fails in a way that may pass is tried again.

        async with SlurmHook("soperator_default").async_client() as client:
            job = await client.submit(BatchJob(command="hostname", name="hello"), key)
            print((await client.watch(job.id, mine=True).end()).state)
    """

    def __init__(self, transport: Transport, policy: RetryPolicy = RetryPolicy()) -> None:  # noqa: B008
        self._transport = transport
        self._policy = policy
        self._is_closed = False
        self._remembered = _Remembered()
        self._watcher = Poller(partial(self._ask, policy=_OF_WATCHERS))
        self._tails = Tails(self.ask)
        self._batcher = Batcher(self.submit_many)
        self._answers = SharedAnswers()

    async def ask(self, request: Request[T]) -> T:
        """Put a question; asked again if its failure may pass and a second time does no harm."""
        return await self._ask(request, self._policy)

    async def _ask(self, request: Request[T], policy: RetryPolicy) -> T:
        attempt, started = 1, time.monotonic()
        while True:
            try:
                return await self._transport.ask(request)
            except Exception as error:
                again, pause = repeated(request, error), policy.pause(attempt, time.monotonic() - started)
                if again is None or pause is None or self._is_closed:
                    raise
                request = again
            await asyncio.sleep(pause)
            attempt += 1

    async def ask_shared(self, request: Request[T], max_age: float) -> T:
        """An answer no older than ``max_age`` seconds, which all who put the question share."""
        return await self._answers.get(request, lambda: self.ask(request), max_age)

    async def config(self) -> ClusterConfig:
        """The cluster's settings, of the last minutes."""
        return self._remembered.get() or self._remembered.put(await self.ask(ShowConfig()))

    async def submit(
        self, job: BatchJob, key: SubmissionKey, *, since: datetime | None = None, fresh: bool = False
    ) -> Submitted:
        """Submit a job exactly once; jobs submitted at the same time share a question."""
        return submissions.accepted(await self._batcher.submit(submissions.named(job, key), since=since, fresh=fresh))

    async def find(
        self, job: BatchJob, keys: Sequence[SubmissionKey], *, since: datetime | None = None
    ) -> Submitted | None:
        """The newest of several tries of a job, if it waits, runs or has succeeded."""
        return await self._take(submissions.find(job, keys, since))

    async def submit_many(
        self, jobs: Sequence[BatchJob], *, since: datetime | None = None, fresh: bool = False
    ) -> tuple[Submitted, ...]:
        """Submit hundreds of jobs in one go, each exactly once: their names end in keys. One answer for each."""
        limit = await self._limit() if len(jobs) > 1 else None
        return await self._take(submissions.submit_many(jobs, since, fresh, limit))

    async def submit_together(
        self, jobs: Sequence[BatchJob], *, since: datetime | None = None, fresh: bool = False
    ) -> tuple[Submitted, ...]:
        """Submit jobs that depend on each other: all of them, each exactly once, or none.

        Their names end in keys, and a ``Dependency`` can name a job by its key. None starts before all are accepted. If
        one is refused, the others are cancelled, and ``TogetherRefused`` says which one. Whatever breaks: the next call
        with the same keys goes on, and one after a success changes nothing.
        """
        limit = await self._limit() if len(jobs) > 1 else None
        return await self._take(submissions.submit_together(jobs, since, fresh, limit))

    async def cancel(self, job: JobId, *, signal: str = "") -> None:
        """Cancel a job, or send it a signal; one that has ended is no error."""
        await self.ask(CancelJobs(ids=(job,), signal=signal))

    async def cancel_many(self, jobs: Iterable[JobId]) -> None:
        """Cancel any number of jobs in one go."""
        await self._take(queue.cancel_many(jobs))

    async def relink(self, jobs: Iterable[JobId], old: JobId, new: JobId) -> tuple[JobId, ...]:
        """Let those of these jobs that wait for ``old`` wait for ``new`` in its place; the answer is which did.

        All else that they wait for stays. ``old`` may be gone, and the jobs may have been found to wait in vain.
        """
        return await self._take(queue.relink(jobs, old, new))

    async def let_go(self, job: JobId) -> bool:
        """Drop what a job waits for in vain (``DependencyNeverSatisfied``), so that it runs; False if there is none."""
        return await self._take(queue.let_go(job))

    async def cancel_waiting(self, jobs: Iterable[JobId]) -> None:
        """Cancel what has not started of these; elements of an array that run go on."""
        await self._take(queue.cancel_waiting(jobs))

    async def status(self, job: JobId) -> JobStatus:
        """The status of a job, from the queue or from accounting."""
        return (await self.statuses([job]))[job]

    async def statuses(self, jobs: Iterable[JobId]) -> dict[JobId, JobStatus]:
        """The status of any number of jobs, for the price of one."""
        return await self._take(poll_rounds.statuses(jobs))

    def watch(self, job: JobId, *, name: str = "", mine: bool = False, poll_interval: float = POLL_INTERVAL) -> JobNews:
        """The news of a job until its end. All who watch share one poller.

        ``name``: what the job must be called. ``mine``: the connection's user has submitted it; that is cheaper.
        """
        return self._watcher.watch(job, name=name, mine=mine, poll_interval=poll_interval)

    def tail(self, path: str, offset: int = 0) -> Tail:
        """The bytes that a file grows by. All files that are followed are read in one go."""
        return self._tails.follow(path, offset)

    async def stats(self, top: int = 10) -> SlurmStats:
        """The cluster at this moment, in figures; of users, the ``top`` ones."""
        return await self._take(take_stats(top))

    async def read_file(self, path: str, most: int = file_copies.MOST_OF_A_FILE) -> bytes:
        """A file on the cluster, whole."""
        return await self._take(file_copies.read_file(path, most))

    async def close(self) -> None:
        """Hang up; watches that are open get no more news."""
        self._is_closed = True
        await self._watcher.close()
        await self._transport.close()

    async def _take(self, steps: Steps[T]) -> T:
        return await run_steps_async(steps, self.ask)

    async def _limit(self) -> RateLimit | None:
        try:
            return (await self.config()).rate_limit
        except NotSupported:
            return None


def take_stats(top: int) -> Steps[SlurmStats]:
    """Three questions, whatever the number of jobs, nodes and users. Without accounting there are no shares."""
    jobs = yield ListJobs()
    nodes = yield ListNodes()
    shares: tuple[Share, ...] = ()
    with contextlib.suppress(AccountingDisabled, NotSupported):
        shares = yield ListShares()
    return snapshot(jobs, nodes, shares or None, datetime.now(timezone.utc), top)
