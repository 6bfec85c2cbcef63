"""Submits the jobs of tasks and follows each to its end, in an event loop beside the scheduler.

What it learns goes to the executor as news. All jobs share one client, and so one poller.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Any

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.client.submissions import jobs_of
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.executors import runner
from airflow_provider_soperator.executors.books import News, NewsKind
from airflow_provider_soperator.executors.environment import ExecutorConnection, WithdrawLegs, lent
from airflow_provider_soperator.executors.options import ExecutorOptions
from airflow_provider_soperator.executors.task_jobs import QueuedTask, TaskJob
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.errors import LimitExceeded
from airflow_provider_soperator.slurm.files import Piece, ReadPieces, RemoveFiles, UnpackFiles
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_failures import JobError, JobNodeFailed, JobPreempted, JobTimedOut, failure
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus, expand_filename, sentence, state_of
from airflow_provider_soperator.slurm.pending_reasons import reason_in_words
from airflow_provider_soperator.slurm.requests.commands import run_steps_async
from airflow_provider_soperator.slurm.states import JobBase
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, submitted_since

#: Seconds until a job is followed again after a failure that does not pass by itself.
AGAIN = 10.0
#: Jobs that are tried in these seconds while a limit refuses them: each takes slurmctld some hundredths of a second.
_TRIED = 20
#: Files that are read together, and bytes of each.
_READ, _MOST = 200, 64 << 10

_MEANING = {
    runner.GONE: "the file of its workload was gone: it was removed, or executor_token_days were over",
    runner.UNREACHED: "its node did not reach Airflow's API server: see its address for nodes, and how busy it is",
    runner.REFUSED: "Airflow refused its token: executor_token_days were over, or clocks or jwt_secret differ",
    runner.UNFIT: "its Python has no Airflow: correct executor_python",
}
_AGAIN = "retries of its task run it again"
#: Remedies in place of those for a job that Slurm may requeue.
_REMEDIES: Mapping[type[JobError], str] = {
    JobNodeFailed: _AGAIN,
    JobPreempted: _AGAIN,
    JobTimedOut: "set a longer time_limit in executor_config, or save a checkpoint from which a retry goes on",
}


class JobKeeper:
    """The jobs of an executor's tasks. ``tell`` takes the news; ``env`` are variables that each job has.

    Each task that was handed over has one end: it succeeded, failed, is not wanted any more, or never had a job.
    """

    def __init__(
        self,
        options: ExecutorOptions,
        env: Mapping[str, str],
        tell: Callable[[News], None],
        log: Logger,
        lend: Callable[[str], AbstractAsyncContextManager[AsyncSlurmClient]] = lent,
    ) -> None:
        self._options, self._env, self._tell, self._log = options, env, tell, log
        self.connection = ExecutorConnection(options, log, lend)
        self._dropping = asyncio.Lock()
        #: The jobs by the legs of their tasks; the legs among them that are not wanted any more.
        self._jobs: dict[str, TaskJob] = {}
        self._unwanted: set[str] = set()
        #: Files of jobs that have ended, by the legs of their tasks: Airflow may not know it yet.
        self._ended: dict[str, list[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = asyncio.Semaphore(_TRIED)

    async def submit(self, tasks: Sequence[QueuedTask]) -> None:
        """Submit the jobs of tasks that became ready together."""
        if self.connection.made is None and not self._options.python:
            said = "The environment on the cluster is made, if it is not there"
            for task in tasks:
                self._tell(News(task.leg, NewsKind.WAITING, said))
        try:
            _, folder = await self.connection.prepared()
            jobs, rejected = folder.plan(tasks, self._options.defaults, self._env)
            for task in tasks:
                if error := rejected.get(task.leg):
                    self._over([task], _failed(f"The job is not submitted: {error}"))
            tasks = [task for task in tasks if task.leg not in rejected]
            if jobs:
                await self.connection.ask(UnpackFiles(folder.tasks, folder.archive(jobs)))
        except Exception as error:
            self._over(tasks, _failed(f"The job could not be submitted: {error}", getattr(error, "lines", ())))
            return
        for one in jobs:
            self._work(one, self._run(one))

    async def adopt(self, legs: Sequence[str]) -> set[str]:
        """Follow the jobs that another executor has submitted, also if they have ended since; returns whose are found.

        What was begun there for others, and may yet be completed on the cluster, is withdrawn.
        """
        client, folder = await self.connection.reach()
        ours = {leg for leg in legs if leg in self._jobs}
        legs = [leg for leg in legs if leg not in ours]
        jobs: dict[SubmissionKey, TaskJob] = {}
        for start in range(0, len(legs), _READ):
            some = legs[start : start + _READ]
            pieces = await client.ask(ReadPieces(tuple(Piece(f"{folder.tasks}/{leg}", 0, _MOST) for leg in some)))
            for leg, piece in zip(some, pieces, strict=True):
                # What runs as the user of the jobs can write there.
                with suppress(AttributeError, KeyError, TypeError, ValueError):
                    said = json.loads(piece.data)
                    key, task = SubmissionKey(said["key"]), QueuedTask(leg, "", "", "", workload={**said["workload"]})
                    before = jobs[key].tasks if key in jobs else ()
                    job = BatchJob(command="true", name=said["name"])
                    jobs[key] = TaskJob(job, key, (*before, task), said["tasks"])
        if not jobs:
            return ours
        named = {key: one.job for key, one in jobs.items()}
        found = await run_steps_async(jobs_of(named, _since(self._options.token_days)), client.ask)
        await client.cancel_keys(lost := [key for key in jobs if key not in found])
        for key in lost:
            self._ended |= {task.leg: [*folder.files_of(task.leg)] for task in jobs[key].tasks}
        for key, status in found.items():
            self._work(jobs[key], self._follow(status.id, jobs[key]))
        return ours | {task.leg for key in found for task in jobs[key].tasks}

    async def adopt_later(self, legs: Sequence[str]) -> None:
        """Adopt jobs as soon as the cluster answers, and tell which tasks turn out to have none."""
        while True:
            try:
                found = await self.adopt(legs)
                if lost := [leg for leg in legs if leg not in found]:
                    # A scheduler that hangs may yet submit their jobs.
                    client, folder = await self.connection.reach()
                    await client.ask(WithdrawLegs(folder.tasks, folder.withdrawal(lost)))
                break
            except Exception as error:
                self._log.warning("The jobs of %s tasks cannot be looked for at present: %s", len(legs), error)
            await asyncio.sleep(AGAIN)
        self._over([QueuedTask(leg, "", "", "") for leg in lost], News("", NewsKind.NOT_SUBMITTED))

    @property
    def ended(self) -> Collection[str]:
        """Legs whose jobs have ended, and whose files are still there."""
        return self._ended.keys()

    async def drop(self, legs: Collection[str]) -> None:
        """Cancel the jobs of tasks that Airflow does not wait for, and remove the files of those that have ended.

        A job that others share goes on without them. Each look also finds out whether the connection was changed.
        """
        if self._dropping.locked() or not (legs or self._jobs):
            # The next look finds the same.
            return
        async with self._dropping:
            unwanted = {leg for leg in legs if leg in self._jobs}
            self._unwanted |= unwanted
            # Another scheduler may have adopted the other tasks of a job.
            numbers = Counter(self._jobs[leg].key for leg in self._unwanted)
            void = {one.key for one in map(self._jobs.__getitem__, unwanted) if numbers[one.key] == one.size}
            # Its end is told once it is there, as of any job.
            await self.connection.patiently(lambda client: client.cancel_keys(sorted(void, key=str)))
            ended = self._ended.keys() & legs
            paths = [path for leg in ended for path in self._ended[leg]]
            # What stays is removed with old files.
            with suppress(ClusterError):
                if paths:
                    await self.connection.ask(RemoveFiles(tuple(paths)))
            for leg in ended:
                del self._ended[leg]

    async def close(self) -> None:
        """Leave all jobs as they are."""
        for task in list(self._tasks):
            task.cancel()
        await self.connection.close()

    @property
    def env(self) -> dict[str, str]:
        """The variables that each job has."""
        return {**self._env, **(self._options.defaults.job.get("env") or {})}

    def _work(self, one: TaskJob, work: Coroutine[Any, Any, None]) -> None:
        self._jobs |= dict.fromkeys((task.leg for task in one.tasks), one)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, one: TaskJob) -> None:
        patiently, waits = self.connection.patiently, False
        while True:
            try:
                _, submitted = await patiently(lambda client: client.submit(one.job, one.key, since=_since()))
                assert submitted.id is not None
                break
            except Exception as error:
                said = str(error)
                # That other jobs are in the queue passes, as a queue that is full. So Slurm names all such limits.
                goes_later = isinstance(error, LimitExceeded) and "SubmitJob" in error.said
            if goes_later:
                if not waits:
                    for task in one.tasks:
                        self._tell(News(task.leg, NewsKind.WAITING, f"The job is not submitted yet: {said}"))
                waits = True
                async with self._refused:
                    await asyncio.sleep(AGAIN)
            if not goes_later or self._unwanted.issuperset(task.leg for task in one.tasks):
                self._over(one.tasks, _failed(f"The job could not be submitted: {said}"))
                return
        await self._follow(submitted.id, one)

    async def _follow(self, job: JobId, one: TaskJob) -> None:
        # By the key at its end the page Soperator finds the task. What another scheduler told may be lost with it.
        said = f"Job {job} submitted as {one.key.name(one.job.name or '')}"
        for task in one.tasks:
            self._tell(News(task.leg, NewsKind.SUBMITTED, said))
        told: set[tuple[str, int]] = set()
        while True:
            try:
                client, _ = await self.connection.reach()
                async for status in client.watch(job, name=one.key.suffix_of(job), mine=True):
                    if status.is_over:
                        await self._end(status, one)
                        return
                    self._tell_state(status, one.tasks, told)
            except Exception as error:
                self._log.warning("Job %s cannot be followed at present: %s", job, error)
            await asyncio.sleep(AGAIN)

    def _tell_state(self, status: JobStatus, tasks: Sequence[QueuedTask], told: set[tuple[str, int]]) -> None:
        part = status.telling
        if part is None or status.trouble:
            return
        if part.state.is_configuring:
            kind = NewsKind.WAITING
            said = f"Job {status.id} waits: its nodes boot, or run their prolog ({state_of(part)})"
        elif part.state.is_active:
            kind, said = NewsKind.STARTED, f"Job {status.id} {sentence(status)}"
        elif part.state.is_pending and part.reason not in ("", "None"):
            kind, said = NewsKind.WAITING, f"Job {status.id} waits: {reason_in_words(part)}"
        else:
            return
        # One that was put back may wait for the same once more.
        if (said, part.restarts) not in told:
            told.add((said, part.restarts))
            for task in tasks:
                self._tell(News(task.leg, kind, said))

    async def _end(self, status: JobStatus, one: TaskJob) -> None:
        client, folder = await self.connection.reach()
        part, output = status.telling, f"{folder.root}/output/%j.out"
        code = part.exit_code.code if part and part.state.base is JobBase.FAILED else 0
        path = expand_filename(part.stdout or output, part) if part else None
        # An operator may have led the output of a job that waited elsewhere.
        files = [path] if path and PurePosixPath(path).parent == PurePosixPath(output).parent else []
        # Of a thousand tasks that are cleared together none needs a diagnosis.
        is_wanted = any(task.leg not in self._unwanted for task in one.tasks)
        if status.succeeded or code == runner.NOT_WANTED or not is_wanted:
            kind = NewsKind.SUCCEEDED if status.succeeded else NewsKind.NOT_WANTED
            self._over(one.tasks, News("", kind, f"Job {status.id} {sentence(status)}"), files)
            return
        run = JobRun(client, BatchJob(command="true", output=output), [one.key])
        # Only accounting knows who has cancelled a job.
        status = await client.accounts.complete(status)
        diagnosis, last = await run.diagnosis(status), await run.last_lines(status)
        # The supervisor's own messages are no explanation, and a heading alone is none.
        last = [line for line in last if '{"timestamp":' not in line]
        lines = (*diagnosis, *(last if len(last) > 1 else ()))
        error = failure(status)
        why = _MEANING.get(code) or (error and _REMEDIES.get(type(error))) or str(error).partition("\n")[0]
        self._over(one.tasks, _failed(f"Job {status.id} {sentence(status)}: {why}", lines), files)

    def _over(self, tasks: Iterable[QueuedTask], news: News, files: Sequence[str] = ()) -> None:
        """Tell the end of tasks, and note what is left of them."""
        for task in tasks:
            self._jobs.pop(task.leg, None)
            if folder := self.connection.folder:
                self._ended[task.leg] = [*folder.files_of(task.leg), *files]
            is_wanted = task.leg not in self._unwanted
            self._unwanted.discard(task.leg)
            told = news if is_wanted else News("", NewsKind.NOT_WANTED)
            self._tell(replace(told, leg=task.leg, log_path=task.log_path))


def _failed(said: str, lines: tuple[str, ...] = ()) -> News:
    return News("", NewsKind.FAILED, said, lines)


def _since(days: float = 0.0) -> datetime:
    """When a job that was handed over so many days ago was submitted at the earliest."""
    since = submitted_since(datetime.fromtimestamp(time.time() - days * 86400, timezone.utc))
    assert since is not None
    return since
