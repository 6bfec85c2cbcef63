"""A process with pyslurm in it, which answers one call at a time, and is started again after it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.slurm.errors import AuthenticationFailed, ControllerUnreachable, SlurmError, classify
from airflow_provider_soperator.slurm.requests.base import TIMEOUT
from airflow_provider_soperator.transports.errors import CommandTimedOut, ConnectFailed, ConnectionLost
from airflow_provider_soperator.transports.local import kill_session
from airflow_provider_soperator.transports.pyslurm_calls import Call
from airflow_provider_soperator.transports.pyslurm_program import MARK

T = TypeVar("T")

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


def _line(call: Call[Any]) -> bytes:
    return json.dumps([call.function, call.arguments]).encode() + b"\n"


def _read(call: Call[T], answer: dict[str, Any]) -> T:
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

    async def call(self, call: Call[T]) -> T:
        async with self._turn:
            if self._process is None:
                self._process = await _Process.start(self._python)
            try:
                return _read(call, await self._process.exchange(_line(call)))
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
