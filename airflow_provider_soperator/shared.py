"""Sharing among all users in an event loop: one client for a connection, and one answer for a question."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar


class _Closable(Protocol):
    """A client that is closed in its event loop."""

    async def close(self) -> None: ...


T = TypeVar("T")
C = TypeVar("C")
S = TypeVar("S", bound=Hashable)
A = TypeVar("A", bound=_Closable)

#: Seconds for which a loop keeps an idle client: the next task of the same DAG comes soon.
KEPT = 60.0
#: Seconds after which an answer is dropped.
_LONGEST = 600.0


@dataclass
class _Asked:
    answer: asyncio.Future[Any]
    at: float


class SharedAnswers:
    """Cache of answers by question, for callers that accept an answer of some age."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, _Asked] = {}

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[T]], max_age: float) -> T:
        """The answer to a question: one that is under way or no older than ``max_age`` seconds, or that of ``ask``."""
        asked = self._asked.get(question)
        if asked is None or (asked.answer.done() and time.monotonic() - asked.at > max_age):
            asked = _Asked(asyncio.ensure_future(ask()), time.monotonic())
            self._asked[question] = asked
            asked.answer.add_done_callback(partial(self._forget, question, asked))
        # A cancelled caller does not take the answer away from the others.
        answer: T = await asyncio.shield(asked.answer)
        return answer

    def _forget(self, question: Hashable, begun: _Asked, done: asyncio.Future[Any]) -> None:
        """Drop failed answers, so that they are asked again, and old ones."""
        # It may have been asked once more since.
        if (done.cancelled() or done.exception()) and self._asked.get(question) is begun:
            del self._asked[question]
        newest = max((asked.at for asked in self._asked.values()), default=0.0)
        for old, asked in list(self._asked.items()):
            if asked.answer.done() and newest - asked.at > _LONGEST:
                del self._asked[old]


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
