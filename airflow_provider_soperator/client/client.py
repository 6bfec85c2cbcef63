"""The client of a Slurm cluster, for event loops; ``sync`` has the one for threads."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timezone
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from airflow_provider_soperator.client import queue, submissions
from airflow_provider_soperator.client.batcher import Batcher, JobAccounts, Siblings
from airflow_provider_soperator.client.output import MOST_FILES, Tail, Tails
from airflow_provider_soperator.client.pace import Pace, Patience, RetryPolicy, repeated
from airflow_provider_soperator.client.poller import POLL_INTERVAL, JobNews, Poller, statuses
from airflow_provider_soperator.client.submissions import Earlier, PendingSubmission
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.shared import SharedAnswers
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, RateLimit, Share
from airflow_provider_soperator.slurm.errors import AccountingDisabled
from airflow_provider_soperator.slurm.files import PIECE, FileError, Piece, ReadPieces, WorkingFolder
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.requests import ListJobs, ListNodes, ListShares, Request, ShowConfig
from airflow_provider_soperator.slurm.requests.accounting import MOST_IDS
from airflow_provider_soperator.slurm.requests.commands import Steps, run_steps_async
from airflow_provider_soperator.slurm.requests.submission import HELD, MOST, Submitted
from airflow_provider_soperator.slurm.sbatch_arguments import with_remote_lines
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports import Transport
from airflow_provider_soperator.transports.transport_errors import NotSupported

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.stats import SlurmStats

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds for which the cluster's settings are cached.
_CONFIG_AGE = 600.0
#: Bytes of a script in which its #SBATCH lines are, and seconds for which tasks with the same one share them.
_HEAD, _SCRIPT_AGE = 64 << 10, 1.0

#: A broken connection is reopened silently. Slower failures, such as those of Slurm's own commands, are left to the
#: poller, which reports them.
_OF_WATCHERS = RetryPolicy(tries=2, within=5.0)
#: Of a caller that shares a question, which has tries of its own.
_OF_SHARERS = RetryPolicy(tries=1)


def _method(steps: Callable[P, Steps[T]]) -> Callable[Concatenate[AsyncSlurmClient, P], Coroutine[Any, Any, T]]:
    @wraps(steps)
    async def method(self: AsyncSlurmClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run_steps_async(steps(*args, **kwargs), self.ask)

    return method


class AsyncSlurmClient:
    """A Slurm cluster, for an event loop; any number of tasks may use it at once.

    Every single request to Slurm is a value of ``slurm.requests`` or ``slurm.files``, and goes through ``ask``.
    The other methods take several requests. Transient failures are retried.

        async with SlurmHook("soperator_default").async_client() as client:
            job = await client.submit(BatchJob(command="hostname", name="hello"), key)
            print((await client.watch(job.id, mine=True).end()).state)
    """

    def __init__(self, transport: Transport, policy: RetryPolicy = RetryPolicy()) -> None:  # noqa: B008
        self._transport = transport
        self._policy = policy
        #: Set for good, also for copies.
        self._closed = asyncio.Event()
        #: The log of a caller that waits while the cluster is away.
        self._log: Logger | None = None
        self._watcher = Poller(partial(self._ask, policy=_OF_WATCHERS))
        self._tails = Tails(self.ask)
        self._sizes: Batcher[str, str, int] = Batcher(self._measure, policy, MOST_FILES)
        # Repeated by the batcher alone, without what was taken back meanwhile.
        self._submissions: Batcher[SubmissionKey, PendingSubmission, Submitted] = Batcher(
            lambda batch: run_steps_async(submissions.submit(batch), transport.ask),
            policy,
            MOST,
            lambda key, item: item.kind or key,
            lambda item: item.size,
        )
        self._siblings = Siblings()
        self._lookups: Batcher[tuple[SubmissionKey, ...], Earlier, Submitted | None] = Batcher(
            lambda batch: self._take(submissions.find(batch)), policy, MOST_IDS
        )
        self._cancellations: Batcher[tuple[SubmissionKey, ...], tuple[SubmissionKey, ...], tuple[JobId, ...]] = Batcher(
            lambda batch: self._take(queue.cancel_keys(batch)), policy
        )
        self._answers = SharedAnswers()
        #: Records in accounting of jobs that have ended.
        self.accounts = JobAccounts(self.ask, self.config)

    def patient(self, log: Logger) -> AsyncSlurmClient:
        """This client for a caller that waits while the cluster is away, which its log is told of.

        A failure that cannot pass by itself, such as a refused login or a rejected job, is still raised.
        """
        patient = copy.copy(self)
        patient._log = log
        return patient

    async def ask(self, request: Request[T]) -> T:
        """Send a request; repeat it after a transient failure if that does no harm."""
        return await self._ask(request, self._policy, self._log)

    async def _ask(
        self,
        request: Request[T],
        policy: RetryPolicy,
        log: Logger | None = None,
        send: Callable[[Request[T]], Awaitable[T]] | None = None,
    ) -> T:
        attempt, started, patience, pace = 1, time.monotonic(), Patience(log), Pace()
        while True:
            try:
                return await (send or self._transport.ask)(request)
            except ClusterError as error:
                again = repeated(request, error)
                pause = policy.pause(attempt, time.monotonic() - started) if error.retryable else None
                if again is None or self._closed.is_set():
                    raise
                if pause is None:
                    if not patience.bears(error):
                        raise
                    pause = pace.after_failure()
                await asyncio.sleep(pause)
                if self._closed.is_set():
                    raise
                request = again
            attempt += 1

    async def ask_shared(self, request: Request[T], max_age: float) -> T:
        """An answer no older than ``max_age`` seconds, shared by all callers with the same request."""

        def shared(request: Request[T]) -> Awaitable[T]:
            return self._answers.get(request, lambda: self._ask(request, self._policy), max_age)

        # Each caller bears a failure, and is told of it, by itself.
        return await self._ask(request, _OF_SHARERS, self._log, shared)

    async def ask_now(self, request: Request[T], max_age: float = 0.0) -> T:
        """The same for one who looks: a broken connection is reopened, any other failure is told at once."""
        return await self._answers.get(request, lambda: self._ask(request, _OF_WATCHERS), max_age)

    async def config(self) -> ClusterConfig:
        """The cluster's settings, cached for some minutes."""
        return await self.ask_shared(ShowConfig(), _CONFIG_AGE)

    async def with_lines(self, job: BatchJob, max_age: float = _SCRIPT_AGE) -> BatchJob:
        """The job with the #SBATCH lines of its script on the cluster, if it has one that can be read."""
        if job.remote_script is None or job.remote_lines is not None:
            return job
        # What cannot be read here, or not be understood, is sbatch's to judge.
        with contextlib.suppress(FileError, InvalidJob, NotSupported):
            folder = await self.ask_shared(WorkingFolder(), _CONFIG_AGE)
            # Where sbatch looks first, before PATH: not in --chdir.
            script = Piece(str(folder / job.remote_script), 0, _HEAD)
            [head] = await self.ask_shared(ReadPieces((script,)), max_age)
            if head.data:
                return with_remote_lines(job, head.data.decode(errors="replace"))
        return job

    async def submit(
        self, job: BatchJob, key: SubmissionKey, *, since: datetime | None = None, gather: bool = False
    ) -> Submitted:
        """Submit a job exactly once; jobs submitted at the same time share a request.

        Equal jobs of mapped tasks go as one array. To ``gather``, each waits a moment for others to come.
        """
        item = PendingSubmission(submissions.named(job, key), since)
        # An invalid job must not keep others from being submitted.
        item.job.check()
        if gather and item.kind:
            await self._siblings.wait(item.kind)
        submitted = await self._submissions.get(key, item, self._log)
        if submitted.error:
            raise submitted.error
        return dataclasses.replace(submitted, key=key)

    async def find(
        self,
        job: BatchJob,
        keys: Sequence[SubmissionKey],
        *,
        since: datetime | None = None,
        own: SubmissionKey | None = None,
    ) -> Submitted | None:
        """The newest of several tries of a job, unless it has failed or was cancelled, or a job has the key ``own``."""
        return await self._lookups.get(tuple(keys), Earlier(job, tuple(keys), since, own), self._log)

    async def submit_together(
        self, jobs: Sequence[BatchJob], *, since: datetime | None = None
    ) -> tuple[Submitted, ...]:
        """Submit jobs that depend on each other: all of them, each exactly once, or none.

        Their names end in keys, and a ``Dependency`` can name a job by its key. None starts before all are accepted. If
        one is rejected, the others are cancelled, and ``TogetherRefused`` names it. After a crash, the next call with
        the same keys continues; after a success, it changes nothing.
        """
        limit = await self._limit() if len(jobs) > 1 else None
        return await self._take(submissions.submit_together(jobs, since, limit))

    async def complete_submission(
        self, status: JobStatus, job: BatchJob, key: SubmissionKey, *, since: datetime | None = None
    ) -> None:
        """Release a job that is still held by its submission, which is over.

        A slurmctld that was killed may have saved the job and not its release, or the submitter died between the two.
        """
        if not any(part.state.is_pending and part.comment == HELD for part in status.parts):
            return
        said = "is released"
        try:
            await self.submit_together([submissions.named(job, key)], since=since)
        except ClusterError as error:
            said = f"could not be released: {error}"
        if self._log:
            self._log.info("Job %s was held until its submission is complete, which it is: it %s", status.id, said)

    async def take_back(self, jobs: Sequence[BatchJob], *, since: datetime | None = None) -> None:
        """Cancel what ``submit_together`` has submitted of these jobs, or submits; its next call submits them anew."""
        await self._take(submissions.take_back(jobs, since))

    async def cancel_keys(self, keys: Sequence[SubmissionKey]) -> tuple[JobId, ...]:
        """Cancel whatever has these keys, also a job whose submission has begun; returns the jobs that had not ended.

        Tasks that end at the same time share the requests.
        """
        return await self._cancellations.get(tuple(keys), tuple(keys), self._log) if keys else ()

    unfinished = _method(queue.unfinished)
    with_keys = _method(queue.with_keys)
    cancel_many = _method(queue.cancel_many)
    relink = _method(queue.relink)
    let_go = _method(queue.let_go)

    async def statuses(self, jobs: Iterable[JobId]) -> dict[JobId, JobStatus]:
        """The status of any number of jobs, from the queue or from accounting."""
        return await self._take(statuses(dict.fromkeys(jobs, "")))

    def watch(
        self,
        job: JobId,
        *,
        name: str = "",
        mine: bool = False,
        poll_interval: float = POLL_INTERVAL,
        indices: Iterable[int] = (),
    ) -> JobNews:
        """Watch a job until its end. All watches share one poller.

        ``name``: the name that the job must have; names that end in a submission key are compared by the key.
        ``mine``: the connection's user submitted it; if all jobs are, slurmctld has less to list.
        ``indices``: those of the whole array: without accounting an element that has left the queue is missed by them.
        """
        return self._watcher.watch(job, name=name, mine=mine, poll_interval=poll_interval, indices=indices)

    def tail(self, path: str, heard: asyncio.Event, size: int = 0) -> Tail:
        """Follow the bytes of a file; ``heard`` is set for new ones. All followed files are read in one request.

        ``size``: what it had before its job began, which is not shown.
        """
        return self._tails.follow(path, heard, size)

    async def size(self, path: str) -> int:
        """The bytes of a file, 0 if there is none; those who ask at the same time share a request."""
        return await self._sizes.get(path, path)

    async def _measure(self, paths: Iterable[str]) -> dict[str, int]:
        pieces = tuple(Piece(path, 0, 0) for path in paths)
        found = await self._transport.ask(ReadPieces(pieces))
        return {piece.path: one.size or 0 for piece, one in zip(pieces, found, strict=True)}

    async def stats(self, top: int = 10) -> SlurmStats:
        """Statistics of the cluster at this moment, with the ``top`` users. Without accounting there are no shares."""
        # What follows a job does without it.
        from airflow_provider_soperator.slurm.stats import snapshot

        jobs = await self.ask(ListJobs())
        nodes = await self.ask(ListNodes())
        shares: tuple[Share, ...] = ()
        with contextlib.suppress(AccountingDisabled, NotSupported):
            shares = await self.ask(ListShares())
        return snapshot(jobs, nodes, shares or None, datetime.now(timezone.utc), top)

    async def read_file(self, path: str, most: int = 64 << 20) -> bytes:
        """Read a whole file, even while it grows; ``FileError`` if it is missing or longer than ``most``."""
        data = bytearray()
        while True:
            [piece] = await self.ask(ReadPieces((Piece(path, len(data), min(PIECE, most + 1 - len(data))),)))
            if piece.size is None:
                raise FileError(f"there is no file {path}")
            data += piece.data
            if len(data) > most:
                raise FileError(f"{path} has more than {most} bytes")
            if len(data) >= piece.size:
                return bytes(data)
            if not piece.data:
                raise FileError(f"{path} cannot be read")

    async def close(self) -> None:
        """Close the connection; open watches get no more updates."""
        self._closed.set()
        await self._watcher.close()
        await self._transport.close()

    async def _take(self, steps: Steps[T]) -> T:
        return await run_steps_async(steps, self.ask)

    async def _limit(self) -> RateLimit | None:
        try:
            return (await self.config()).rate_limit
        except NotSupported:
            return None
