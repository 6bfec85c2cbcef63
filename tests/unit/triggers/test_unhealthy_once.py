"""How often a node that is ill is told of."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk import Variable

from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.triggers.events import NodeUnhealthyTrigger
from airflow_provider_soperator.work.polling import FAILURES

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
WELL = Node(name="worker-0", state=NodeState.parse("IDLE"))
SICK = Node(
    name="worker-0", state=NodeState.parse("IDLE+DRAIN"), reason="[user_problem] boot_disk_full", reason_since=NOON
)
OTHER = Node(name="worker-1", state=NodeState.parse("IDLE"))


class Looks:
    """A Slurm whose nodes are others at each look."""

    def __init__(self, *looks: Node) -> None:
        self._looks = iter(looks)

    async def ask_shared(self, request: Any, max_age: float) -> tuple[Node, ...]:
        return (next(self._looks),)


def told(*looks: Node) -> list[str]:
    """The nodes of the events of a watcher of worker-0 that sees one node in each look."""
    trigger, client = NodeUnhealthyTrigger(nodes="worker-0"), Looks(*looks)

    async def main() -> list[str]:
        return [event["node"] for _ in looks for event in await trigger.look(client)]  # type: ignore[arg-type]

    return asyncio.run(main())


def test_once_in_each_illness() -> None:
    assert told(SICK, SICK) == ["worker-0"]
    assert told(SICK, WELL, SICK) == ["worker-0", "worker-0"]


def test_a_node_that_is_unknown_for_a_while_has_not_got_well() -> None:
    assert told(SICK, OTHER, SICK) == ["worker-0"]


def test_figures_that_were_edited_do_not_end_a_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow would restart it each second."""
    monkeypatch.setattr(Variable, "get", lambda key, default: "{")
    trigger = NodeUnhealthyTrigger(nodes="worker-0", checks=["nccl"])
    with pytest.raises(FAILURES, match="soperator_figures_nccl was edited"):
        asyncio.run(trigger.look(Looks(WELL)))  # type: ignore[arg-type]
