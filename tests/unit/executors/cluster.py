"""A Slurm with the files of an executor, in memory, and a keeper that works on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.executors.books import News, NewsKind
from airflow_provider_soperator.executors.environment import PrepareFolder
from airflow_provider_soperator.executors.job_keeper import JobKeeper
from airflow_provider_soperator.executors.options import ExecutorOptions
from airflow_provider_soperator.executors.task_jobs import ExecutorFolder
from airflow_provider_soperator.slurm.files import RemoveFiles, UnpackFiles, WorkingFolder
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.notations import ExitCode
from airflow_provider_soperator.slurm.requests import CancelJobs, Request
from airflow_provider_soperator.slurm.states import JobState
from tests.shared_files import carried_out
from tests.unit.client.tracking import Log, Slurm

ROOT = "/shared/airflow/executor"


class ClusterOfTasks(Slurm):
    """A Slurm with the files of an executor."""

    def __init__(self) -> None:
        super().__init__(accounting=[])
        self.preparation: Exception | None = None
        #: The folder of the connection's user.
        self.home = "/shared"
        #: Seconds that requests take.
        self.seconds: dict[type[Request[Any]], float] = {}

    async def ask(self, request: Request[Any]) -> Any:
        if isinstance(request, (PrepareFolder, RemoveFiles, UnpackFiles, WorkingFolder)):
            self.asked.append(request)
            self.before()
            await asyncio.sleep(self.seconds.get(type(request), 0.0))
        if isinstance(request, PrepareFolder):
            if self.preparation:
                raise self.preparation
            return ExecutorFolder(f"{self.home}/airflow/executor", "/venv/bin/python")
        if isinstance(request, WorkingFolder):
            return PurePosixPath(self.home)
        if isinstance(request, (UnpackFiles, RemoveFiles)):
            return carried_out(request, self.files)
        if isinstance(request, CancelJobs):
            await super().ask(request)
            for job in request.ids or ():
                self.end(job, "CANCELLED")
            return None
        return await super().ask(request)

    def jobs(self) -> list[JobId]:
        """All jobs, each element of an array on its own."""
        self.queue = [
            replace(entry, id=JobId(entry.id.job, index)) if index is not None else entry
            for entry in self.queue
            for index in list(entry.id.indices()) or [None]
        ]
        return [entry.id for entry in self.queue]

    def end(self, job: JobId, state: str, code: int = 0) -> None:
        self.jobs()
        self.queue = [
            replace(one, state=JobState.parse(state), exit_code=ExitCode(code, 0)) if one.id == job else one
            for one in self.queue
        ]


class Away(ClusterError):
    retryable = True


class LoginNode:
    """The way to a Slurm, which a connection names."""

    def __init__(self, slurm: ClusterOfTasks, is_away: bool = False) -> None:
        self._slurm, self.is_away = slurm, is_away

    async def ask(self, request: Request[Any]) -> Any:
        if self.is_away:
            raise Away("connection refused")
        return await self._slurm.ask(request)

    async def close(self) -> None: ...


class Keeper:
    """A keeper, and the news that it has told."""

    def __init__(self, slurm: ClusterOfTasks) -> None:
        self.slurm, self.news, self.log = slurm, list[News](), Log()
        self.connect(LoginNode(slurm))
        options = ExecutorOptions(python="/venv/bin/python")
        self.keeper = JobKeeper(options, {}, self.news.append, self.log, lend=self._lend)  # type: ignore[arg-type]

    def connect(self, login: LoginNode) -> None:
        """Let the connection name a login node."""
        self._client = AsyncSlurmClient(login)  # type: ignore[arg-type]

    @asynccontextmanager
    async def _lend(self, _: str) -> AsyncIterator[AsyncSlurmClient]:
        client = self._client
        yield client
        if client is not self._client:
            await client.close()

    async def until(self, leg: str, kind: NewsKind) -> News:
        """Wait for news of a task."""
        while True:
            for one in self.news:
                if (one.leg, one.kind) == (leg, kind):
                    return one
            await asyncio.sleep(1)

    def ends(self) -> dict[str, list[NewsKind]]:
        """All ends that were told of each task."""
        passing = (NewsKind.SUBMITTED, NewsKind.WAITING, NewsKind.STARTED)
        found: dict[str, list[NewsKind]] = {}
        for one in self.news:
            if one.kind not in passing:
                found.setdefault(one.leg, []).append(one.kind)
        return found
