"""Sensors of jobs and queues: in a worker, in a worker again and again, and in the triggerer."""

from __future__ import annotations

import pytest

from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

WAYS = ("poke", "reschedule", "defer")
OF_A_JOB = ("poke", "defer")
TASKS = """
from datetime import timedelta

from airflow_provider_soperator.sensors.jobs import SlurmJobSensor, SlurmQueueSensor

# Airflow fails a task that it has rescheduled and that comes back before the scheduler has noticed.
ways = {
    "poke": {"poke_interval": 1},
    "reschedule": {"mode": "reschedule", "poke_interval": 20},
    "defer": {"deferrable": True, "poke_interval": 1},
}
for way, common in ways.items():
    # No look of a sensor that is rescheduled knows of the one before.
    min_duration = timedelta(seconds=0 if way == "reschedule" else 2)
    # A look is the same whether another follows in this process or in the next.
    if way != "reschedule":
        SlurmJobSensor(task_id=f"over_{way}", job_id="{{ params.good }}", **common)
        SlurmJobSensor(task_id=f"running_{way}", job_id="{{ params.held }}", target_states=["RUNNING"], **common)
        SlurmJobSensor(task_id=f"failed_{way}", job_id="{{ params.bad }}", **common)
    waits = {"name": "sensed-*", "states": ["RUNNING"]}
    SlurmQueueSensor(task_id=f"some_{way}", job_filter=waits, min_jobs=1, min_duration=min_duration, **common)
    SlurmQueueSensor(task_id=f"none_{way}", job_filter={"name": "sensed-*", "partition": "main"}, max_jobs=0, **common)
"""


@pytest.fixture(scope="module")
def run(stack: Stack, slurm: Cluster) -> Run:
    """A run whose queue sensors wait for a job that runs until they have seen it."""
    good, bad = slurm.sbatch(wrap="true"), slurm.sbatch(wrap="exit 3")
    held = slurm.held_job("--job-name=sensed-1")
    params = f"params={{'good': '{good}', 'bad': '{bad}', 'held': '{held}'}}"
    run = stack.add_dag("sensors", TASKS, dag_options=params).trigger()
    for way in OF_A_JOB:
        run.wait(f"running_{way}", "success")
    for way in WAYS:
        run.wait(f"some_{way}", "success")
        assert run.task(f"none_{way}")["state"] != "success"
    slurm.let_go(held)
    return run


@pytest.mark.parametrize("way", OF_A_JOB)
def test_a_job_that_is_over_is_told_of(run: Run, way: str) -> None:
    run.wait(f"over_{way}", "success")
    assert run.xcom(f"over_{way}")["state"] == "COMPLETED"


@pytest.mark.parametrize("way", OF_A_JOB)
def test_a_state_before_the_end_can_be_waited_for(run: Run, way: str) -> None:
    assert run.xcom(f"running_{way}")["state"] == "RUNNING"


@pytest.mark.parametrize("way", OF_A_JOB)
def test_a_job_that_failed_fails_the_sensor(run: Run, way: str) -> None:
    run.wait(f"failed_{way}", "failed")
    run.wait_log(f"failed_{way}", "with exit code 3")


@pytest.mark.parametrize("way", WAYS)
def test_a_queue_is_counted(run: Run, way: str) -> None:
    assert run.xcom(f"some_{way}") == {"count": 1, "states": {"RUNNING": 1}}
    run.wait(f"none_{way}", "success")
    assert run.xcom(f"none_{way}") == {"count": 0, "states": {}}
