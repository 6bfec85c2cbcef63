"""One answer for all callers with the same question within a short time, such as many sensors of one queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


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
            asked.answer.add_done_callback(lambda done: self._forget(question, done))
        # A cancelled caller does not take the answer away from the others.
        answer: T = await asyncio.shield(asked.answer)
        return answer

    def _forget(self, question: Hashable, done: asyncio.Future[Any]) -> None:
        """Drop failed answers, so that they are asked again, and old ones."""
        if done.cancelled() or done.exception():
            self._asked.pop(question, None)
        newest = max((asked.at for asked in self._asked.values()), default=0.0)
        for old, asked in list(self._asked.items()):
            if asked.answer.done() and newest - asked.at > _LONGEST:
                del self._asked[old]


#: Seconds after which an answer is dropped.
_LONGEST = 600.0
