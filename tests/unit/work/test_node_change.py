"""What a node is ordered, and what it is called then."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node, Partition
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.requests import Drain, ListPartitions, PowerDown, Request
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.work.nodes import NodeChange
from airflow_provider_soperator.work.protocols import WorkRefused
from tests.unit.capacity.world import Log


@pytest.mark.parametrize("stays", [True, False])
def test_a_node_that_is_to_stay_down_is_drained_once_it_goes(stays: bool) -> None:
    change = NodeChange(
        action="down",
        nodes=("worker-0",),
        owner="nights",
        reason="lent",
        stay_down=stays,
        slurm_conn_id="soperator_default",
        since=datetime.now(timezone.utc),
        deadline=None,
    )
    node = Node(name="worker-0", state=NodeState.parse("IDLE"))
    [order] = change.decide([node]).orders
    assert isinstance(order, PowerDown)
    more = change.decide([replace(node, state=NodeState.parse("IDLE+POWERING_DOWN"))]).orders
    assert [(type(one), one.reason) for one in more] == [(Drain, "airflow:nights: lent")] * stays


class Slurm:
    """Nodes in states that a test says, and what they are told."""

    def __init__(self, **states: str) -> None:
        parted = {name: state.partition(": ") for name, state in states.items()}
        self.nodes = tuple(
            Node(name=name.replace("_", "-"), state=NodeState.parse(state), reason=reason)
            for name, (state, _, reason) in parted.items()
        )
        self.told: list[str] = []

    async def ask_shared(self, request: Request[Any], max_age: float) -> tuple[Node, ...]:
        return self.nodes

    async def config(self) -> ClusterConfig:
        return ClusterConfig(version="24.11.5", suspend_time=timedelta(minutes=10))

    async def ask(self, request: Request[Any]) -> Any:
        assert isinstance(request, PowerDown)
        self.told += request.names


class ByPartition(Slurm):
    """Slurm that powers down by the SuspendTime of partitions, or never."""

    has_suspend_time = True

    async def config(self) -> ClusterConfig:
        return ClusterConfig(version="24.11.5")

    async def ask(self, request: Request[Any]) -> Any:
        if isinstance(request, ListPartitions):
            return (Partition(name="main"), Partition(name="night", has_suspend_time=self.has_suspend_time))
        return await super().ask(request)


def down(slurm: Slurm, count: int) -> list[str]:
    now = datetime.now(timezone.utc)
    change = NodeChange(
        action="down", count=count, owner="nights", stay_down=True, slurm_conn_id="c", since=now, deadline=now
    )
    asyncio.run(change.begin(Log()).step(slurm))  # type: ignore[arg-type]
    return slurm.told


@pytest.mark.parametrize(
    "state",
    [
        "IDLE+CLOUD+RESERVED",
        "IDLE+CLOUD+MAINTENANCE",
        "IDLE+CLOUD+DRAIN: airflow:days: new driver",
        "IDLE+CLOUD+POWERED_DOWN+DRAIN: airflow:days: lent",
        "IDLE+CLOUD+DRAIN+POWER_DOWN: airflow:days: lent",
    ],
)
def test_of_a_number_of_nodes_none_is_one_that_others_keep(state: str) -> None:
    assert down(Slurm(worker_0=state, worker_1="MIXED+CLOUD"), 1) == ["worker-1"]
    with pytest.raises(WorkRefused, match=r"those that others have drained or reserved"):
        down(Slurm(worker_0=state), 1)


def test_the_suspend_time_of_a_partition_is_enough_for_power_orders() -> None:
    slurm = ByPartition(worker_0="IDLE+CLOUD")
    assert down(slurm, 1) == ["worker-0"]
    slurm.has_suspend_time = False
    with pytest.raises(SlurmError, match="SuspendTime=INFINITE"):
        down(slurm, 1)


def test_nodes_that_go_off_by_no_one_s_order_count() -> None:
    # Slurm's own reason, and a reservation that is about nodes that are off.
    slurm = Slurm(
        worker_0="IDLE+CLOUD+DRAIN+POWER_DOWN: POWER_DOWN_ASAP",
        worker_1="IDLE+CLOUD+POWERED_DOWN+RESERVED+DRAIN: airflow:nights: x",
    )
    assert down(slurm, 2) == []
