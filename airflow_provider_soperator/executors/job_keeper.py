"""Submits the jobs of tasks and follows each to its end, in an event loop beside the scheduler.

What it learns goes to the executor as news. All jobs share one client: one connection and one poller.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.client.submissions import jobs_of
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.executors import runner
from airflow_provider_soperator.executors.environment import PrepareFolder, installed_packages
from airflow_provider_soperator.executors.options import ExecutorOptions
from airflow_provider_soperator.executors.task_jobs import ExecutorFolder, QueuedTask, TaskJob
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.files import Piece, ReadPieces, RemoveFiles, UnpackFiles, WorkingFolder
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_failures import failure
from airflow_provider_soperator.slurm.job_ids import JobId, SubmissionKey, submitted_since
from airflow_provider_soperator.slurm.job_records import JobStatus, expand_filename, sentence
from airflow_provider_soperator.slurm.pending_reasons import reason_in_words
from airflow_provider_soperator.slurm.requests.commands import run_steps_async
from airflow_provider_soperator.slurm.states import JobBase

#: Seconds after which the connection is read anew, and the folder is made anew, in which old files are removed then.
RENEWED, CLEANED = 60.0, 86400.0
#: Days that a task may run after its token is over: what adopts it needs its file.
LONGEST = 90
#: Seconds until a job is followed again after a failure that does not pass by itself.
AGAIN = 10.0
#: Seconds in which the files of jobs that have ended are gathered, to be removed together.
GATHERED = 5.0
#: Files that are read together, and bytes of each.
_READ, _MOST = 200, 64 << 10
#: Bytes of the end of a log.
MOST_OF_LOG = 4 << 20

_MEANING = {
    runner.GONE: "the file of its workload was gone: it was removed, or executor_token_days were over",
    runner.UNREACHED: "its node did not reach Airflow's API server: see whether the address is right for nodes",
    runner.REFUSED: "Airflow refused its token: executor_token_days were over, or the clocks or secrets differ",
    runner.UNFIT: "its Python has no Airflow: correct executor_python",
}


class NewsKind(Enum):
    """What has become of a task's job."""

    SUBMITTED = "submitted"
    WAITING = "waiting"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NOT_WANTED = "not wanted"


@dataclass(frozen=True)
class News:
    """News of the job of one task, in words."""

    leg: str
    kind: NewsKind
    text: str = ""
    #: Of a failure: lines for the task's log, and where that is, below the folder of logs.
    lines: tuple[str, ...] = ()
    log_path: str = ""


def lent(conn_id: str) -> AbstractAsyncContextManager[AsyncSlurmClient]:
    """The client of a connection."""
    # Imported here, as every command of Airflow's imports the executor.
    from airflow_provider_soperator.hooks.slurm import SlurmHook

    return SlurmHook(conn_id).async_client()


class JobKeeper:
    """The jobs of an executor's tasks. ``tell`` takes the news; ``env`` are variables that each job has.

    Each task that was handed over has one end: it succeeded, failed or is not wanted any more.
    """

    def __init__(
        self,
        options: ExecutorOptions,
        env: Mapping[str, str],
        tell: Callable[[News], None],
        log: Logger,
        lend: Callable[[str], AbstractAsyncContextManager[AsyncSlurmClient]] = lent,
    ) -> None:
        self._options, self._env, self._tell, self._log, self._lend = options, env, tell, log, lend
        self._lease: AbstractAsyncContextManager[AsyncSlurmClient] | None = None
        self._client: AsyncSlurmClient | None = None
        self._folder: ExecutorFolder | None = None
        self._read_at = self._made_at = 0.0
        self._reaching = asyncio.Lock()
        #: The jobs by the legs of their tasks, and the work on each.
        self._keys: dict[str, SubmissionKey] = {}
        self._working: dict[SubmissionKey, asyncio.Task[None]] = {}
        self._ended: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, tasks: Sequence[QueuedTask]) -> None:
        """Submit the jobs of tasks that became ready together."""
        if self._folder is None and not self._options.python:
            for task in tasks:
                self._tell(
                    News(task.leg, NewsKind.WAITING, "The environment on the cluster is made, if it is not there")
                )
        try:
            client, folder = await self._reach()
            jobs, rejected = folder.plan(tasks, self._options.defaults, self._env)
            for task in tasks:
                if error := rejected.get(task.leg):
                    self._fail([task], f"The job is not submitted: {error}")
            if jobs:
                await client.patient(self._log).ask(UnpackFiles(folder.tasks, folder.archive(jobs)))
        except Exception as error:
            self._fail(tasks, f"The job could not be submitted: {error}")
            return
        for one in jobs:
            self._work(one.key, one.tasks, self._run(client, one))

    async def adopt(self, legs: Sequence[str]) -> set[str]:
        """Follow the jobs that another executor has submitted, also if they have ended since; returns whose are found.

        What was begun there for others, and may yet be completed on the cluster, is withdrawn.
        """
        client, folder = await self._reach()
        ours = {leg for leg in legs if leg in self._keys}
        legs = [leg for leg in legs if leg not in ours]
        tasks: dict[SubmissionKey, list[QueuedTask]] = {}
        jobs: dict[SubmissionKey, BatchJob] = {}
        for start in range(0, len(legs), _READ):
            some = legs[start : start + _READ]
            pieces = await client.ask(ReadPieces(tuple(Piece(f"{folder.tasks}/{leg}", 0, _MOST) for leg in some)))
            for leg, piece in zip(some, pieces, strict=True):
                with suppress(KeyError, ValueError):
                    said = json.loads(piece.data)
                    key = SubmissionKey(said["key"])
                    tasks.setdefault(key, []).append(QueuedTask(leg, "", "", "", workload=said["workload"]))
                    jobs[key] = BatchJob(command="true", name=said["name"])
        if not jobs:
            return ours
        since = submitted_since(datetime.fromtimestamp(time.time() - self._options.token_days * 86400, timezone.utc))
        assert since is not None
        found = await run_steps_async(jobs_of(jobs, since), client.ask)
        await client.cancel_keys([key for key in jobs if key not in found])
        for key, status in found.items():
            self._work(key, tasks[key], self._follow(status.id, key, tasks[key]))
        return ours | {task.leg for key in found for task in tasks[key]}

    async def adopt_later(self, legs: Sequence[str]) -> None:
        """Adopt jobs as soon as the cluster answers; a task that turns out to have none has failed."""
        self._begin(self._adopt_answered(legs))

    async def _adopt_answered(self, legs: Sequence[str]) -> None:
        while True:
            try:
                found = await self.adopt(legs)
                break
            except Exception as error:
                self._log.warning("The jobs of %s tasks cannot be looked for at present: %s", len(legs), error)
            await asyncio.sleep(AGAIN)
        lost = [QueuedTask(leg, "", "", "") for leg in legs if leg not in found]
        self._fail(lost, "The scheduler ended before it had submitted a job")

    async def drop(self, legs: Iterable[str]) -> None:
        """Cancel the jobs of tasks that are not wanted any more; a job that others share goes on without them."""
        gone = {leg for leg in legs if leg in self._keys}
        keys = {self._keys[leg] for leg in gone}
        for leg in gone:
            del self._keys[leg]
            self._tell(News(leg, NewsKind.NOT_WANTED))
        void = keys - set(self._keys.values())
        for key in void:
            if task := self._working.pop(key, None):
                task.cancel()
        if void:
            client, _ = await self._reach()
            await client.patient(self._log).cancel_keys(sorted(void, key=str))
            self._remove(gone)

    async def close(self) -> None:
        """Leave all jobs as they are."""
        for task in list(self._tasks):
            task.cancel()
        if self._lease:
            await self._lease.__aexit__(None, None, None)

    async def _reach(self) -> tuple[AsyncSlurmClient, ExecutorFolder]:
        """The client, of the connection as it is now, and the executor's folder."""
        async with self._reaching:
            now = time.monotonic()
            if self._client is None or now - self._read_at > RENEWED:
                self._client, self._read_at = await self._renewed(), now
            if self._folder is None or now - self._made_at > CLEANED:
                packages = () if self._options.python else self._options.packages or installed_packages()
                keep = self._options.token_days + LONGEST
                request = PrepareFolder(self._options.root, self._options.python, packages, keep)
                self._folder, self._made_at = await self._client.patient(self._log).ask(request), now
            return self._client, self._folder

    async def _renewed(self) -> AsyncSlurmClient:
        try:
            lease = self._lend(self._options.conn_id)
            # With equal settings it is the same client.
            client, before = await lease.__aenter__(), self._lease
        except Exception as error:
            if self._client is None:
                raise
            # To Airflow a connection is missing, too, while a secrets backend does not answer.
            self._log.warning("The connection is used as it was, as it cannot be read at present: %s", error)
            return self._client
        self._lease = lease
        if before:
            await before.__aexit__(None, None, None)
        return client

    def _work(self, key: SubmissionKey, tasks: Sequence[QueuedTask], work: Coroutine[Any, Any, None]) -> None:
        self._keys |= dict.fromkeys((task.leg for task in tasks), key)
        self._working[key] = self._begin(work)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, client: AsyncSlurmClient, one: TaskJob) -> None:
        try:
            since = submitted_since(datetime.now(timezone.utc))
            submitted = await client.patient(self._log).submit(one.job, one.key, since=since)
            assert submitted.id is not None
        except Exception as error:
            self._fail(one.tasks, f"The job could not be submitted: {error}")
            return
        # By the key at its end the page Soperator finds the task.
        said = f"Job {submitted.id} submitted as {one.key.name(one.job.name or '')}"
        for task in one.tasks:
            self._tell(News(task.leg, NewsKind.SUBMITTED, said))
        await self._follow(submitted.id, one.key, one.tasks)

    async def _follow(self, job: JobId, key: SubmissionKey, tasks: Sequence[QueuedTask]) -> None:
        told: set[str] = set()
        while True:
            try:
                client, folder = await self._reach()
                async for status in client.watch(job, name=key.suffix_of(job), mine=True):
                    if status.is_over:
                        await self._end(client, folder, status, key, tasks)
                        return
                    self._tell_state(status, tasks, told)
            except Exception as error:
                self._log.warning("Job %s cannot be followed at present: %s", job, error)
            await asyncio.sleep(AGAIN)

    def _tell_state(self, status: JobStatus, tasks: Sequence[QueuedTask], told: set[str]) -> None:
        part = status.telling
        if part is None or status.trouble:
            return
        if part.state.is_active:
            kind, said = NewsKind.STARTED, f"Job {status.id} {sentence(status)}"
        elif part.state.is_pending and part.reason not in ("", "None"):
            kind, said = NewsKind.WAITING, f"Job {status.id} waits: {reason_in_words(part)}"
        else:
            return
        if said not in told:
            told.add(said)
            for task in tasks:
                self._tell(News(task.leg, kind, said))

    async def _end(
        self,
        client: AsyncSlurmClient,
        folder: ExecutorFolder,
        status: JobStatus,
        key: SubmissionKey,
        tasks: Sequence[QueuedTask],
    ) -> None:
        part, output = status.telling, f"{folder.root}/output/%j.out"
        code = part.exit_code.code if part and part.state.base is JobBase.FAILED else 0
        if status.succeeded or code == runner.NOT_WANTED:
            kind = NewsKind.SUCCEEDED if status.succeeded else NewsKind.NOT_WANTED
            self._over(tasks, kind, f"Job {status.id} {sentence(status)}")
        else:
            run = JobRun(client, BatchJob(command="true", output=output), [key])
            # Only accounting knows who has cancelled a job.
            status = await client.accounts.complete(status)
            diagnosis, last = await run.diagnosis(status), await run.last_lines(status)
            said = f"Job {status.id} {sentence(status)}"
            # The supervisor's own messages are no explanation, and a heading alone is none.
            last = [line for line in last if '{"timestamp":' not in line]
            last = last if len(last) > 1 else []
            why = _MEANING.get(code) or str(failure(status)).partition("\n")[0]
            self._over(tasks, NewsKind.FAILED, f"{said}: {why}", (*diagnosis, *last))
        self._working.pop(key, None)
        self._remove(task.leg for task in tasks)
        if part and (path := expand_filename(part.stdout or output, part)):
            self._ended.append(path)

    def _fail(self, tasks: Iterable[QueuedTask], said: str) -> None:
        self._over(tasks, NewsKind.FAILED, said)

    def _over(self, tasks: Iterable[QueuedTask], kind: NewsKind, said: str, lines: tuple[str, ...] = ()) -> None:
        for task in tasks:
            self._keys.pop(task.leg, None)
            self._tell(News(task.leg, kind, said, lines, task.log_path))

    def _remove(self, legs: Iterable[str]) -> None:
        """Remove the files of tasks, together with those of others that end at this time."""
        if not self._ended:
            self._begin(self._remove_ended())
        assert self._folder is not None
        self._ended += (path for leg in legs for path in self._folder.files_of(leg))

    async def _remove_ended(self) -> None:
        await asyncio.sleep(GATHERED)
        paths, self._ended = tuple(self._ended), []
        # What stays is removed with old files.
        with suppress(ClusterError):
            client, _ = await self._reach()
            await client.ask(RemoveFiles(paths))


async def read_log(options: ExecutorOptions, leg: str) -> tuple[str, str]:
    """The log of a task that runs, or its end, and the path on the cluster."""
    async with lent(options.conn_id) as client:
        home: PurePosixPath = await client.ask(WorkingFolder())
        path = ExecutorFolder(str(home / options.root), "").log_of(leg)
        [piece] = await client.ask(ReadPieces((Piece(path, 0, MOST_OF_LOG),)))
        data, size = piece.data, piece.size or 0
        if size > MOST_OF_LOG:
            [piece] = await client.ask(ReadPieces((Piece(path, size - MOST_OF_LOG, MOST_OF_LOG),)))
            # The first line is cut.
            data = piece.data.partition(b"\n")[2]
        return data.decode(errors="replace"), path
