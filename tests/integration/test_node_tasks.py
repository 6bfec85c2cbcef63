"""Operators and sensors of nodes on a real Slurm, without Airflow's processes: what they do, and what they refuse."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.reservations import ReservationLease
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.operators.nodes import (
    CreateReservationOperator,
    DeleteReservationOperator,
    DrainNodesOperator,
    PowerDownNodesOperator,
    PowerUpNodesOperator,
    UndrainNodesOperator,
)
from airflow_provider_soperator.sensors.nodes import NodeStateSensor
from sandbox.cloud.landscape import BLOCK_ID
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.late import too_late
from tests.integration.scaling import bring

Perform = Callable[..., Any]


@pytest.fixture
def perform(connections: Connections) -> Perform:
    """Executes a task as a worker would, over a connection to the sandbox."""
    conn_id = connections.login_node().slurm_conn_id

    def perform(operator: type[Any], **options: Any) -> Any:
        pace: dict[str, Any] = {}
        if operator is NodeStateSensor:
            pace = {"poke_interval": 0.2}
        elif "Reservation" not in operator.__name__:
            pace = {"poll_interval": 0.2, "drain_owner": "night"}
        return operator(task_id="task", **{"slurm_conn_id": conn_id, **pace, **options}).execute({"ti": None})

    return perform


@pytest.mark.leaves("drains")
def test_a_count_means_the_same_nodes_in_each_try(perform: Perform, cluster: Cluster) -> None:
    up = {"count": 3, "partition": "main"}
    first = perform(PowerUpNodesOperator, **up)
    assert first["already"] == ["worker-0"]
    assert perform(PowerUpNodesOperator, **up)["already"] == first["nodes"]
    job = cluster.held_job("--nodelist=worker-0")
    cluster.wait_job(job, "RUNNING")
    # One is off, and of the others the one with a job stays.
    down = {"count": 3, "partition": "main", "stay_down": True}
    gone = perform(PowerDownNodesOperator, **down)
    assert gone["nodes"] == ["worker-1", "worker-2", "worker-3"]
    assert perform(PowerDownNodesOperator, **down)["already"] == gone["nodes"]
    assert cluster.job_state(job) == "RUNNING"


def test_a_node_that_others_have_reserved_is_not_one_of_a_number(perform: Perform, cluster: Cluster) -> None:
    hour = {"users": ["root"], "duration": timedelta(hours=1)}
    perform(CreateReservationOperator, name="kept", nodes="worker-0", **hour)
    try:
        # slurmctld marks the nodes of reservations every few seconds.
        cluster.wait("worker-0 is reserved", lambda: "RESERVED" in cluster.node("worker-0").state)
        # Three are off, and the one that is on is kept.
        with pytest.raises(AirflowFailException, match=r"4 nodes are wanted, and there are 3 .*drained or reserved"):
            perform(PowerDownNodesOperator, count=4, partition="main")
    finally:
        perform(DeleteReservationOperator, name="kept")
    assert "POWER" not in "".join(cluster.node("worker-0").state)


def test_drains_of_others_are_undone_by_force_only(perform: Perform, cluster: Cluster) -> None:
    perform(DrainNodesOperator, nodes="worker-0", reason="new driver", drain_owner="day")
    assert cluster.node("worker-0").reason == "airflow:day: new driver"
    with pytest.raises(AirflowException, match=r"is drained by root: airflow:day: new driver.*name their owner: day"):
        perform(UndrainNodesOperator, nodes="worker-0")
    with pytest.raises(AirflowException, match="is drained by root"):
        perform(PowerUpNodesOperator, nodes="worker-[0-1]")
    # Nothing was half done.
    assert "POWERED_DOWN" in cluster.node("worker-1").state
    assert perform(UndrainNodesOperator, nodes="worker-0", any_owner=True)["already"] == []
    assert "DRAIN" not in cluster.node("worker-0").state


def test_what_a_shift_has_claimed_in_the_same_slurm_is_not_free(
    perform: Perform, connections: Connections, cluster: Cluster
) -> None:
    conn_id, now = connections.login_node().slurm_conn_id, datetime.now(timezone.utc)
    record = ShiftRecord(key="shift", task="shift", claims={"worker-[1-3]": [32, now.timestamp() + 7200]})
    up = {"nodes": "worker-1", "block": BLOCK_ID}

    async def write() -> None:
        async with SlurmHook(conn_id).async_client() as client:
            lease = ReservationLease(client.ask, BLOCK_ID, "shift", ("worker-0",), "root")
            assert await lease.write(record, now, timedelta(hours=2), None)

    asyncio.run(write())
    try:
        waits = f"worker-1 waits for its GPUs: block {BLOCK_ID} has 0 GPUs left"
        too_late(lambda within: perform(PowerUpNodesOperator, **up, timeout=timedelta(seconds=within)), waits)
        training = SlurmNodesTarget(name="training", nodes="worker-[0-1]", slurm_conn_id=conn_id)
        too_late(lambda within: bring(training, 2, within=within, block=BLOCK_ID), "1 of 2 nodes are ready")
        assert "POWERED_DOWN" in cluster.node("worker-1").state
    finally:
        [lease] = re.findall("ReservationName=(airflow-shift-[^ ]+)", cluster.run("scontrol", "show", "reservation"))
        perform(DeleteReservationOperator, name=lease)
    assert perform(PowerUpNodesOperator, **up)["nodes"] == ["worker-1"]


@pytest.mark.leaves("drains")
def test_who_is_late_says_where_the_nodes_are(perform: Perform, cluster: Cluster) -> None:
    job = cluster.held_job("--nodelist=worker-0")
    cluster.wait_job(job, "RUNNING")
    both = {"nodes": ["worker-0", "worker-cpu-0"], "reason": "r", "wait_for_jobs": True}
    too_late(
        lambda within: perform(DrainNodesOperator, **both, timeout=timedelta(seconds=within)),
        r"not done within \d+:\d\d:[^ ]+: worker-cpu-0: there; worker-0 has jobs",
    )
    cluster.let_go(job)


@pytest.mark.parametrize(
    ("operator", "options", "says"),
    [
        (PowerUpNodesOperator, {"nodes": "worker-[0,9]"}, "there is no node worker-9: did you mean 'worker-"),
        (PowerDownNodesOperator, {"nodes": "worker-cpu-0"}, "worker-cpu-0 cannot be powered up or down"),
        (PowerDownNodesOperator, {"count": 40, "partition": "main"}, "40 nodes are wanted, and there are 4"),
        (PowerUpNodesOperator, {"count": 1, "partition": "mian"}, "there is no partition mian"),
        (PowerUpNodesOperator, {"count": 1, "features": ["h900"]}, "1 nodes are wanted, and there are 0"),
        (CreateReservationOperator, {"nodes": "nowhere", "name": "x", "users": ["root"]}, "there is no node nowhere"),
        (NodeStateSensor, {"nodes": "worker-9", "target_state": "up"}, "there is no node worker-9"),
        (NodeStateSensor, {"nodes": "worker-0", "target_state": "up", "match": 2}, "there are 1 nodes only"),
    ],
)
def test_what_can_never_be_is_not_tried_again(
    perform: Perform, operator: type[Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(AirflowFailException) as refused:
        perform(operator, **options)
    assert says in str(refused.value)


def test_who_has_no_rights_is_named(perform: Perform, connections: Connections, cluster: Cluster) -> None:
    alice = connections.login_node(login="alice").slurm_conn_id
    with pytest.raises(AirflowFailException, match=r"alice may not change nodes .*AdminLevel"):
        perform(DrainNodesOperator, nodes="worker-0", reason="mine", slurm_conn_id=alice)
    assert "DRAIN" not in cluster.node("worker-0").state


def test_a_reservation_is_made_once(perform: Perform, cluster: Cluster) -> None:
    start = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=2)
    night = {"name": "night", "users": ["root"], "start": start.isoformat(), "duration": timedelta(hours=1)}
    made = perform(CreateReservationOperator, nodes="worker-3", **night)
    assert (made["nodes"], made["already"], made["start"]) == (["worker-3"], False, start.isoformat())
    assert perform(CreateReservationOperator, count=1, **night) == {**made, "already": True}
    with pytest.raises(AirflowFailException, match="with nodes worker-3, not worker-2: delete it"):
        perform(CreateReservationOperator, nodes="worker-2", **night)
    with pytest.raises(AirflowFailException, match="with users root, not alice"):
        perform(CreateReservationOperator, nodes="worker-3", **{**night, "users": ["alice"]})
    waiting = cluster.sbatch("--hold", "--reservation=night")
    with pytest.raises(AirflowException, match="night stays while jobs run in it or wait for it") as kept:
        perform(DeleteReservationOperator, name="night")
    assert not isinstance(kept.value, AirflowFailException), "another try may help"
    cluster.run("scancel", waiting)
    assert perform(DeleteReservationOperator, name="night") is True
    assert perform(DeleteReservationOperator, name="night") is False


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"nodes": "worker-[0-3]", "target_state": "powered down", "match": 3}, ["worker-1", "worker-2", "worker-3"]),
        ({"nodes": "worker-[0-1]", "target_state": "usable", "match": "any"}, ["worker-0"]),
        ({"nodes": "worker-0", "target_state": "idle"}, ["worker-0"]),
    ],
)
def test_sensors_see_nodes(perform: Perform, options: dict[str, Any], found: list[str]) -> None:
    assert perform(NodeStateSensor, **options)["nodes"] == found
