"""Every night, once nobody's jobs have been in the way for a while, tidy up the file system that all nodes share.

A sensor watches the whole queue, whoever has submitted the jobs in it, and costs a worker nothing while it waits.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.sensors.jobs import SlurmQueueSensor


@dag(
    schedule="0 3 * * *",
    catchup=False,
    # A night that has not become quiet when the next one begins gives way to it.
    max_active_runs=1,
    params={"folder": "train_pipeline", "keep_days": 14},
    default_args={"slurm_conn_id": "soperator_default", "deferrable": True},
    doc_md=__doc__,
    tags=["soperator", "example"],
)
def tidy_up() -> None:
    queue_is_empty = SlurmQueueSensor(
        task_id="queue_is_empty",
        # All jobs that wait or run there. Other conditions are states, user, account, qos, name, reason and waited.
        jobs={"partition": "main"},
        at_most=0,
        # Between two jobs of a chain a queue can be empty, too.
        lasting=timedelta(seconds=20),
        poke_interval=10,
        # Where there is always work a night is left out, and that is no failure.
        timeout=timedelta(hours=4).total_seconds(),
        soft_fail=True,
    )
    tidy = SbatchOperator(
        task_id="tidy",
        script="tidy_up/tidy.sbatch",
        partition="main",
        # Nodes without GPUs, which are always on.
        constraint="platform-cpu",
        # Should anybody's job come in between, this one waits.
        nice=1000,
        time_limit=timedelta(hours=1),
    )

    queue_is_empty >> tidy


tidy_up()
