"""The states of other tasks of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def states_of(ti: Any, task_ids: Sequence[str]) -> dict[str, dict[int, str | None]]:
    """For each of these tasks the states of its instances, by map index."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    asked = RuntimeTaskInstance.get_task_states(dag_id=ti.dag_id, task_ids=[*task_ids], run_ids=[ti.run_id])
    states: dict[str, dict[int, str | None]] = {task_id: {} for task_id in task_ids}
    for name, state in asked.get(ti.run_id, {}).items():
        if name in states:
            states[name][-1] = state
        else:
            # Airflow joins the two for a mapped task.
            task_id, _, index = name.rpartition("_")
            states[task_id][int(index)] = state
    return states
