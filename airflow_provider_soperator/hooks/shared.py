"""One client for all users of a connection in an event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.hooks.settings import Settings


class _Closable(Protocol):
    """A client that is closed in its event loop."""

    async def close(self) -> None: ...


C = TypeVar("C")
S = TypeVar("S", bound=Hashable)
A = TypeVar("A", bound=_Closable)

#: Seconds for which a loop keeps an idle client: the next task of the same DAG comes soon.
KEPT = 60.0


@dataclass
class _Lease(Generic[C]):
    client: C
    users: int = 0
    closing: asyncio.TimerHandle | None = None


class _Loop(Generic[S, A]):
    """The clients of one event loop."""

    def __init__(self) -> None:
        self.leases: dict[S, _Lease[A]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._at_end = self._close_all()

    async def start(self) -> None:
        # As its last step an event loop closes the generators that were begun in it.
        await self._at_end.__anext__()

    def close(self, settings: S) -> None:
        # Users that come from here on get a new client, while this one closes.
        lease = self.leases.pop(settings)
        if lease.closing:
            lease.closing.cancel()
        task = asyncio.get_running_loop().create_task(lease.client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_all(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            for settings in list(self.leases):
                self.close(settings)
            await asyncio.gather(*self._closing, return_exceptions=True)


class SharedClients(Generic[S, A]):
    """The clients of each event loop, closed some time after their last user has gone, or with the loop."""

    def __init__(self) -> None:
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop[S, A]] = weakref.WeakKeyDictionary()

    @asynccontextmanager
    async def lend(self, settings: S, make: Callable[[S], A]) -> AsyncIterator[A]:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = _Loop()
            await self._loops[loop].start()
        mine = self._loops[loop]
        if settings not in mine.leases:
            mine.leases[settings] = _Lease(make(settings))
        lease = mine.leases[settings]
        lease.users += 1
        if lease.closing:
            lease.closing.cancel()
            lease.closing = None
        try:
            yield lease.client
        finally:
            lease.users -= 1
            if not lease.users:
                lease.closing = loop.call_later(KEPT, mine.close, settings)


CLIENTS: SharedClients[Settings, AsyncSlurmClient] = SharedClients()
