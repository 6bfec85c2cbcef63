"""Triggers that carry out the work of a task or the watch of a sensor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timezone
from typing import Any

from airflow.triggers.base import TriggerEvent
from async_timeout import timeout

from airflow_provider_soperator.triggers.base import KillableTrigger, SlurmTrigger
from airflow_provider_soperator.work.polling import FAILURES, completed, event_of, reached
from airflow_provider_soperator.work.protocols import (
    Progress,
    Watch,
    Work,
    WorkFailed,
    succeeded,
    timed_out,
)


class WorkTrigger(KillableTrigger):
    """Carries out a ``Work``, which is stored as JSON; see ``work.protocols`` for what it fires with."""

    def __init__(
        self,
        work: Work[Any] | dict[str, Any],
        made: float | None = None,
        end_from_trigger: bool = False,
        fail_from_trigger: bool = False,
    ) -> None:
        super().__init__(made, end_from_trigger, fail_from_trigger)
        self._value: Work[Any] = Work.read(work) if isinstance(work, dict) else work
        self._progress: Progress[Any] | None = None
        self._fate = ""

    @property
    def work(self) -> dict[str, Any]:
        return self._value.write()

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


class WatchTrigger(SlurmTrigger):
    """Looks until a ``Watch``, given as JSON, is reached; see ``work.protocols`` for what it fires with."""

    def __init__(
        self,
        watch: dict[str, Any],
        made: float | None = None,
        end_from_trigger: bool = False,
        fail_from_trigger: bool = False,
    ) -> None:
        super().__init__(made, end_from_trigger, fail_from_trigger)
        self.watch = watch

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = succeeded(await reached(Watch.read(self.watch), self.log))
        except (WorkFailed, *FAILURES) as error:
            event = event_of(error)
        async for end in self.conclude(event):
            yield end
