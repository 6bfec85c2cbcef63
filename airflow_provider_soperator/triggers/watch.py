"""The trigger of all sensors whose watch is a value."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.work.events import failed, refused, succeeded
from airflow_provider_soperator.work.polling import FAILURES, is_final, reached
from airflow_provider_soperator.work.protocols import Watch, WorkFailed, WorkRefused


class WatchTrigger(SlurmTrigger):
    """Looks until a ``Watch``, given as JSON, is reached; see ``work.events`` for what it fires with."""

    def __init__(self, watch: dict[str, Any], made: float | None = None) -> None:
        super().__init__(made)
        self.watch = watch

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = succeeded(await reached(Watch.read(self.watch), self.log))
        except (WorkFailed, *FAILURES) as error:
            event = (refused if isinstance(error, WorkRefused) or is_final(error) else failed)(str(error))
        yield await self.resume(event)
