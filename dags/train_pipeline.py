"""Prepare data, train one model per learning rate side by side, evaluate, and return the best.

A pipeline of ordinary batch scripts. They are Jinja templates beside this file, so you can choose the learning rates
in the trigger form. All jobs are in Slurm's queue from the start, and each starts as soon as the previous one has
succeeded. The trainings are one job array, each on a whole GPU node. When the array starts, Slurm powers up nodes
that are off.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_provider_soperator.operators.pipeline import SbatchPipeline
from airflow_provider_soperator.operators.sbatch import SbatchOperator


@dag(
    description=__doc__.splitlines()[0],
    schedule=None,
    params={"learning_rates": Param([0.01, 0.03, 0.1, 0.3], type="array", items={"type": "number"})},
    default_args={
        "slurm_conn_id": "soperator_default",
        "partition": "main",
        "time_limit": timedelta(minutes=10),
        # The triggerer waits for the jobs, so they hold no Airflow worker.
        "deferrable": True,
        # For failures that a retry can fix: a failed node, a script that exits with an error. If the job of the
        # previous try still runs, for example after an Airflow process has died, the retry continues with it.
        "retries": 2,
        "retry_delay": timedelta(seconds=10),
        # Seconds. These jobs are short; for jobs of hours the default of 10 is enough.
        "poll_interval": 1,
    },
    doc_md=__doc__,
    tags=["soperator", "example"],
)
def train_pipeline() -> None:
    with SbatchPipeline("model"):
        prepare = SbatchOperator(task_id="prepare", script="train_pipeline/prepare.sbatch", gpus_per_node=1)
        train = SbatchOperator(
            task_id="train",
            script="train_pipeline/train.sbatch",
            # One job with an element for each learning rate. sweep.py makes each one a task.
            array="0-{{ params.learning_rates | length - 1 }}",
            nodes=1,
            gpus_per_node=8,
        )
        evaluate = SbatchOperator(
            task_id="evaluate",
            script="train_pipeline/evaluate.sbatch",
            gpus_per_node=1,
            # The task returns what the job prints last, here the comparison of the models.
            result="json",
        )
        # In Slurm this is --dependency=afterok. Airflow adds no delay between two jobs.
        prepare >> train >> evaluate

    @task
    def best(evaluated: dict[str, Any]) -> dict[str, Any]:
        """Take the result of a job; its times, nodes and output file are in the XCom ``job`` of its task."""
        print("The best learning rate is", evaluated["learning_rate"])
        return evaluated

    best(evaluate.output)


train_pipeline()
