"""Chains of tasks, each of which submits its job when the one before it has ended: deferred, and without a worker."""

from __future__ import annotations

from airflow.sdk import DAG, chain

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from benchmarks.chains.shape import STAGES, command

for way, option in {"plain": "deferrable", "triggerer": "start_from_trigger"}.items():
    with DAG(way, default_args={option: True}):
        chain(
            *(
                SbatchOperator(task_id=f"job_{stage}", command=command(way, stage, "{{ dag_run.conf.round }}"))
                for stage in range(STAGES)
            )
        )
