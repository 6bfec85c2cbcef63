"""Tasks that store one XCom, wait in the triggerer and end there: what they take is what Airflow itself takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, StartTriggerArgs, TaskSuccessEvent, TriggerEvent


class IdleOperator(BaseOperator):
    """``seconds`` is how long it waits; ``note`` a file for when it begins to and ends, after the name of the task."""

    def __init__(self, *, seconds: float, note: str = "", deferrable: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._how: dict[str, Any] = {"seconds": seconds, "note": note}
        self.start_from_trigger = not deferrable
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=f"{__name__}.IdleTrigger",
            next_method="execute",
            trigger_kwargs=self._how,
            next_kwargs=None,
            timeout=None,
        )

    def execute(self, context: Context) -> None:
        self.defer(trigger=IdleTrigger(**self._how), method_name="execute")


class IdleTrigger(BaseTrigger):
    def __init__(self, seconds: float, note: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seconds, self._note = seconds, note

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.IdleTrigger", {"seconds": self._seconds, "note": self._note}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        task: Any = self.task_instance
        where = {"dag_id": task.dag_id, "task_id": task.task_id, "run_id": task.run_id, "map_index": task.map_index}
        await asyncio.to_thread(XCom.set, key="job_id", value="1", **where)
        self._write(task.task_id)
        await asyncio.sleep(self._seconds)
        self._write(task.task_id)
        yield TaskSuccessEvent()

    def _write(self, task_id: str) -> None:
        if self._note:
            with Path(self._note).open("a") as note:
                note.write(f"{task_id} {time.time()}\n")
