"""What a trigger leaves for other tasks, in its own task's name."""

from __future__ import annotations

from typing import Any

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time.xcom import XCom
from asgiref.sync import sync_to_async


async def push(ti: Any, key: str, value: Any, backend: type[BaseXCom] = XCom) -> None:
    """Push an XCom. What an event of Airflow's brings along would be stored as text, and be pulled as text."""
    await sync_to_async(backend.set)(
        key=key, value=value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index
    )


async def push_result(ti: Any, value: Any) -> None:
    """What the task returns."""
    await push(ti, XCom.XCOM_RETURN_KEY, value)
