"""Triggers that carry out the work of a task or the watch of a sensor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow.triggers.base import TriggerEvent
from async_timeout import timeout

from airflow_provider_soperator.triggers.base import KillableTrigger, TaskTrigger
from airflow_provider_soperator.work.polling import FAILURES, completed, event_of, reached
from airflow_provider_soperator.work.protocols import Watch, Work, WorkFailed, succeeded, timed_out


@dataclass(eq=False, repr=False)
class WorkTrigger(KillableTrigger):
    """Carries out a ``Work``, given as JSON; see ``work.protocols`` for what it fires with."""

    work: dict[str, Any]

    def prepare(self) -> None:
        self._work: Work[Any] = Work.read(self.work)
        #: True in the process that carries it out.
        self._is_under_way = False
        self._fate = ""

    async def event(self) -> dict[str, Any]:
        work, self._is_under_way = self._work.begin(self.log), True
        left = (work.deadline - datetime.now(timezone.utc)).total_seconds()
        try:
            async with timeout(max(0.0, left)):
                return succeeded(await completed(work, self.log))
        except asyncio.TimeoutError:
            event = timed_out(work.place or ("nothing has been done" if left > 0 else "it was not followed to its end"))
        except (WorkFailed, *FAILURES) as error:
            event = event_of(error)
        # Past the deadline another process had begun it, while this one was not there yet.
        if work.has_begun or left <= 0:
            await self.cancel()
            event["message"] += _sentence(self._fate)
        return event

    async def cancel(self) -> None:
        work = self._work.begin(self.log)
        try:
            async with work.open() as client:
                self._fate = await work.undo(client)
        except (*FAILURES, asyncio.TimeoutError) as error:
            self._fate = work.left(error)

    @property
    def fate(self) -> str:
        place = self._work.place if self._is_under_way else ""
        return (f" ({place})" if place else "") + _sentence(self._fate)


def _sentence(words: str) -> str:
    return f". {words}" if words else ""


@dataclass(eq=False, repr=False)
class WatchTrigger(TaskTrigger):
    """Looks until a ``Watch``, given as JSON, is reached; see ``work.protocols`` for what it fires with."""

    watch: dict[str, Any]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = succeeded(await reached(Watch.read(self.watch), self.log, self.made or 0.0))
        except (WorkFailed, *FAILURES) as error:
            event = event_of(error)
        async for end in self.conclude(event):
            yield end
