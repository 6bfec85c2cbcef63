"""The log of a task that fails in the triggerer says why, also where Airflow is far behind with what triggers say."""

from __future__ import annotations

import pytest

from tests.airflow.stack import Stack

COUNT = 8
TASKS = f"""
for number in range({COUNT}):
    SbatchOperator(task_id=f"fails_{{number}}", command="exit 3", start_from_trigger=True, poll_interval=1)
"""

# All other tasks in the triggerer wait meanwhile.
pytestmark = pytest.mark.in_order


def test_the_cause_of_a_failure_reaches_the_log_of_its_task(stack: Stack) -> None:
    run = stack.add_dag("logs_of_triggers", TASKS).trigger()
    tasks = [f"fails_{number}" for number in range(COUNT)]
    with stack.components["triggerer"].slowed():
        for task_id in tasks:
            run.wait(task_id, "failed")
    for task_id in tasks:
        run.wait_log(task_id, "with exit code 3")
