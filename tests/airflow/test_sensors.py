"""Sensors of jobs and queues, in a worker and in the triggerer."""

from __future__ import annotations

import pytest

from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

TASKS = """
from datetime import timedelta

from airflow_provider_soperator.sensors.jobs import SlurmJobSensor, SlurmQueueSensor

for deferrable in (False, True):
    common = {"deferrable": deferrable, "poke_interval": 1}
    SlurmJobSensor(task_id=f"over_{deferrable}", job_id="{{ params.good }}", **common)
    SlurmJobSensor(task_id=f"running_{deferrable}", job_id="{{ params.held }}", states=["RUNNING"], **common)
    SlurmJobSensor(task_id=f"failed_{deferrable}", job_id="{{ params.bad }}", **common)
    waits = {"name": "sensed-*", "states": ["RUNNING"]}
    SlurmQueueSensor(task_id=f"some_{deferrable}", jobs=waits, at_least=1, lasting=timedelta(seconds=2), **common)
    SlurmQueueSensor(task_id=f"none_{deferrable}", jobs={"name": "sensed-*", "partition": "main"}, at_most=0, **common)
"""


@pytest.fixture(scope="module")
def run(stack: Stack, slurm: Cluster) -> Run:
    """A run whose queue sensors wait for a job that runs until they have seen it."""
    good, bad = slurm.sbatch(wrap="true"), slurm.sbatch(wrap="exit 3")
    held = slurm.held_job("--job-name=sensed-1")
    params = f"params={{'good': '{good}', 'bad': '{bad}', 'held': '{held}'}}"
    run = stack.add_dag("sensors", TASKS, dag_options=params).trigger()
    for deferrable in (False, True):
        run.wait(f"running_{deferrable}", "success")
        run.wait(f"some_{deferrable}", "success")
        assert run.task(f"none_{deferrable}")["state"] != "success"
    slurm.let_go(held)
    return run


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_job_that_is_over_is_told_of(run: Run, deferrable: bool) -> None:
    run.wait(f"over_{deferrable}", "success")
    assert run.xcom(f"over_{deferrable}")["state"] == "COMPLETED"


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_state_before_the_end_can_be_waited_for(run: Run, deferrable: bool) -> None:
    assert run.xcom(f"running_{deferrable}")["state"] == "RUNNING"


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_job_that_failed_fails_the_sensor(run: Run, deferrable: bool) -> None:
    run.wait(f"failed_{deferrable}", "failed")
    assert "with exit code 3" in run.wait_log(f"failed_{deferrable}", "JobFailed")


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_queue_is_counted(run: Run, deferrable: bool) -> None:
    assert run.xcom(f"some_{deferrable}") == {"count": 1, "states": {"RUNNING": 1}}
    run.wait(f"none_{deferrable}", "success")
    assert run.xcom(f"none_{deferrable}") == {"count": 0, "states": {}}
