"""Where a deferred task ends: in the triggerer, or in an Airflow worker, if that has something left to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from airflow.sdk import BaseOperator

End = Literal["success", "failed"]


def endings(needs_a_worker_after: Callable[[End], bool], *, is_last_try: bool) -> dict[str, bool]:
    """Arguments of a trigger: whether the triggerer ends the task after a success, and after a failure.

    Airflow may make a retry of any failure there: only an exception in a worker can say that none helps.
    """
    return {
        "end_from_trigger": not needs_a_worker_after("success"),
        "fail_from_trigger": is_last_try and not needs_a_worker_after("failed"),
    }


def needs_a_worker(task: Any, end: End) -> bool:
    """True if Airflow itself needs a worker for the end of a task."""
    from airflow.sdk.listener import get_listener_manager

    # Such as OpenLineage's.
    if getattr(get_listener_manager().hook, f"on_task_instance_{end}").get_hookimpls():
        return True
    if end == "failed":
        # A sensor that fails softly is skipped.
        return bool(task.on_failure_callback or getattr(task, "email", None) or getattr(task, "soft_fail", False))
    return bool(
        task.outlets
        or task.on_success_callback
        or task._post_execute_hook
        or type(task).post_execute is not BaseOperator.post_execute
        or task.multiple_outputs
        or not task.do_xcom_push
    )


def is_last_try(context: Mapping[str, Any]) -> bool:
    """True if it is known that Airflow makes no other try of a task after a failure of this one."""
    ti = context.get("ti")
    return ti is not None and bool(ti.try_number > ti.max_tries)
