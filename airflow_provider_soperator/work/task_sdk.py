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
    """Await something to its end, also when the waiting task is cancelled."""
    task = asyncio.ensure_future(work)
    # The event loop keeps only weak references to tasks.
    _UNDER_WAY.add(task)
    task.add_done_callback(_UNDER_WAY.discard)
    return await asyncio.shield(task)


async def call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function of the SDK.

    A call that has begun is completed. ``sync_to_async`` alone would end a cancelled one with a new ``CancelledError``:
    Airflow recognizes by the message of the first one that the user has ended the task, and does not call ``on_kill``
    without it. The supervisor, too, would send an answer that no call waits for.
    """
    return await complete(sync_to_async(function)(*args, **kwargs))


async def push(ti: Any, key: str, value: Any, backend: type[BaseXCom] = XCom) -> None:
    """Push an XCom. Airflow stores XComs that come with an event as text, and they are pulled as text."""
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
    """Push the task's return value."""
    await push(ti, XCom.XCOM_RETURN_KEY, value)


async def states(ti: Any, task_ids: Sequence[str]) -> dict[str, dict[int, str | None]]:
    """States of the instances of these tasks of the run, by task and map index."""
    return await call(states_of, ti, task_ids)
