"""Looks that all viewers share: each is taken on demand, at most once in an interval, by one task."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.hooks.check import in_words

T = TypeVar("T")
#: Seconds that a cluster has for each part of a look.
PATIENCE = 20.0
#: Seconds for which a look that has failed is shown at most before a new one is taken.
FAILED = 60.0
#: Connections that are looked at together.
_AT_ONCE = 16


async def attempt(
    what: str, failures: dict[str, str], read: Awaitable[T], otherwise: T, patience: float = PATIENCE
) -> T:
    """What is read; or something else, and among the failures the reason why."""
    try:
        async with timeout(patience):
            return await read
    except asyncio.TimeoutError:
        failures[what] = f"No answer within {patience:g} s."
    except Exception as error:
        failures[what] = in_words(error)
    return otherwise


def kept_since(failures: Iterable[str], before: Any) -> dict[str, datetime]:
    """Since when parts of a look that could not be read are as they were; those that never were read are left out."""
    first = {name: before.taken for name in failures if name not in before.failures} if before else {}
    return first | {name: before.since[name] for name in failures if before and name in before.since}


@dataclass
class _Frame(Generic[T]):
    look: T | None = None
    taking: asyncio.Task[None] | None = None
    at: float = 0.0


@dataclass
class Looks(Generic[T]):
    """The newest look at each connection."""

    #: It gets the connection and the look before, and never fails.
    take: Callable[[str, T | None], Awaitable[T]]
    #: Seconds for which a look is shown before a new one is taken, and that a viewer waits for that.
    interval: float
    glance: float = 0.0
    #: Seconds after which a look is not shown any more, for one that does not tell its age.
    longest: float = math.inf
    #: True for a look that has failed as a whole, whose error may be over long before the next one is due.
    has_failed: Callable[[T], bool] = lambda look: False
    _frames: dict[str, _Frame[T]] = field(default_factory=dict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def newest(self, connection: str) -> T | None:
        """A look that is new enough, else the last one; None while there is none that can be shown."""
        frame = self._frames.setdefault(connection, _Frame())
        if frame.taking is None and (frame.look is None or time.monotonic() - frame.at > self._kept(frame.look)):
            frame.taking = asyncio.create_task(self._take(frame, connection))
        if frame.taking:
            await asyncio.wait([frame.taking], timeout=self.glance)
        return frame.look if time.monotonic() - frame.at <= self.longest else None

    def _kept(self, look: T) -> float:
        return min(self.interval, FAILED) if self.has_failed(look) else self.interval

    async def _take(self, frame: _Frame[T], connection: str) -> None:
        try:
            async with self._turns:
                frame.look = await self.take(connection, frame.look)
        finally:
            frame.at, frame.taking = time.monotonic(), None
