"""What an executor has on the cluster: its folder, and the Python there that has Airflow, a given one or a venv.

A venv is named by the content of what is installed in it, so that a change makes another one beside it. The connection
may be corrected at any time.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from packaging.utils import canonicalize_name

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.executors.options import ExecutorOptions
from airflow_provider_soperator.executors.task_jobs import ExecutorFolder
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.files import FileError, FileRequest, Piece, ReadPieces, UnpackFiles, WorkingFolder
from airflow_provider_soperator.slurm.requests.commands import Command, CommandOutput, Request
from airflow_provider_soperator.slurm.sbatch_arguments import by_bash

T = TypeVar("T")

#: Seconds after which the connection is read anew, and the folder is made anew, in which old files are removed then.
RENEWED, CLEANED = 60.0, 86400.0
#: Days that a task may run after its token is over: what adopts it needs its file.
LONGEST = 90
#: Bytes of the end of a log.
MOST_OF_LOG = 4 << 20
#: Lines, and bytes, of why a venv cannot be made.
_MOST_LINES, _MOST_TOLD = 30, 4 << 10
#: Seconds in which the packages can be installed.
_INSTALLATION = 3600.0


@dataclass(frozen=True)
class PrepareFolder(FileRequest[ExecutorFolder]):
    """Make the folder, and the environment if there is none; files of tasks that are older than ``keep`` days go.

    A relative ``root`` is in the folder in which the cluster's commands run.
    """

    doing = "preparing {root} for tasks"
    root: str
    python: str = ""
    packages: tuple[str, ...] = ()
    keep: int = 8
    airflow: str = field(default_factory=lambda: metadata.version("apache-airflow-core"))

    @property
    def environment(self) -> str:
        """The name of the environment, by its content; that of wheels among it is added where they lie."""
        version = ".".join(platform.python_version_tuple()[:2])
        return f"{version}-{hashlib.sha256(chr(10).join(self.packages).encode()).hexdigest()[:16]}"

    def command(self) -> Command:
        program = Path(__file__).with_name("environment.bash").read_text()
        words = (self.root, self.python, self.airflow, self.environment, str(self.keep))
        stdin = "".join(f"{package}\n" for package in self.packages).encode()
        return Command(by_bash(program, "environment", *words), stdin=stdin, timeout=_INSTALLATION)

    def read(self, answer: CommandOutput) -> ExecutorFolder:
        root, python = self.check(answer).text.splitlines()[-2:]
        return ExecutorFolder(root, python)

    def error(self, answer: CommandOutput) -> SlurmError:
        # The last line says what to do, and those before it, of pip or uv, why.
        *before, last = answer.stderr[-_MOST_TOLD:].strip().splitlines()[-_MOST_LINES:] or [b""]
        what, _, remedy = last.partition(b"\t")
        error = FileError(super().error(replace(answer, stderr=what)).said, remedy=remedy.decode(errors="replace"))
        error.lines = tuple(line.decode(errors="replace") for line in before)
        return error


@dataclass(frozen=True)
class WithdrawLegs(UnpackFiles):
    """Unpack what keeps jobs from starting some legs; the folder is made if it is not there yet."""

    def command(self) -> Command:
        unpack, program = super().command(), 'mkdir -p -m 700 -- "$1" && shift && exec "$@"'
        return replace(unpack, argv=("sh", "-c", program, "withdraw", self.folder, *unpack.argv))


def installed_packages() -> tuple[str, ...]:
    """The packages of this process at their versions, without those that come from no index."""
    local = local_packages()
    found = (f"{one.name}=={one.version}" for one in _distributions() if one.name not in local)
    return tuple(sorted(found, key=str.lower))


def local_packages() -> set[str]:
    """The names of the packages of this process that come from no index."""
    return {one.name for one in _distributions() if one.read_text("direct_url.json")}


def _distributions() -> Collection[metadata.Distribution]:
    """What this process has of each package, without copies that another one on its path hides."""
    found: dict[str, metadata.Distribution] = {}
    for one in metadata.distributions():
        # Broken ones have no name.
        if one.name:
            found.setdefault(canonicalize_name(one.name), one)
    return found.values()


def lent(conn_id: str) -> AbstractAsyncContextManager[AsyncSlurmClient]:
    """The client of a connection."""
    # Imported here, as every command of Airflow's imports the executor.
    from airflow_provider_soperator.hooks.slurm import SlurmHook

    return SlurmHook(conn_id).async_client()


class ExecutorConnection:
    """The client of a connection, as that is now, and the folder of the executor behind it."""

    def __init__(
        self,
        options: ExecutorOptions,
        log: Logger,
        lend: Callable[[str], AbstractAsyncContextManager[AsyncSlurmClient]],
    ) -> None:
        self._options, self._log, self._lend = options, log, lend
        self._lease: AbstractAsyncContextManager[AsyncSlurmClient] | None = None
        self._client: AsyncSlurmClient | None = None
        #: Where files are; and the same with the Python that tasks run with, once that is there.
        self.folder: ExecutorFolder | None = None
        self.made: ExecutorFolder | None = None
        self._read_at = self._made_at = 0.0
        self._reaching, self._making = asyncio.Lock(), asyncio.Lock()
        #: The last failure to make that, and when it was.
        self._failed: tuple[float, Exception] | None = None

    async def reach(self) -> tuple[AsyncSlurmClient, ExecutorFolder]:
        """The client, of the connection as it is now, and where files are."""
        while True:
            client = await self._connected()
            if self.folder:
                return client, self.folder
            asked, folder = await self.patiently(lambda client: folder_of(self._options, client))
            if asked is self._client:
                self.folder = folder

    async def _connected(self) -> AsyncSlurmClient:
        async with self._reaching:
            now = time.monotonic()
            if self._client is None or now - self._read_at > RENEWED:
                client, self._read_at = await self._renewed(), now
                if client is not self._client:
                    # It may be another user's, or lead to another cluster.
                    self._client, self.folder, self.made, self._failed = client, None, None, None
            return self._client

    async def ask(self, request: Request[T]) -> T:
        return (await self.patiently(lambda client: client.ask(request)))[1]

    async def patiently(self, do: Callable[[AsyncSlurmClient], Coroutine[Any, Any, T]]) -> tuple[AsyncSlurmClient, T]:
        """Wait while the cluster is away, begin anew if the connection changes; returns the client that did it, too."""
        while True:
            client = await self._connected()
            doing = asyncio.ensure_future(do(client.patient(self._log)))
            try:
                while not doing.done() and client is await self._connected():
                    await asyncio.wait({doing}, timeout=RENEWED)
                # One that was replaced is closed after a while.
                if doing.done() and (client is self._client or not doing.exception()):
                    return client, doing.result()
            finally:
                doing.cancel()
                # What has been sent has its answer first.
                await asyncio.wait({doing})

    async def prepared(self) -> tuple[AsyncSlurmClient, ExecutorFolder]:
        """The client, and the folder with the Python of the tasks, which take a while if they are not there."""
        await self.reach()
        asked_at = time.monotonic()
        async with self._making:
            while True:
                client, now = await self._connected(), time.monotonic()
                if self.made and now - self._made_at <= CLEANED:
                    return client, self.made
                if self._failed and self._failed[0] > asked_at:
                    # What has waited while pip failed, some minutes, does not wait for the same once more.
                    raise self._failed[1]
                try:
                    asked, made = await self.patiently(self._make)
                except Exception as error:
                    self._failed = time.monotonic(), error
                    raise
                if asked is self._client:
                    self.made, self._made_at = made, now

    async def _make(self, client: AsyncSlurmClient) -> ExecutorFolder:
        packages = () if self._options.python else self._options.packages or installed_packages()
        keep = self._options.token_days + LONGEST
        return await client.ask(PrepareFolder(self._options.root, self._options.python, packages, keep))

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

    async def close(self) -> None:
        if self._lease:
            await self._lease.__aexit__(None, None, None)


async def folder_of(options: ExecutorOptions, client: AsyncSlurmClient) -> ExecutorFolder:
    """Where the files of an executor are."""
    home: PurePosixPath = await client.ask(WorkingFolder())
    return ExecutorFolder(str(home / options.root), options.python)


async def read_log(options: ExecutorOptions, leg: str) -> tuple[str, str]:
    """The log of a task that runs, or its end, and the path on the cluster."""
    async with lent(options.conn_id) as client:
        path = (await folder_of(options, client)).log_of(leg)
        [end] = await client.ask(ReadPieces((Piece(path, -MOST_OF_LOG, MOST_OF_LOG),)))
        # The first line is cut.
        data = end.data.partition(b"\n")[2] if (end.size or 0) > MOST_OF_LOG else end.data
        return data.decode(errors="replace"), path
