"""A worker starts each task and another ends it; neither waits."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from benchmarks.tasks.shape import COMMAND, JOB_NAME, TASK_IDS

with DAG("deferred"):
    for task_id in TASK_IDS:
        SbatchOperator(task_id=task_id, command=COMMAND, name=JOB_NAME, deferrable=True)
