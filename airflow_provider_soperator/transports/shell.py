"""A few long-lived shells at the other end of one connection, handed to whoever has a command to run.

What a transport adds is how to open a pipe to one more shell; see ``framing`` for what goes through it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.slurm.requests import Command, CommandOutput, Request
from airflow_provider_soperator.transports.errors import CommandTimedOut, ConnectFailed, ConnectionLost, TransportError
from airflow_provider_soperator.transports.framing import GRACE, Exchange, encode, handshake, new_mark

T = TypeVar("T")
C = TypeVar("C")

#: Shells at once on one connection. A stock sshd allows ten sessions, and others may share the connection.
MAX_SHELLS = 4

#: Seconds a new shell has to print its first mark.
HANDSHAKE = 20.0

#: Seconds beyond a command's own limit after which nothing is expected from the shell any more.
SLACK = 5.0


class Pipe(Protocol):
    """The three streams of one remote shell; those who use it bring their own time limits."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> tuple[str, bytes] | None:
        """Some bytes of ``stdout`` or ``stderr``; None at the end."""

    async def close(self) -> None: ...


#: What to do when a shell does not greet.
_NO_SHELL = "see whether /bin/sh and bash run there"


def _lost(command: Command) -> ConnectionLost:
    return ConnectionLost(f"the connection broke while {command.argv[0]} was under way", "it is opened again")


def _limit(command: Command) -> float:
    return command.timeout + GRACE + SLACK


class Shells:
    """The shells of one connection: a command takes an idle one, opens one more, or waits for its turn."""

    def __init__(self, open_pipe: Callable[[], Awaitable[Pipe]], most: int = MAX_SHELLS) -> None:
        self._open_pipe = open_pipe
        self._idle: list[Pipe] = []
        self._places = asyncio.Semaphore(most)
        self._closed = False

    async def ask(self, request: Request[T]) -> T:
        return request.read(await self.run(request.command()))

    async def run(self, command: Command) -> CommandOutput:
        async with self._places:
            pipe = await self._take()
            try:
                output = await self._exchange(pipe, command, encode, _limit(command))
            except BaseException:
                await pipe.close()
                raise
            if self._closed:
                await pipe.close()
            else:
                self._idle.append(pipe)
            return output

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for pipe in idle:
            await pipe.close()

    async def _take(self) -> Pipe:
        if self._closed:
            raise ConnectionLost("the connection has been closed meanwhile")
        if self._idle:
            return self._idle.pop()
        pipe = await self._open_pipe()
        try:
            await self._exchange(pipe, _GREETING, lambda _, mark: handshake(mark), HANDSHAKE)
        except CommandTimedOut as error:
            await pipe.close()
            raise ConnectFailed("the login shell says nothing", _NO_SHELL) from error
        except ConnectionLost as error:
            await pipe.close()
            # Nothing was under way yet, but the connection may have been cut just now.
            raise ConnectionLost("the login shell ended at once", _NO_SHELL) from error
        except BaseException:
            await pipe.close()
            raise
        return pipe

    @staticmethod
    async def _exchange(
        pipe: Pipe, command: Command, encoder: Callable[[Command, str], bytes], limit: float
    ) -> CommandOutput:
        exchange = Exchange(new_mark(), command)
        started = time.monotonic()
        try:
            async with timeout(limit):
                await pipe.send(encoder(command, exchange.mark))
                while not exchange.complete:
                    received = await pipe.receive()
                    if received is None:
                        raise _lost(command)
                    exchange.feed(*received)
        except asyncio.TimeoutError as error:
            raise CommandTimedOut(command.argv[0], limit) from error
        except (OSError, EOFError) as error:
            raise _lost(command) from error
        return exchange.result(time.monotonic() - started)


#: Stands for the first exchange of a shell, in which nothing is run.
_GREETING = Command(("/bin/sh",), timeout=HANDSHAKE)


class ShellTransport(Generic[C]):
    """Asks through shells on a connection that is opened at the first question, and again when it has broken.

    A transport says how its connection is opened and ended, and how a shell is started on it.
    """

    #: After these the connection is not used for another question.

    _final: ClassVar[tuple[type[TransportError], ...]] = (ConnectionLost,)

    def __init__(self) -> None:
        self._current: tuple[C, Shells] | None = None
        self._lock = asyncio.Lock()

    async def ask(self, request: Request[T]) -> T:
        current = await self._connected()
        try:
            return await current[1].ask(request)
        except self._final:
            await self._drop(current)
            raise

    async def close(self) -> None:
        await self._drop(self._current)

    async def _open(self) -> C:
        raise NotImplementedError

    async def _open_pipe(self, connection: C) -> Pipe:
        raise NotImplementedError

    async def _hang_up(self, connection: C) -> None:
        raise NotImplementedError

    async def _connected(self) -> tuple[C, Shells]:
        async with self._lock:
            if self._current is None:
                connection = await self._open()
                self._current = connection, Shells(partial(self._open_pipe, connection))
            return self._current

    async def _drop(self, current: tuple[C, Shells] | None) -> None:
        """Forget a connection, unless another task has replaced it by now."""
        if current is None or current is not self._current:
            return
        self._current = None
        connection, shells = current
        await shells.close()
        await self._hang_up(connection)
