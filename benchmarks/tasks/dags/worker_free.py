"""No worker starts a task or ends it."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from benchmarks.tasks.shape import COMMAND, JOB_NAME, TASK_IDS

with DAG("worker_free"):
    for task_id in TASK_IDS:
        SbatchOperator(task_id=task_id, command=COMMAND, name=JOB_NAME, start_from_trigger=True, end_from_trigger=True)
