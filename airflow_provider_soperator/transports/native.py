"""Transport by pyslurm on this machine, and by Slurm's own commands where they know more.

pyslurm saves a process for each request that it answers exactly; docs/native.md lists what pyslurm 25.11 omits or
alters in others. Those go to the commands, which every node of the cluster has.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from pathlib import Path
from typing import Any, TypeVar, cast

from async_timeout import timeout

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Partition
from airflow_provider_soperator.slurm.errors import AuthenticationFailed, ControllerUnreachable, SlurmError, classify
from airflow_provider_soperator.slurm.requests import ListPartitions, NodeOrder, Request
from airflow_provider_soperator.slurm.requests.commands import MEGABYTE, TIMEOUT
from airflow_provider_soperator.transports.local import SHELL, LocalTransport, kill_session
from airflow_provider_soperator.transports.pyslurm_program import MARK
from airflow_provider_soperator.transports.transport_errors import CommandTimedOut, ConnectFailed, ConnectionLost

T = TypeVar("T")


#: The Python that has pyslurm, perhaps in a container or another root.
PYTHON = (sys.executable,)
#: Seconds to load libslurm, which may have to fetch its configuration from slurmctld.
STARTUP = 30.0
#: Bytes of one answer.
_LONGEST_ANSWER = 64 * MEGABYTE

_REMEDY = (
    "check that `sinfo` works on this machine and that pyslurm has the version of its Slurm (it comes with "
    "airflow-provider-soperator[pyslurm]), or choose the transport `local`, which needs Slurm's commands only"
)


class NativeTransport:
    """Sends requests to pyslurm in a process of its own, and to shells on this machine.

    ``python`` and ``shell`` start these, perhaps in a container or another root.
    """

    def __init__(self, python: tuple[str, ...] = PYTHON, shell: tuple[str, ...] = SHELL) -> None:
        self._python = python
        self._commands = LocalTransport(shell)
        #: pyslurm answers one call at a time.
        self._turn = asyncio.Lock()
        self._process: _PyslurmProcess | None = None

    async def ask(self, request: Request[T]) -> T:
        call = call_for(request)
        if call is None:
            return await self._commands.ask(request)
        async with self._turn:
            if self._process is None:
                self._process = await _PyslurmProcess.start(self._python)
            try:
                answer = await self._process.exchange(call)
                is_list = isinstance(request, ListPartitions)
                return cast("T", tuple(Partition(**one) for one in answer) if is_list else None)
            except BaseException as error:
                # libslurm reads its configuration once, and slurmctld's address and the authentication may have changed
                # since. So the process is replaced after a request that did not reach slurmctld.
                if not isinstance(error, SlurmError) or isinstance(
                    error, (AuthenticationFailed, ControllerUnreachable)
                ):
                    await self._end()
                raise

    async def close(self) -> None:
        try:
            if self._process:
                self._process.kill()
            async with self._turn:
                await self._end()
        finally:
            await self._commands.close()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process:
            await process.close()


def call_for(request: Request[Any]) -> tuple[str, dict[str, str]] | None:
    """A function of ``pyslurm_program`` and its arguments; None if the request is left to Slurm's commands."""
    if isinstance(request, ListPartitions):
        return "partitions", {}
    if isinstance(request, NodeOrder):
        # Rejects invalid values, as on every other transport.
        request.command()
        state, reason = request.change()
        changes = {"state": state.upper()} | ({"reason": reason} if reason else {})
        return "update_nodes", {"names": hostlist.fold(request.names), **changes}
    return None


class _PyslurmProcess:
    """A process that runs pyslurm. It prints answers, with libslurm's log between them."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._log: deque[str] = deque(maxlen=3)

    @classmethod
    async def start(cls, python: tuple[str, ...]) -> _PyslurmProcess:
        # As source: the other root may lack this file, and its Python the provider.
        program = Path(__file__).with_name("pyslurm_program.py").read_text()
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *(*python, "-c", program),
                stdin=pipe,
                stdout=pipe,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                limit=_LONGEST_ANSWER,
            )
        except OSError as error:
            raise ConnectFailed(f"cannot start a process for pyslurm ({error})", _REMEDY) from error
        self = cls(process)
        try:
            async with timeout(STARTUP):
                greeting = await self._receive()
            if greeting["trouble"]:
                raise ConnectFailed(f"pyslurm cannot be used here ({greeting['trouble']})", _REMEDY)
        except BaseException as error:
            await self.close()
            if isinstance(error, asyncio.TimeoutError):
                raise ConnectFailed(f"pyslurm was not loaded within {STARTUP:g} s", _REMEDY) from error
            if isinstance(error, (EOFError, OSError)):
                raise ConnectFailed(f"libslurm ended the process ({self._last_words()})", _REMEDY) from error
            raise
        return self

    async def exchange(self, call: tuple[str, dict[str, str]]) -> Any:
        """The result of a call; raises a ``SlurmError`` if it was rejected."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(call).encode() + b"\n")
            async with timeout(TIMEOUT):
                answer = await self._receive()
        except asyncio.TimeoutError as error:
            raise CommandTimedOut("pyslurm", TIMEOUT) from error
        except (EOFError, OSError) as error:
            raise ConnectionLost(f"pyslurm's process ended ({self._last_words()})", "it is restarted") from error
        if "refused" in answer:
            raise classify("pyslurm", answer["refused"])
        return answer["answer"]

    def kill(self) -> None:
        if self._process.returncode is None:
            kill_session(self._process.pid)

    async def close(self) -> None:
        self.kill()
        await self._process.wait()

    async def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while (line := await self._process.stdout.readline()).endswith(b"\n"):
            _, mark, said = line.decode(errors="backslashreplace").rpartition(MARK)
            if mark:
                answer: dict[str, Any] = json.loads(said)
                return answer
            self._log.append(said.strip())
        raise EOFError

    def _last_words(self) -> str:
        # Each line begins with the program's name.
        return "; ".join(line.partition(": ")[2] or line for line in self._log) or "no output"
