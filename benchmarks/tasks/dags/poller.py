"""A worker submits each job, and a trigger asks for it alone, over an SSH connection of its own."""

from __future__ import annotations

from airflow.sdk import DAG

from benchmarks.tasks.polling import PolledJobOperator
from benchmarks.tasks.shape import COMMAND, JOB_NAME, TASK_IDS

with DAG("poller"):
    for task_id in TASK_IDS:
        PolledJobOperator(task_id=task_id, command=f"sbatch --parsable --job-name='{JOB_NAME}' --wrap '{COMMAND}'")
