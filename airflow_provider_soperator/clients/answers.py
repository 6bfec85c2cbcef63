"""One answer for all who ask the same within a short time, as many sensors of one queue do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_soperator.slurm.requests import Request

T = TypeVar("T")


@dataclass
class _Asked:
    answer: asyncio.Future[Any]
    at: float


class SharedAnswers:
    """Remembers answers by their questions, as long as anybody wants them so old."""

    def __init__(self, ask: Callable[[Request[Any]], Awaitable[Any]]) -> None:
        self._ask = ask
        self._asked: dict[Request[Any], _Asked] = {}

    async def get(self, request: Request[T], most_age: float) -> T:
        asked = self._asked.get(request)
        if asked is None or (asked.answer.done() and time.monotonic() - asked.at > most_age):
            asked = _Asked(asyncio.ensure_future(self._ask(request)), time.monotonic())
            self._asked[request] = asked
            asked.answer.add_done_callback(lambda done: self._forget(request, done))
        # One who gives up does not take the answer away from the others.
        answer: T = await asyncio.shield(asked.answer)
        return answer

    def _forget(self, request: Request[Any], done: asyncio.Future[Any]) -> None:
        """What went wrong is asked again, and what is old makes room."""
        if done.cancelled() or done.exception():
            self._asked.pop(request, None)
        newest = max((asked.at for asked in self._asked.values()), default=0.0)
        for old, asked in list(self._asked.items()):
            if asked.answer.done() and newest - asked.at > _LONGEST:
                del self._asked[old]


#: Seconds after which no answer is wanted any more.
_LONGEST = 600.0
