"""Triggers that carry out the work of a task or the watch of a sensor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow.triggers.base import TriggerEvent
from async_timeout import timeout

from airflow_provider_soperator.triggers.base import KillableTrigger, TaskTrigger
from airflow_provider_soperator.work.polling import FAILURES, completed, event_of, reached
from airflow_provider_soperator.work.protocols import Progress, Watch, Work, WorkFailed, succeeded, timed_out


@dataclass(eq=False, repr=False)
class WorkTrigger(KillableTrigger):
    """Carries out a ``Work``, given as JSON; see ``work.protocols`` for what it fires with."""

    work: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._value: Work[Any] = Work.read(self.work)
        self._progress: Progress[Any] | None = None
        self._fate = ""

    async def event(self) -> dict[str, Any]:
        progress = self._progress = self._value.begin(self.log)
        left = (self._value.deadline - datetime.now(timezone.utc)).total_seconds()
        try:
            async with timeout(max(0.0, left)):
                result = await completed(progress, self._open, self._value.poll_interval, self.log)
                return succeeded(result)
        except asyncio.TimeoutError:
            event = timed_out(progress.place or "nothing has been done")
        except (WorkFailed, *FAILURES) as error:
            event = event_of(error)
        if progress.has_begun:
            await self.cancel()
            event["message"] += _sentence(self._fate)
        return event

    async def cancel(self) -> None:
        progress = self._progress or self._value.begin(self.log)
        try:
            async with self._open() as client:
                self._fate = await progress.undo(client)
        except (*FAILURES, asyncio.TimeoutError) as error:
            self._fate = progress.left(error)

    def _open(self) -> AbstractAsyncContextManager[Any]:
        return self._value.open(self.log)

    @property
    def fate(self) -> str:
        place = self._progress.place if self._progress else ""
        return (f" ({place})" if place else "") + _sentence(self._fate)


def _sentence(words: str) -> str:
    return f". {words}" if words else ""


@dataclass(eq=False, repr=False)
class WatchTrigger(TaskTrigger):
    """Looks until a ``Watch``, given as JSON, is reached; see ``work.protocols`` for what it fires with."""

    watch: dict[str, Any]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = succeeded(await reached(Watch.read(self.watch), self.log))
        except (WorkFailed, *FAILURES) as error:
            event = event_of(error)
        async for end in self.conclude(event):
            yield end
