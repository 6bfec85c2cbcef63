"""No worker starts a task or ends it, and there is no job."""

from __future__ import annotations

from airflow.sdk import DAG

from benchmarks.idle import IdleOperator
from benchmarks.tasks.shape import TASK_IDS, WAIT

with DAG("floor"):
    for task_id in TASK_IDS:
        IdleOperator(task_id=task_id, seconds=WAIT)
