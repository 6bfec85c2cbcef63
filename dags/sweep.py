"""Search for hyperparameters: each point of a grid is one mapped task, with its own job, log and retries.

Mapped tasks cost Airflow more than the elements of a job array (see train_pipeline.py), but you can retry, clear,
skip and read each one separately. Useless points are skipped and do not affect the rest.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_provider_soperator.operators.sbatch import SbatchOperator

NUMBERS = {"type": "array", "items": {"type": "number"}}


@dag(
    description=__doc__.splitlines()[0],
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
        """The environment variables of each job."""
        points = product(params["learning_rates"], params["momenta"])
        return [{"LEARNING_RATE": str(rate), "MOMENTUM": str(momentum)} for rate, momentum in points]

    fit = SbatchOperator.partial(
        task_id="fit",
        script="sweep/fit.sbatch",
        gpus_per_node=1,
        time_limit=timedelta(minutes=5),
        # The last line of the job's output is what the task returns.
        result="json",
        # The name of each mapped task in Airflow's UI, instead of a number.
        map_index_template="rate {{ task.job.env.LEARNING_RATE }}, momentum {{ task.job.env.MOMENTUM }}",
        # At most this many jobs of a run are in Slurm's queue at a time.
        max_active_tis_per_dagrun=16,
        # By exit code or by the job's state in Slurm. The script exits with 3 when a point is useless; one that takes
        # too long is useless, too. Other failures are retried if a retry can help.
        on_finish={3: "skip", "TIMEOUT": "skip"},
        retries=2,
        retry_delay=timedelta(seconds=10),
    ).expand(env=grid())

    # Skipped points are fine, failed ones are not.
    @task(trigger_rule="none_failed_min_one_success")
    def best(fitted: list[dict[str, Any]]) -> Any:
        """The point with the lowest loss."""
        return min(fitted, key=lambda end: end["loss"])

    best(fit.output)


sweep()
