"""Tasks that move nodes, in Airflow's processes: in the triggerer, in a worker, and in one that dies on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

# Nodes: tests/integration/test_node_moves; that a try goes on with what the last one began: test_sbatch_deaths.
pytestmark = [pytest.mark.lane("second airflow"), pytest.mark.soak]

HEAD = """\
from airflow_provider_soperator.operators.nodes import PowerDownNodesOperator, PowerUpNodesOperator
from airflow_provider_soperator.sensors.nodes import NodeStateSensor

common = {"poll_interval": 0.5, "retry_delay": timedelta(seconds=1)}
"""
TASKS = """
names = "{{ ti.xcom_pull('up')['nodes'] | join(',') }}"
up = PowerUpNodesOperator(task_id="up", nodes="worker-[1-2]", deferrable=True, **common)
down = PowerDownNodesOperator(task_id="down", nodes=names, stay_down=True, reason="lent", **common)
seen = NodeStateSensor(task_id="seen", nodes=names, target_state="off", deferrable=True, poke_interval=1)
up >> down >> seen
# It waits for a job on worker-0.
PowerDownNodesOperator(task_id="survivor", nodes="worker-0", retries=2, **common)
PowerDownNodesOperator(task_id="static", nodes="worker-cpu-0", retries=2, **common)
"""


@pytest.fixture(scope="module")
def run(stack: Stack, slurm: Cluster) -> Iterator[Run]:
    """A run in which the worker of a task has died, after it has given its order."""
    slurm.reset()
    job = slurm.held_job("--nodelist=worker-0")
    slurm.wait_job(job, "RUNNING")
    run = stack.add_dag("moves", TASKS, head=HEAD).trigger()
    slurm.wait_node("worker-0", has={"POWER_DOWN", "DRAIN"})
    os.kill(run.wait("survivor", "running")["pid"], signal.SIGKILL)
    run.wait("survivor", "running", least_try=2)
    run.wait_log("survivor", "powers down after its jobs")
    slurm.let_go(job)
    yield run
    slurm.reset()


def test_nodes_go_up_and_down(run: Run, slurm: Cluster) -> None:
    run.wait("seen", "success")
    assert run.xcom("up")["nodes"] == run.xcom("down")["nodes"] == run.xcom("seen")["nodes"] == ["worker-1", "worker-2"]
    assert slurm.node("worker-2").reason == "airflow:moves: lent"
    log = run.wait_log("down", "worker-[1-2]: there")
    assert log.count("worker-[1-2] is powering down") == 1


def test_a_task_whose_worker_dies_goes_on(run: Run) -> None:
    assert run.wait("survivor", "success")["try_number"] == 2


def test_what_is_refused_is_not_tried_again(run: Run) -> None:
    run.wait("static", "failed")
    assert run.task("static")["try_number"] == 1
    run.wait_log("static", "worker-cpu-0 cannot be powered up or down")
