"""What Airflow itself takes for tasks that start and end in the triggerer, and store one XCom: they do nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseTrigger, StartTriggerArgs, TaskSuccessEvent, TriggerEvent

#: Seconds that each waits, until the others do.
WAIT = 60.0


class IdleOperator(BaseOperator):
    start_from_trigger = True
    start_trigger_args = StartTriggerArgs(
        trigger_cls=f"{__name__}.IdleTrigger", next_method="execute", trigger_kwargs={}, next_kwargs=None, timeout=None
    )


class IdleTrigger(BaseTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.IdleTrigger", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        task: Any = self.task_instance
        where = {"dag_id": task.dag_id, "task_id": task.task_id, "run_id": task.run_id, "map_index": task.map_index}
        await asyncio.to_thread(XCom.set, key="job_id", value="1", **where)
        await asyncio.sleep(WAIT)
        yield TaskSuccessEvent()
