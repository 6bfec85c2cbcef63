"""Transport by Slurm's commands on this machine: for an Airflow worker on a node of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from functools import partial
from typing import ClassVar

from airflow_provider_soperator.transports.shell import Pipe, Shells
from airflow_provider_soperator.values import without_airflow

SHELL = ("/bin/sh",)

#: What the job around this process has, and one submitted from here would take for its own.
_OF_A_JOB = re.compile(r"_?SLURM_(?!CONF$|CONF_SERVER$|CLUSTERS$|JWT$).*|SBATCH_MEM_BIND.*")


def kill_session(leader: int) -> None:
    """Kill a shell and its children. Each shell leads a session, so that a Ctrl-C at the terminal does not reach it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


class _LocalPipe(asyncio.SubprocessProtocol):
    """A shell on this machine."""

    _STREAMS: ClassVar = {1: "stdout", 2: "stderr"}

    def __init__(self) -> None:
        self._received: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._received.put_nowait((self._STREAMS[fd], data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd:
            self._received.put_nowait(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()

    async def send(self, data: bytes) -> None:
        stdin = self._transport.get_pipe_transport(0) if self._transport else None
        if not isinstance(stdin, asyncio.WriteTransport) or stdin.is_closing():
            raise BrokenPipeError
        stdin.write(data)

    async def receive(self) -> tuple[str, bytes] | None:
        return await self._received.get()

    async def close(self) -> None:
        if self._transport is None:
            return
        if self._transport.get_returncode() is None:
            kill_session(self._transport.get_pid())
        # Also closes the pipes, which a running command may hold open.
        self._transport.close()
        await self._ended.wait()


class LocalTransport(Shells):
    """Runs commands in shells on this machine.

    ``argv`` starts a shell, perhaps in a container or another root.
    """

    def __init__(self, argv: tuple[str, ...] = SHELL) -> None:
        super().__init__(partial(_open_pipe, argv))


async def _open_pipe(argv: tuple[str, ...]) -> Pipe:
    # sbatch passes its environment on to the job.
    env = {name: value for name, value in without_airflow(os.environ).items() if not _OF_A_JOB.fullmatch(name)}
    _, pipe = await asyncio.get_running_loop().subprocess_exec(_LocalPipe, *argv, env=env, start_new_session=True)
    return pipe
