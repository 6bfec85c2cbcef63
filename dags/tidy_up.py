"""Every night, once the queue has been empty for a while, tidy up the file system that all nodes share.

A sensor watches the jobs of all users, and holds no Airflow worker while it waits. Folders in ``folder`` that have not
changed for ``keep_days`` are deleted, so the DAG is paused at first.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.sensors.jobs import SlurmQueueSensor


@dag(
    description=__doc__.splitlines()[0],
    schedule="0 3 * * *",
    catchup=False,
    # The next night's run waits until this one has ended.
    max_active_runs=1,
    is_paused_upon_creation=True,
    params={"folder": "train_pipeline", "keep_days": 14},
    default_args={"slurm_conn_id": "soperator_default", "deferrable": True},
    doc_md=__doc__,
    tags=["soperator", "example"],
)
def tidy_up() -> None:
    queue_is_empty = SlurmQueueSensor(
        task_id="queue_is_empty",
        # All jobs that wait or run in it. Other conditions are states, user, account, qos, name, reason and waited.
        job_filter={"partition": "main"},
        max_jobs=0,
        # A queue can also be empty between two jobs of a chain.
        min_duration=timedelta(seconds=20),
        poke_interval=10,
        # If the queue never empties, this night is skipped, without a failure.
        timeout=timedelta(hours=4).total_seconds(),
        soft_fail=True,
    )
    tidy = SbatchOperator(
        task_id="tidy",
        script="tidy_up/tidy.sbatch",
        partition="main",
        # The nodes without GPUs, which are always on.
        constraint="platform-cpu",
        # Other jobs go first.
        nice=1000,
        time_limit=timedelta(hours=1),
    )

    queue_is_empty >> tidy


tidy_up()
