"""The states of other tasks of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Tasks that are named in one question, which is a URL, and must not be too long for one.
_AT_ONCE = 50


def states_of(ti: Any, task_ids: Sequence[str]) -> dict[str, dict[int, str | None]]:
    """For each of these tasks the states of its instances, by map index."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    found: dict[str, str | None] = {}
    for start in range(0, len(task_ids), _AT_ONCE):
        some = [*task_ids[start : start + _AT_ONCE]]
        asked = RuntimeTaskInstance.get_task_states(dag_id=ti.dag_id, task_ids=some, run_ids=[ti.run_id])
        found |= asked.get(ti.run_id, {})
    states: dict[str, dict[int, str | None]] = {task_id: {} for task_id in task_ids}
    for name, state in found.items():
        if name in states:
            states[name][-1] = state
        else:
            # Airflow joins the two for a mapped task.
            task_id, _, index = name.rpartition("_")
            states[task_id][int(index)] = state
    return states
