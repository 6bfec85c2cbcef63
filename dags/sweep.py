"""Search for hyper-parameters: one mapped task, one job, one log and one set of retries for each point of a grid.

Mapped tasks cost Airflow more than the elements of a job array (see train_pipeline.py), and each can be retried,
cleared, skipped and read by itself. Points that turn out to be useless are skipped and do no harm to the rest.
"""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import product
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.operators.sbatch import SbatchOperator

NUMBERS = {"type": "array", "items": {"type": "number"}}


@dag(
    schedule=None,
    params={
        "learning_rates": Param([0.1, 0.3, 1.4], **NUMBERS),
        "momenta": Param([0.0, 0.5], **NUMBERS),
    },
    default_args={"slurm_conn_id": "soperator_default", "partition": "main", "deferrable": True, "poll_interval": 1},
    doc_md=__doc__,
    tags=["soperator", "example"],
)
def sweep() -> None:
    @task
    def grid(params: dict[str, Any]) -> list[dict[str, str]]:
        """The variables of each job's environment."""
        points = product(params["learning_rates"], params["momenta"])
        return [{"LEARNING_RATE": str(rate), "MOMENTUM": str(momentum)} for rate, momentum in points]

    fit = SbatchOperator.partial(
        task_id="fit",
        script="sweep/fit.sbatch",
        gpus_per_node=1,
        time_limit=timedelta(minutes=5),
        # What each is called in Airflow's pages, where it would be a number.
        map_index_template="rate {{ task.job.env.LEARNING_RATE }}, momentum {{ task.job.env.MOMENTUM }}",
        # As many of one run as may be in Slurm's queue at a time.
        max_active_tis_per_dagrun=16,
        # By the job's exit code or by its state in Slurm. The script exits with 3 when a point is of no use; one that
        # takes too long is of none either. What is not said here is retried, if another try can help.
        on_finish={3: "skip", "TIMEOUT": "skip"},
        retries=2,
        retry_delay=timedelta(seconds=10),
    ).expand(env=grid())

    # Skipped points may be missing, failed ones may not.
    @task(trigger_rule="none_failed_min_one_success")
    def best(fitted: list[dict[str, Any]]) -> Any:
        """The last line of each job's output has the loss that it has reached."""
        with SlurmHook().client() as slurm:
            ends = [slurm.read_file(job["output"]).decode().splitlines()[-1] for job in fitted]
        return min(map(json.loads, ends), key=lambda end: end["loss"])

    best(fit.output)


sweep()
