"""Nodes are powered up as far as the block has their GPUs free, and no shift has claimed them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node
from airflow_provider_soperator.slurm.requests import ListReservations, PowerUp, Request
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.work.nodes import NodeChange
from tests.unit.capacity.lease_places import KubernetesPlace, SlurmPlace
from tests.unit.capacity.world import Log

BLOCK = CapacityBlock(id="capacityblockgroup-1", limit=64, usage=48)


class Slurm:
    """Four nodes of 8 GPUs, which are there as soon as they are powered up."""

    def __init__(self, **states: str) -> None:
        self.states = {f"worker-{number}": "IDLE+CLOUD+POWERED_DOWN" for number in range(4)} | states
        self.told: list[tuple[str, ...]] = []
        self.place = SlurmPlace()

    async def ask_shared(self, request: Request[Any], max_age: float) -> tuple[Node, ...]:
        return tuple(Node(name=name, state=NodeState.parse(state), gres="gpu:8") for name, state in self.states.items())

    async def config(self) -> ClusterConfig:
        return ClusterConfig(version="24.11.5", suspend_time=timedelta(minutes=10))

    async def ask(self, request: Request[Any]) -> Any:
        if isinstance(request, ListReservations):
            return self.place.slurm.answer(request)
        assert isinstance(request, PowerUp)
        self.told.append(request.names)
        self.states |= dict.fromkeys(request.names, "IDLE+CLOUD")


class Clients(ShiftClients):
    """A block whose usage is as a test says, and a cluster that keeps leases."""

    block_now = BLOCK
    place: KubernetesPlace | None = None

    @asynccontextmanager
    async def leases(self, conn_id: str) -> AsyncIterator[Any]:
        yield self.place and self.place.namespace

    async def block(self, conn_id: str, block: str) -> CapacityBlock:
        assert (conn_id, block) == ("nebius_default", BLOCK.id)
        return self.block_now


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> type[Clients]:
    monkeypatch.setattr("airflow_provider_soperator.work.nodes.ShiftClients", Clients)
    monkeypatch.setattr(Clients, "block_now", BLOCK)
    monkeypatch.setattr(Clients, "place", None)
    return Clients


def up(block: str = BLOCK.id, log: Log | None = None) -> Any:
    return NodeChange(
        slurm_conn_id="soperator_default",
        nodes=tuple(f"worker-{number}" for number in range(4)),
        action="up",
        owner="shifts",
        block=block,
        nebius_conn_id="nebius_default",
        poll_interval=1,
        since=datetime(2026, 11, 21, tzinfo=timezone.utc),
        deadline=datetime(2099, 1, 1, tzinfo=timezone.utc),
    ).begin(log or Log())


def test_nodes_wait_until_the_block_has_their_gpus(clients: type[Clients]) -> None:
    slurm, work = Slurm(), up()
    assert asyncio.run(work.step(slurm)) is None
    assert slurm.told == [("worker-0", "worker-1")]
    clients.block_now = replace(BLOCK, usage=64)
    assert asyncio.run(work.step(slurm)) is None
    assert "worker-[2-3] waits for its GPUs: block capacityblockgroup-1 has 0 GPUs left" in work.place
    clients.block_now = replace(BLOCK, usage=40)
    asyncio.run(work.step(slurm))
    assert slurm.told[1:] == [("worker-2", "worker-3")]
    result = asyncio.run(work.step(slurm))
    assert result["nodes"] == ["worker-0", "worker-1", "worker-2", "worker-3"]


def test_a_node_that_boots_may_not_have_its_machine_yet(clients: type[Clients]) -> None:
    slurm = Slurm(**{"worker-3": "IDLE+CLOUD+POWERING_UP"})
    asyncio.run(up().step(slurm))
    assert slurm.told == [("worker-0",)]


def test_while_it_is_unknown_what_is_free_no_node_is_powered_up(clients: type[Clients]) -> None:
    clients.block_now = replace(BLOCK, usage=None)
    slurm, work = Slurm(), up()
    asyncio.run(work.step(slurm))
    assert slurm.told == []
    assert "an unknown number of GPUs left" in work.place


def test_what_a_shift_has_claimed_is_not_free(clients: type[Clients]) -> None:
    from tests.unit.capacity.test_lease import claiming

    clients.place = KubernetesPlace()
    claiming(clients.place, datetime.now(timezone.utc))
    slurm = Slurm()
    asyncio.run(up().step(slurm))
    assert slurm.told == []


@pytest.mark.parametrize(("shows_comments", "powered_up"), [(True, []), (False, [("worker-0", "worker-1")])])
def test_without_a_common_place_claims_are_in_the_slurm_of_the_nodes(
    clients: type[Clients], shows_comments: bool, powered_up: list[tuple[str, ...]]
) -> None:
    slurm, log, now = Slurm(), Log(), datetime.now(timezone.utc)
    record = ShiftRecord(key="shift", task="shift", claims={"worker-[4-5]": [16, now.timestamp() + 600]})
    asyncio.run(slurm.place.lease("shift").write(record, now, timedelta(minutes=5), None))
    if not shows_comments:
        # As over slurmrestd.
        known = slurm.place.slurm.known
        known.update({name: replace(one, comment="") for name, one in known.items()})
    work = up(log=log)
    for _ in range(2):
        asyncio.run(work.step(slurm))
    assert slurm.told[:1] == powered_up
    warnings = [line for line in log.said if "that a shift has claimed count as free" in line]
    assert len(warnings) == (0 if shows_comments else 1)


def test_without_a_block_all_go_at_once(clients: type[Clients]) -> None:
    slurm = Slurm()
    asyncio.run(up(block="").step(slurm))
    assert slurm.told == [("worker-0", "worker-1", "worker-2", "worker-3")]
