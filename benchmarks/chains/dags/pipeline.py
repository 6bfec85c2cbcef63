"""A chain of jobs that lives in Slurm."""

from __future__ import annotations

from airflow.sdk import DAG, chain

from airflow_provider_soperator.operators.pipeline import SbatchPipeline
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from benchmarks.chains.shape import STAGES, command

with DAG("pipeline", default_args={"deferrable": True}), SbatchPipeline("jobs"):
    chain(
        *(
            SbatchOperator(task_id=f"job_{stage}", command=command("pipeline", stage, "{{ dag_run.conf.round }}"))
            for stage in range(STAGES)
        )
    )
