"""A job that Slurm refuses, and one that is over at once, by each way to wait for them."""

from __future__ import annotations

from typing import Any

from airflow.providers.ssh.operators.ssh import SSHOperator
from airflow.sdk import DAG

from airflow_provider_soperator.operators.sbatch import SbatchOperator

WAYS: dict[str, dict[str, Any]] = {
    "worker": {"deferrable": False},
    "deferred": {"deferrable": True},
    "triggerer": {"start_from_trigger": True},
}
JOBS: dict[str, dict[str, Any]] = {"refused": {"partition": "nowhere"}, "short": {}}

for job, options in JOBS.items():
    for way, mode in WAYS.items():
        with DAG(f"{job}_{way}"):
            SbatchOperator(task_id="job", command="true", **options, **mode)
    with DAG(f"{job}_ssh_operator"):
        words = " ".join(f"--{name}={value}" for name, value in options.items())
        SSHOperator(task_id="job", ssh_conn_id="ssh_default", command=f"sbatch --wait {words} --wrap true")
