"""A chain of tasks, each of which submits its job when the one before it has ended."""

from __future__ import annotations

from airflow.sdk import DAG, chain

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from benchmarks.chains.shape import STAGES, command

with DAG("plain", default_args={"deferrable": True}):
    chain(
        *(
            SbatchOperator(task_id=f"job_{stage}", command=command("plain", stage, "{{ dag_run.conf.round }}"))
            for stage in range(STAGES)
        )
    )
