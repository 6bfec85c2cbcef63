"""What Slurm's nodes are told when more of them are to be at work, from what they are at that moment."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

import pytest

from airflow_provider_soperator.capacity.holdings import Release
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.capacity.targets.protocol import SessionContext
from airflow_provider_soperator.capacity.targets.slurm_session import SlurmNodesSession
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.cluster_records import Node, Reservation
from airflow_provider_soperator.slurm.requests import (
    CreateReservation,
    ListJobs,
    ListNodes,
    ListReservations,
    PowerUp,
    UpdateReservation,
)
from airflow_provider_soperator.slurm.states import NodeState

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.targets.nebius_session import GroupMachines

OURS = "airflow:capacity/block-1: lent"
IDLE, GOING = ("IDLE+CLOUD", ""), ("MIXED+CLOUD+POWER_DOWN+DRAIN", OURS)
OFF, ANOTHERS = ("IDLE+CLOUD+POWERED_DOWN+DRAIN", OURS), ("IDLE+CLOUD+DRAIN", "new driver")


class Nodes:
    """Answers with the same nodes, and notes what they are told."""

    def __init__(self, states: list[tuple[str, str]]) -> None:
        self.nodes = tuple(
            Node(name=f"worker-{number}", state=NodeState.parse(state), reason=reason, gres="gpu:8")
            for number, (state, reason) in enumerate(states)
        )
        self.told: list[Any] = []
        self.reserved: tuple[Reservation, ...] = ()

    async def ask(self, request: Any) -> Any:
        if isinstance(request, ListNodes):
            return tuple(node for node in self.nodes if not request.names or node.name in request.names)
        if isinstance(request, ListJobs):
            return ()
        if isinstance(request, ListReservations):
            return self.reserved
        if isinstance(request, (CreateReservation, UpdateReservation)):
            self.reserved = (Reservation(name=request.name, nodelist=",".join(request.nodes)),)
        self.told.append(request)
        return None

    def session(self, nodes: str, machines: int | None = None) -> SlurmNodesSession:
        """Some of them at work, on node groups with so many machines."""
        target = SlurmNodesTarget(name="training", nodes=nodes)
        client, purpose = cast(AsyncSlurmClient, self), SessionContext(block="block-1", key="shift")
        counted = None if machines is None else cast("GroupMachines", Counted(machines))
        return SlurmNodesSession(target, client, "root", counted, purpose, logging.getLogger(__name__))

    def grow(self, to: int) -> list[str]:
        """The nodes that are powered up."""
        session = self.session(f"worker-[0-{len(self.nodes) - 1}]")
        holding = asyncio.run(session.look())
        assert holding.held == sum("POWERED_DOWN" not in str(node.state) for node in self.nodes)
        asyncio.run(session.grow(to))
        return [name for order in self.told if isinstance(order, PowerUp) for name in order.names]


class Counted:
    """Node groups with so many machines."""

    def __init__(self, machines: int) -> None:
        self._machines = machines

    async def count(self) -> int:
        return self._machines


@pytest.mark.parametrize(
    ("others", "machines", "held"),
    [
        pytest.param([], 2, 2, id="the machine of one that is off is there yet"),
        pytest.param([], 1, 1, id="it is gone"),
        pytest.param([IDLE, IDLE], 4, 2, id="other nodes stand on the same groups"),
        pytest.param([OFF, OFF], 4, 3, id="machines of others that are off cannot be told from its own"),
        pytest.param([IDLE, IDLE], 1, 1, id="other nodes stand elsewhere"),
    ],
)
def test_machines_count_as_far_as_they_can_be_those_of_its_nodes(
    others: list[tuple[str, str]], machines: int, held: int
) -> None:
    nodes = Nodes([IDLE, OFF, OFF, *others])
    assert asyncio.run(nodes.session("worker-[0-2]", machines).look()).held == held


def test_nodes_are_of_a_block_that_is_named() -> None:
    session = Nodes([IDLE]).session("worker-0")
    with pytest.raises(CapacityMistake, match="training: the capacity block of its machines is unknown"):
        asyncio.run(session.check(1, CapacityBlock(id="", limit=64, usage=None)))


def test_two_targets_in_one_slurm_reserve_their_nodes_together() -> None:
    nodes = Nodes([IDLE] * 4)
    ahead = Release(wanted_at=datetime.now(timezone.utc), mode=None)
    for _ in range(2):
        for names in ("worker-[0-1]", "worker-[2-3]"):
            asyncio.run(nodes.session(names).shrink(1, ahead))
    [reservation] = nodes.reserved
    assert reservation.nodelist == "worker-0,worker-2"
    assert len(nodes.told) == 2, "nothing is done again"


@pytest.mark.parametrize("held", [[IDLE], [GOING], [ANOTHERS], [GOING, ANOTHERS]], ids=str)
def test_what_has_its_gpus_yet_counts(held: list[tuple[str, str]]) -> None:
    """The block has none for another node until it is gone."""
    nodes = [IDLE] * 3 + held + [OFF] * 2
    assert Nodes(nodes).grow(3 + len(held)) == []
    assert Nodes(nodes).grow(4 + len(held)) == [f"worker-{3 + len(held)}"]
