"""One client for all in a process, or in an event loop, who use the same connection."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from airflow_provider_soperator.clients.client import AsyncSlurmClient, SlurmClient
from airflow_provider_soperator.hooks.settings import Settings

C = TypeVar("C")

#: Seconds for which a loop keeps a connection that nobody uses: the next task of the same DAG comes soon.
KEPT = 60.0


@dataclass
class _Lease(Generic[C]):
    client: C
    users: int = 0
    closing: asyncio.TimerHandle | None = None


class SharedClients:
    """The clients of a process, closed when their last user goes."""

    def __init__(self) -> None:
        self._leases: dict[Settings, _Lease[SlurmClient]] = {}
        self._lock = threading.Lock()
        # A connection has one end here: a forked process must not talk into its parent's.
        os.register_at_fork(after_in_child=self._forget)

    @contextmanager
    def lend(self, settings: Settings, make: Callable[[Settings], SlurmClient]) -> Iterator[SlurmClient]:
        with self._lock:
            if settings not in self._leases:
                self._leases[settings] = _Lease(make(settings))
            lease = self._leases[settings]
            lease.users += 1
        try:
            yield lease.client
        finally:
            with self._lock:
                lease.users -= 1
                is_last = lease.users == 0
                if is_last:
                    self._leases.pop(settings, None)
            if is_last:
                lease.client.close()

    def _forget(self) -> None:
        self._leases, self._lock = {}, threading.Lock()


class AsyncSharedClients:
    """The clients of each event loop, closed some time after their last user has gone."""

    def __init__(self) -> None:
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Settings, _Lease[AsyncSlurmClient]]] = (
            weakref.WeakKeyDictionary()
        )

    @asynccontextmanager
    async def lend(
        self, settings: Settings, make: Callable[[Settings], AsyncSlurmClient]
    ) -> AsyncIterator[AsyncSlurmClient]:
        loop = asyncio.get_running_loop()
        leases = self._loops.setdefault(loop, {})
        if settings not in leases:
            leases[settings] = _Lease(make(settings))
        lease = leases[settings]
        lease.users += 1
        if lease.closing:
            lease.closing.cancel()
            lease.closing = None
        try:
            yield lease.client
        finally:
            lease.users -= 1
            if not lease.users:
                lease.closing = loop.call_later(KEPT, self._close, leases, settings, lease)

    @staticmethod
    def _close(
        leases: dict[Settings, _Lease[AsyncSlurmClient]], settings: Settings, lease: _Lease[AsyncSlurmClient]
    ) -> None:
        del leases[settings]
        # The task is kept by itself until it is done: closing waits for the other side.
        closing = asyncio.ensure_future(lease.client.close())
        _CLOSING.add(closing)
        closing.add_done_callback(_CLOSING.discard)


_CLOSING: set[asyncio.Future[None]] = set()

CLIENTS = SharedClients()
ASYNC_CLIENTS = AsyncSharedClients()
