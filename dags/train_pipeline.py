"""Prepare data, train one model per learning rate side by side, evaluate, and return the best.

A pipeline of batch scripts as people have them. The scripts lie beside this file and are Jinja templates, so the
learning rates can be chosen where a run is triggered. All jobs are in Slurm's queue from the start, and each begins as
soon as the one before it has succeeded. The trainings are one job array, each on a whole GPU node: nodes that are off
are powered up by Slurm as the array starts.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.operators.pipeline import SbatchPipeline
from airflow_provider_soperator.operators.sbatch import SbatchOperator


@dag(
    schedule=None,
    params={"learning_rates": Param([0.01, 0.03, 0.1, 0.3], type="array", items={"type": "number"})},
    default_args={
        "slurm_conn_id": "soperator_default",
        "partition": "main",
        "time_limit": timedelta(minutes=10),
        # The triggerer waits for the jobs: however long they take, they hold no worker of Airflow's.
        "deferrable": True,
        # For what another try can mend: a node that fails, a script that exits with an error. A try that finds the job
        # of the one before at work, as when a process of Airflow's has died, goes on with it.
        "retries": 2,
        "retry_delay": timedelta(seconds=10),
        # Seconds. These jobs are short; for those that take hours the default of 10 will do.
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
            # One job with an element for each learning rate. If they are to be tasks of their own, see sweep.py.
            array="0-{{ params.learning_rates | length - 1 }}",
            nodes=1,
            gpus_per_node=8,
        )
        evaluate = SbatchOperator(task_id="evaluate", script="train_pipeline/evaluate.sbatch", gpus_per_node=1)
        # In Slurm this is --dependency=afterok. No time of Airflow's passes between two of the jobs.
        prepare >> train >> evaluate

    @task
    def best(evaluated: dict[str, Any]) -> Any:
        """What a job has found out, brought into Airflow: here the last line that it has printed."""
        with SlurmHook().client() as slurm:
            printed = slurm.read_file(evaluated["output"]).decode()
        return json.loads(printed.splitlines()[-1])

    # The result of an SbatchOperator says where the job has run, for how long, and where its output is.
    best(evaluate.output)


train_pipeline()
