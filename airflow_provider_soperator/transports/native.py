"""Slurm on this machine through pyslurm, and through Slurm's own commands where those know more.

pyslurm spares a process for each question that it answers exactly: docs/native.md lists what pyslurm 25.11 leaves out
or alters of the others. All else goes to the commands, which a node of the cluster has beside libslurm.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import singledispatch
from pathlib import Path
from typing import Any, Generic, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Partition
from airflow_provider_soperator.slurm.errors import AuthenticationFailed, ControllerUnreachable, SlurmError, classify
from airflow_provider_soperator.slurm.notations import Duration, NoDuration
from airflow_provider_soperator.slurm.requests import (
    CommentNodes,
    Drain,
    ListPartitions,
    PowerDown,
    PowerUp,
    Request,
    ResumeNodes,
    Undrain,
)
from airflow_provider_soperator.slurm.requests.commands import TIMEOUT
from airflow_provider_soperator.transports.local import SHELL, LocalTransport, kill_session
from airflow_provider_soperator.transports.pyslurm_program import MARK
from airflow_provider_soperator.transports.transport_errors import CommandTimedOut, ConnectFailed, ConnectionLost

T = TypeVar("T")


@dataclass(frozen=True)
class _PyslurmCall(Generic[T]):
    """A function of ``pyslurm_program``, what it is given, and what its answer means."""

    function: str
    arguments: dict[str, str]
    read: Callable[[Any], T]


@singledispatch
def call_for(request: Request[Any]) -> _PyslurmCall[Any] | None:
    """How pyslurm is asked; None if the request is left to Slurm's commands."""
    return None


@call_for.register
def _(request: ListPartitions) -> _PyslurmCall[tuple[Partition, ...]]:
    return _PyslurmCall("partitions", {}, lambda answer: tuple(map(_partition, answer)))


@call_for.register
def _(request: PowerUp) -> _PyslurmCall[None]:
    return _update(request, request.names, state="POWER_UP")


@call_for.register
def _(request: PowerDown) -> _PyslurmCall[None]:
    reason = {"reason": request.reason} if request.reason else {}
    return _update(request, request.names, state=request.mode.value.upper(), **reason)


@call_for.register
def _(request: Drain) -> _PyslurmCall[None]:
    return _update(request, request.names, state="DRAIN", reason=request.reason)


@call_for.register
def _(request: Undrain) -> _PyslurmCall[None]:
    return _update(request, request.names, state="UNDRAIN")


@call_for.register
def _(request: ResumeNodes) -> _PyslurmCall[None]:
    return _update(request, request.names, state="RESUME")


@call_for.register
def _(request: CommentNodes) -> _PyslurmCall[None] | None:
    # Of an empty text pyslurm makes none, and the node would keep its comment.
    return _update(request, request.names, comment=request.comment) if request.comment else None


def _update(request: Request[None], names: tuple[str, ...], **changes: str) -> _PyslurmCall[None]:
    # Refuses what cannot be said, as it does on every other way.
    request.command()
    return _PyslurmCall("update_nodes", {"names": hostlist.fold(names), **changes}, lambda answer: None)


def _partition(said: dict[str, Any]) -> Partition:
    return Partition(
        name=said["name"],
        state=said["state"],
        is_default=said["is_default"],
        is_hidden=said["is_hidden"],
        nodelist=said["nodes"] or "",
        total_nodes=said["total_nodes"],
        max_time=_minutes(said["max_time"]),
        default_time=_minutes(said["default_time"]),
        priority_tier=said["priority_tier"] or 0,
    )


def _minutes(said: int | str | None) -> Duration:
    if said is None:
        return NoDuration.UNKNOWN
    return timedelta(minutes=said) if isinstance(said, int) else NoDuration(said)


#: The Python that has pyslurm; a container or another root can be entered with it.
PYTHON = (sys.executable,)
#: Seconds to load libslurm, which may have to fetch its configuration from slurmctld.
STARTUP = 30.0

_CHUNK = 64 * 1024
_REMEDY = (
    "see that `sinfo` works on this machine and that pyslurm has the version of its Slurm (it comes with "
    "airflow-provider-soperator[pyslurm]), or choose the transport `local`, which needs Slurm's commands only"
)


def _command(python: tuple[str, ...]) -> tuple[str, ...]:
    # As source: the other root need not have this file, nor its Python the provider.
    return *python, "-c", Path(__file__).with_name("pyslurm_program.py").read_text()


class _Answers:
    """What the process has said: answers, and between them the log of libslurm, which names the cause of its end."""

    def __init__(self) -> None:
        self._rest = b""
        self._answers: deque[dict[str, Any]] = deque()
        self._log: deque[str] = deque(maxlen=3)

    def feed(self, data: bytes) -> None:
        if not data:
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            _, mark, answer = line.decode(errors="backslashreplace").rpartition(MARK)
            if mark:
                self._answers.append(json.loads(answer))
            else:
                self._log.append(answer.strip())

    def take(self) -> dict[str, Any] | None:
        return self._answers.popleft() if self._answers else None

    def last_words(self) -> str:
        # It names itself before each line.
        return "; ".join(line.partition(": ")[2] or line for line in self._log) or "it said nothing"


@contextlib.contextmanager
def _starting(answers: _Answers) -> Iterator[None]:
    """Whatever keeps the process from greeting is told with its cause."""
    try:
        yield
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise ConnectFailed(f"pyslurm was not loaded within {STARTUP:g} s", _REMEDY) from error
    except EOFError as error:
        raise ConnectFailed(f"libslurm has ended the process ({answers.last_words()})", _REMEDY) from error
    except OSError as error:
        raise ConnectFailed(f"no process for pyslurm could be started ({error})", _REMEDY) from error


@contextlib.contextmanager
def _calling(answers: _Answers) -> Iterator[None]:
    try:
        yield
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise CommandTimedOut("pyslurm", TIMEOUT) from error
    except (EOFError, OSError) as error:
        raise ConnectionLost(f"pyslurm's process ended ({answers.last_words()})", "it is started again") from error


def _check(greeting: dict[str, Any]) -> None:
    if greeting["trouble"]:
        raise ConnectFailed(f"pyslurm cannot be used here ({greeting['trouble']})", _REMEDY)


def _line(call: _PyslurmCall[Any]) -> bytes:
    return json.dumps([call.function, call.arguments]).encode() + b"\n"


def _result(call: _PyslurmCall[T], answer: dict[str, Any]) -> T:
    if "refused" in answer:
        raise classify("pyslurm", answer["refused"])
    return call.read(answer["answer"])


def _ends_it(error: BaseException) -> bool:
    """Whether the process has to be started again after this.

    libslurm reads its configuration once. Where slurmctld is and how to prove who asks may have changed since, so a
    question that did not get through is the last one; all other settings are slurmctld's own.
    """
    return not isinstance(error, SlurmError) or isinstance(error, (AuthenticationFailed, ControllerUnreachable))


class _Process:
    """The process."""

    def __init__(self, process: asyncio.subprocess.Process, answers: _Answers) -> None:
        self._process = process
        self._answers = answers

    @classmethod
    async def start(cls, python: tuple[str, ...]) -> _Process:
        answers = _Answers()
        with _starting(answers):
            process = await asyncio.create_subprocess_exec(
                *_command(python),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self = cls(process, answers)
        try:
            with _starting(answers):
                async with timeout(STARTUP):
                    _check(await self._receive())
        except BaseException:
            await self.close()
            raise
        return self

    async def exchange(self, line: bytes) -> dict[str, Any]:
        assert self._process.stdin is not None
        with _calling(self._answers):
            self._process.stdin.write(line)
            async with timeout(TIMEOUT):
                return await self._receive()

    def kill(self) -> None:
        if self._process.returncode is None:
            kill_session(self._process.pid)

    async def close(self) -> None:
        self.kill()
        await self._process.wait()

    async def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while (answer := self._answers.take()) is None:
            self._answers.feed(await self._process.stdout.read(_CHUNK))
        return answer


class Pyslurm:
    """Calls pyslurm for tasks, which wait for their turn."""

    def __init__(self, python: tuple[str, ...] = PYTHON) -> None:
        self._python = python
        self._turn = asyncio.Lock()
        self._process: _Process | None = None

    async def call(self, call: _PyslurmCall[T]) -> T:
        async with self._turn:
            if self._process is None:
                self._process = await _Process.start(self._python)
            try:
                return _result(call, await self._process.exchange(_line(call)))
            except BaseException as error:
                if _ends_it(error):
                    await self._end()
                raise

    async def close(self) -> None:
        if process := self._process:
            process.kill()
        async with self._turn:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process:
            await process.close()


class NativeTransport:
    """Asks pyslurm in a process of its own, and shells of this machine.

    ``python`` and ``shell`` are what starts the one and the other; a container or another root can be entered with it.
    """

    def __init__(self, python: tuple[str, ...] = PYTHON, shell: tuple[str, ...] = SHELL) -> None:
        self._pyslurm = Pyslurm(python)
        self._commands = LocalTransport(shell)

    async def ask(self, request: Request[T]) -> T:
        call = call_for(request)
        return await self._pyslurm.call(call) if call else await self._commands.ask(request)

    async def close(self) -> None:
        try:
            await self._pyslurm.close()
        finally:
            await self._commands.close()
