"""What Slurm's nodes are told when more of them are to be at work, from what they are at that moment."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from airflow_provider_soperator.capacity.targets.base import Purpose
from airflow_provider_soperator.capacity.targets.slurm import SlurmNodesTarget
from airflow_provider_soperator.capacity.targets.slurm_session import SlurmNodesSession
from airflow_provider_soperator.clients.client import AsyncSlurmClient
from airflow_provider_soperator.slurm.records import Node
from airflow_provider_soperator.slurm.requests import ListNodes, PowerUp
from airflow_provider_soperator.slurm.states import NodeState

OURS = "airflow:capacity/block-1: lent"
IDLE, GOING = ("IDLE+CLOUD", ""), ("MIXED+CLOUD+POWER_DOWN+DRAIN", OURS)
OFF, ANOTHERS = ("IDLE+CLOUD+POWERED_DOWN+DRAIN", OURS), ("IDLE+CLOUD+DRAIN", "new driver")


class Nodes:
    """Answers with the same nodes, and notes what they are told."""

    def __init__(self, states: list[tuple[str, str]]) -> None:
        self.nodes = tuple(
            Node(name=f"worker-{number}", state=NodeState.parse(state), reason=reason)
            for number, (state, reason) in enumerate(states)
        )
        self.told: list[Any] = []

    async def ask(self, request: Any) -> Any:
        if isinstance(request, ListNodes):
            return self.nodes
        self.told.append(request)
        return None

    def grow(self, to: int) -> list[str]:
        """The nodes that are powered up."""
        target = SlurmNodesTarget(name="training", nodes=f"worker-[0-{len(self.nodes) - 1}]")
        client, purpose = cast(AsyncSlurmClient, self), Purpose(block="block-1", key="shift")
        session = SlurmNodesSession(target, client, "root", None, purpose, logging.getLogger(__name__))
        holding = asyncio.run(session.look())
        assert holding.held == sum("POWERED_DOWN" not in str(node.state) for node in self.nodes)
        asyncio.run(session.grow(to))
        return [name for order in self.told if isinstance(order, PowerUp) for name in order.names]


@pytest.mark.parametrize("held", [[IDLE], [GOING], [ANOTHERS], [GOING, ANOTHERS]], ids=str)
def test_what_has_its_gpus_yet_counts(held: list[tuple[str, str]]) -> None:
    """The block has none for another node until it is gone."""
    nodes = [IDLE] * 3 + held + [OFF] * 2
    assert Nodes(nodes).grow(3 + len(held)) == []
    assert Nodes(nodes).grow(4 + len(held)) == [f"worker-{3 + len(held)}"]
