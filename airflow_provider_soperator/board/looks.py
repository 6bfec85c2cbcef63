"""Looks that all viewers share: each is taken on demand, at most once in an interval, by one task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.hooks.check import in_words

T = TypeVar("T")
#: Seconds that a cluster has for each part of a look.
PATIENCE = 20.0


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


@dataclass
class _Frame(Generic[T]):
    look: T | None = None
    taking: asyncio.Task[T] | None = None
    at: float = 0.0


class Looks(Generic[T]):
    """The newest look at each connection; ``take`` gets the connection and the look before, and never fails."""

    def __init__(self, take: Callable[[str, T | None], Awaitable[T]]) -> None:
        self._taken_by = take
        self._frames: dict[str, _Frame[T]] = {}

    async def newest(self, connection: str, interval: float, glance: float = 0.0) -> T | None:
        """A look that is new enough, else the last one; None while the first one takes longer than ``glance``."""
        frame = self._frames.setdefault(connection, _Frame())
        if frame.taking is None and (frame.look is None or time.monotonic() - frame.at > interval):
            frame.taking = asyncio.create_task(self._take(frame, connection))
        if frame.taking:
            await asyncio.wait([frame.taking], timeout=glance)
        return frame.look

    async def _take(self, frame: _Frame[T], connection: str) -> T:
        try:
            frame.look = await self._taken_by(connection, frame.look)
            return frame.look
        finally:
            frame.at, frame.taking = time.monotonic(), None
