"""Calls of Airflow's task SDK, which block, from the event loop of a trigger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time.xcom import XCom
from asgiref.sync import sync_to_async

from airflow_provider_soperator.pipelines.member import states_of

T = TypeVar("T")

_UNDER_WAY: set[asyncio.Future[Any]] = set()


async def complete(work: Awaitable[T]) -> T:
    """Do something to its end, also when the one who waits for it is cancelled."""
    task = asyncio.ensure_future(work)
    # The loop itself forgets a task that nobody holds.
    _UNDER_WAY.add(task)
    task.add_done_callback(_UNDER_WAY.discard)
    return await asyncio.shield(task)


async def call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function of the SDK.

    A call that has begun is completed. ``sync_to_async`` alone would end a cancelled one with a new ``CancelledError``:
    Airflow tells by the words of the first one that the user has ended the task, and does not call ``on_kill`` without
    them. The supervisor, too, would answer a question that nobody waits for any more.
    """
    return await complete(sync_to_async(function)(*args, **kwargs))


async def push(ti: Any, key: str, value: Any, backend: type[BaseXCom] = XCom) -> None:
    """Push an XCom. What an event of Airflow's brings along would be stored as text, and be pulled as text."""
    await call(
        backend.set,
        key=key,
        value=value,
        dag_id=ti.dag_id,
        task_id=ti.task_id,
        run_id=ti.run_id,
        map_index=ti.map_index,
    )


async def push_result(ti: Any, value: Any) -> None:
    """What the task returns."""
    await push(ti, XCom.XCOM_RETURN_KEY, value)


async def states(ti: Any, task_ids: Sequence[str]) -> dict[str, dict[int, str | None]]:
    """For each of these tasks of its run the states of its instances, by map index."""
    return await call(states_of, ti, task_ids)
