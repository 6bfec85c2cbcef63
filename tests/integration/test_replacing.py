"""Nodes get other machines: what the operator orders, and what Soperator's controllers and the cloud make of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.operators.nodes import ReplaceNodesOperator
from airflow_provider_soperator.triggers.work import WorkTrigger
from airflow_provider_soperator.work.protocols import succeeded
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.patience import PATIENCE

Replace = Callable[..., Any]


@pytest.fixture
def checks(cluster: Cluster) -> None:
    """Soperator's check controllers, which the end of the test switches off."""
    cluster.fault("checks", switch="on")


@pytest.fixture
def operator(connections: Connections) -> Callable[..., ReplaceNodesOperator]:
    conn_id = connections.login_node().slurm_conn_id

    def operator(nodes: str, **options: Any) -> ReplaceNodesOperator:
        ids = {"slurm_conn_id": conn_id, "kubernetes_conn_id": "kubernetes_default"}
        common: dict[str, Any] = {**ids, "poll_interval": 0.2, "timeout": timedelta(seconds=PATIENCE)}
        return ReplaceNodesOperator(task_id="replace", nodes=nodes, drain_owner="test", **{**common, **options})

    return operator


@pytest.fixture
def replace(operator: Callable[..., ReplaceNodesOperator]) -> Replace:
    """Executes the task as a worker would."""

    def replace(nodes: str, **options: Any) -> Any:
        return operator(nodes, **options).execute({"ti": None})  # type: ignore[typeddict-item]

    return replace


@pytest.fixture
def at_work(replace: Replace) -> Iterator[Callable[..., threading.Thread]]:
    """The task in a thread of its own, with what comes of it."""
    results: dict[str, Any] = {}

    def start(nodes: str, **options: Any) -> dict[str, Any]:
        thread = threading.Thread(target=lambda: results.update(replace(nodes, **options)))
        thread.start()
        threads.append(thread)
        return results

    threads: list[threading.Thread] = []
    yield start
    for thread in threads:
        thread.join(PATIENCE)


@pytest.mark.each_slurm
def test_a_machine_is_replaced_once_its_jobs_have_ended(
    cluster: Cluster, checks: None, at_work: Any, operator: Callable[..., ReplaceNodesOperator]
) -> None:
    began = datetime.now(timezone.utc)
    old = cluster.machine_of("worker-0")
    job = cluster.held_job("--nodelist=worker-0")
    cluster.wait_job(job, "RUNNING")
    results = at_work("worker-[0-1]", reason="NVLink")
    drained = cluster.wait_node("worker-0", has={"DRAIN"})
    assert drained.reason == "[hardware_problem] airflow:test: NVLink"
    assert cluster.machine_of("worker-0") == old
    cluster.let_go(job)
    cluster.wait("it is over", lambda: results)
    new = cluster.machine_of("worker-0")
    # worker-1 is off.
    assert results.keys() == {"worker-0"}
    assert (results["worker-0"]["old"], results["worker-0"]["new"]) == (old, new)
    assert old != new
    assert cluster.job_state(job) == "COMPLETED"
    cluster.wait_node("worker-0", has={"IDLE"}, lacks={"DRAIN"})
    # A try after one that has died, and has not heard of that.
    again: Any = {"ti": SimpleNamespace(try_number=2), "dag_run": SimpleNamespace(start_date=began)}
    event = asyncio.run(WorkTrigger(operator("worker-0").work(again).write()).event())
    assert event == succeeded({"worker-0": {"old": None, "new": new, "seconds": 0.0}})


@pytest.mark.oldest_slurm
def test_slurm_knows_the_machines_too(cluster: Cluster, checks: None, replace: Replace) -> None:
    old = cluster.node("worker-0").instance_id
    assert replace("worker-0", kubernetes_conn_id=None)["worker-0"]["old"] == old
    assert cluster.node("worker-0").instance_id == cluster.machine_of("worker-0") != old


def test_nobody_acts(cluster: Cluster, replace: Replace) -> None:
    with pytest.raises(AirflowException, match=r"Soperator did not react within 0:00:01.*taken back: worker-0"):
        replace("worker-0", response_timeout=timedelta(seconds=1))
    assert "DRAIN" not in cluster.node("worker-0").state


def test_a_task_that_is_killed_gives_back_what_is_not_begun(
    cluster: Cluster, checks: None, operator: Callable[..., ReplaceNodesOperator]
) -> None:
    job = cluster.held_job("--nodelist=worker-0")
    cluster.wait_job(job, "RUNNING")
    task, machine = operator("worker-0,worker-cpu-0"), cluster.machine_of("worker-0")

    def kill() -> None:
        cluster.wait_node("worker-0", has={"DRAIN"})
        task.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(AirflowException, match=r"told to end.*taken back: worker-0. Untouched: worker-cpu-0"):
        task.execute({"ti": None})  # type: ignore[typeddict-item]
    killer.join()
    assert "DRAIN" not in cluster.node("worker-0").state
    assert cluster.machine_of("worker-0") == machine
    cluster.let_go(job)


def test_jobs_may_be_requeued_or_cancelled(cluster: Cluster, checks: None, replace: Replace) -> None:
    jobs = [cluster.held_job("--nodelist=worker-0", f"--{which}") for which in ("requeue", "no-requeue")]
    for job in jobs:
        cluster.wait_job(job, "RUNNING")
    replace("worker-0", mode="force", grace=timedelta(seconds=1))
    assert cluster.job_state(jobs[0]) in ("PENDING", "RUNNING", "CONFIGURING+RUNNING")
    assert cluster.job_state(jobs[1]) == "CANCELLED"


def test_what_is_refused(cluster: Cluster, replace: Replace, connections: Connections) -> None:
    cluster.fault("node-drain", node="worker-0", reason="[user_problem] boot_disk_full: 99%")
    with pytest.raises(AirflowException, match=r"worker-0 is drained by root: \[user_problem\].*any_owner=True"):
        replace("worker-[0-1]")
    with pytest.raises(AirflowFailException, match="there is no node worker-9"):
        replace("worker-9")
    alice = connections.login_node(login="alice").slurm_conn_id
    with pytest.raises(AirflowFailException, match=r"alice may not change nodes .*AdminLevel"):
        replace("worker-cpu-0", slurm_conn_id=alice)
    assert "DRAIN" not in cluster.node("worker-cpu-0").state


def test_what_slurm_has_not_learnt(cluster: Cluster, replace: Replace) -> None:
    cluster.power_up("worker-1")
    # As it is after the power up on Slurm 26.05. Up to 25.11 each slurmd that starts has told it.
    cluster.run("scontrol", "update", "nodename=worker-1", "instanceid=")
    with pytest.raises(AirflowFailException, match="Slurm has not learnt which machine worker-1 is on: give kube"):
        replace("worker-1", kubernetes_conn_id=None)
