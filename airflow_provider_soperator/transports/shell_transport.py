"""The connection under shells: opened when it is needed, and reopened after it has broken."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Generic, TypeVar

from airflow_provider_soperator.shared import SharedAnswers
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.transports.shell import NotSent, Pipe, Shells
from airflow_provider_soperator.transports.transport_errors import ConnectionLost, ConnectRefused, TransportError

T = TypeVar("T")
C = TypeVar("C")


class ShellTransport(Generic[C]):
    """Runs commands in shells on a connection that is opened for the first request, and reopened after it has broken.

    A transport opens and closes its connection, and starts a shell on it. It is closed for good.
    """

    #: Errors after which the connection is not used again.
    _final: ClassVar[tuple[type[TransportError], ...]] = (ConnectionLost, ConnectRefused)

    def __init__(self) -> None:
        self._current: tuple[C, Shells] | None = None
        self._attempts = SharedAnswers()
        self._is_closed = False

    async def ask(self, request: Request[T]) -> T:
        while True:
            current = await self._connected()
            try:
                return await current[1].ask(request)
            except self._final as error:
                await self._drop(current)
                if not isinstance(error, NotSent):
                    raise

    async def close(self) -> None:
        self._is_closed = True
        await self._drop(self._current)

    async def _open(self) -> C:
        raise NotImplementedError

    async def _open_pipe(self, connection: C) -> Pipe:
        raise NotImplementedError

    async def _hang_up(self, connection: C) -> None:
        raise NotImplementedError

    async def _connected(self) -> tuple[C, Shells]:
        if self._current:
            return self._current
        # All who wait share one attempt, also if it fails: each its own, in turn, would take ages with a silent host.
        return await self._attempts.get("connection", self._connected_anew, -1.0)

    async def _connected_anew(self) -> tuple[C, Shells]:
        if not self._is_closed:
            connection = await self._open()
            self._current = connection, Shells(partial(self._open_pipe, connection))
        if self._current is None or self._is_closed:
            # Nobody else would close what has come about since.
            await self._drop(self._current)
            raise ConnectRefused("the connection was closed", "it was no longer in use")
        return self._current

    async def _drop(self, current: tuple[C, Shells] | None) -> None:
        """Close a connection, unless another task has replaced it by now."""
        if current is None or current is not self._current:
            return
        self._current = None
        connection, shells = current
        try:
            await shells.close()
        finally:
            # Also if the task that closes them is cancelled.
            await self._hang_up(connection)
