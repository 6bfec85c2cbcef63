"""A worker waits for each job, in an ``sbatch --wait`` over an SSH connection of its own."""

from __future__ import annotations

from airflow.providers.ssh.operators.ssh import SSHOperator
from airflow.sdk import DAG

from benchmarks.tasks.shape import COMMAND, JOB_NAME, TASK_IDS

with DAG("ssh_operator"):
    for task_id in TASK_IDS:
        SSHOperator(
            task_id=task_id,
            ssh_conn_id="ssh_default",
            command=f"sbatch --wait --job-name='{JOB_NAME}' --wrap '{COMMAND}'",
            cmd_timeout=None,
        )
