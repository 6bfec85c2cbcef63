"""How often a node that is ill is told of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.health.assessment import Seen
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.triggers.health import NodeUnhealthyTrigger

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
WELL = Node(name="worker-0", state=NodeState.parse("IDLE"))
SICK = Node(
    name="worker-0", state=NodeState.parse("IDLE+DRAIN"), reason="[user_problem] boot_disk_full", reason_since=NOON
)
OTHER = Node(name="worker-1", state=NodeState.parse("IDLE"))


def told(*looks: Node) -> list[str]:
    """Of whom a watcher of worker-0 tells that sees one node in each look."""

    class Scripted(NodeUnhealthyTrigger):
        async def rounds(self, ask: Any) -> AsyncIterator[Any]:  # type: ignore[override]
            for node in looks:
                yield (node,), Seen()

    async def main() -> list[str]:
        return [event.payload["node"] async for event in Scripted(nodes="worker-0").run()]

    return asyncio.run(main())


def test_once_in_each_illness() -> None:
    assert told(SICK, SICK) == ["worker-0"]
    assert told(SICK, WELL, SICK) == ["worker-0", "worker-0"]


def test_a_node_that_is_unknown_for_a_while_has_not_got_well() -> None:
    assert told(SICK, OTHER, SICK) == ["worker-0"]
