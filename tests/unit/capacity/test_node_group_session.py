"""How a node group is resized while it changes, and what is refused of it, beyond what the sandbox's double has."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from typing import Any, cast

import pytest
from nebius.api.nebius.common.v1 import Operation, ResourceMetadata
from nebius.api.nebius.mk8s.v1 import (
    NodeGroup,
    NodeGroupAutoscalingSpec,
    NodeGroupSpec,
    NodeGroupStatus,
    NodeTemplate,
    ReservationPolicy,
    ResourcesSpec,
)

from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget
from airflow_provider_soperator.capacity.targets.nebius_session import (
    GroupMachines,
    NodeGroupSession,
    refuse_elsewhere,
)
from airflow_provider_soperator.capacity.targets.protocol import SessionContext
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.nebius.api import NebiusConflict, NebiusError, NebiusUnauthenticated, NebiusUnreachable
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.nebius.node_groups import GroupSize, NodeGroupClient
from tests.unit.capacity.world import Log

BLOCK = CapacityBlock(id="block-1", limit=64, usage=0, fabric="fabric-2")
KEEPS = "node group group-1 always has at least 2 nodes: their GPUs are not free when nothing runs on them"
GROWS = Operation(id="op-1", created_at=datetime(2026, 11, 21, tzinfo=timezone.utc))


class Group:
    """A group with a running operation, in the place of a client of the API."""

    def __init__(self, refuses: bool = False, fabric: str | NebiusError = "", **status: Any) -> None:
        policy = ReservationPolicy(policy=ReservationPolicy.Policy.STRICT)
        self.group = NodeGroup(
            metadata=ResourceMetadata(id="group-1", resource_version=3),
            spec=NodeGroupSpec(fixed_node_count=2, template=NodeTemplate(reservation_policy=policy)),
            status=NodeGroupStatus(**{"target_node_count": 2, "node_count": 2, "ready_node_count": 1} | status),
        )
        self.running, self.refuses, self._fabric = GROWS, refuses, fabric
        self.sizes: list[GroupSize] = []
        self.keys: list[str] = []

    async def read(self) -> NodeGroup:
        return self.group

    async def operations(self) -> list[Operation]:
        return [self.running]

    async def resize(self, group: NodeGroup, size: GroupSize, key: str) -> str:
        self.keys.append(key)
        if self.refuses:
            raise NebiusConflict("operation op-1 is running")
        self.sizes.append(size)
        return "op-2"

    async def fabric(self, group: NodeGroup) -> str:
        if isinstance(self._fabric, NebiusError):
            raise self._fabric
        return self._fabric

    async def region(self, group: NodeGroup) -> str:
        return ""

    def grow(self, to: int, **memory: Any) -> None:
        target = NebiusNodeGroupTarget(name="inference", node_group="group-1")
        context = SessionContext(block="block-1", key="k", **memory)
        session = NodeGroupSession(target, cast(Any, None), context, Log())
        session._client = cast(NodeGroupClient, self)
        asyncio.run(session.grow(to))


def test_a_group_that_may_take_machines_of_another_block_does_not_grow() -> None:
    group = Group()
    group.group.spec.template.reservation_policy.reservation_ids = ["block-1", "block-2"]
    with pytest.raises(CapacityMistake, match="from block-1, block-2, not from block-1 alone"):
        group.grow(3)
    group.group.spec.template.reservation_policy.reservation_ids = ["block-1"]
    group.grow(3)
    assert group.sizes == [GroupSize(3)]


def test_a_growth_does_not_wait_for_the_one_before() -> None:
    group = Group()
    group.grow(3)
    assert group.sizes == [GroupSize(3)]


@pytest.mark.parametrize("status", [{"outdated_node_count": 1}, {"node_count": 3}], ids=["a rollout", "a shrink"])
def test_but_for_what_replaces_or_removes_nodes(status: dict[str, int]) -> None:
    group = Group(**status)
    group.grow(3)
    assert group.keys == []


def test_a_growth_that_was_refused_is_another_request_once_the_one_before_is_over() -> None:
    """The same key could be answered with the same refusal."""
    group = Group(refuses=True)
    group.grow(3)
    group.grow(3)
    group.running = Operation(id="op-2", created_at=GROWS.created_at)
    group.grow(3)
    assert (len(group.keys), len(set(group.keys)), group.sizes) == (3, 2, [])


def test_a_group_that_is_left_to_others_is_so_over_a_new_connection() -> None:
    group, memory = Group(), dict[str, Any]()
    for size in (2, 3, 1, 0):
        group.group.spec.fixed_node_count = size
        group.grow(3, memory=memory)
    assert group.sizes == [GroupSize(3), GroupSize(3)], "the change to 1 is overruled, and the one to 0 is not"


@pytest.mark.parametrize(
    ("bounds", "nodes", "found"),
    [
        ([(0, 8)], 0, []),
        ([(2, 8)], 2, []),
        ([(2, 8)], 1, "keep at least 2 machines, with their GPUs, but 1 nodes are desired: give it an"),
        ([(2, 8), (0, 4), (1, 4)], 2, "keep at least 3 machines"),
        ([(2, 8), (0, 4)], 13, "have room for 12 machines, but 13 nodes"),
        ([(0, 8)], None, []),
        ([(2, 8)], None, [KEEPS]),
        ([(2, 2)], None, "group-1 always has 2-2 nodes: its machines keep their GPUs"),
    ],
)
def test_groups_that_keep_more_machines_than_nodes_are_wished_for_are_refused(
    bounds: list[tuple[int, int]], nodes: int | None, found: list[str] | str
) -> None:
    machines = GroupMachines(cast(Any, None), [], Log())
    for least, most in bounds:
        group = Group()
        spec = group.group.spec
        spec.autoscaling = NodeGroupAutoscalingSpec(min_node_count=least, max_node_count=most)
        spec.template.resources = ResourcesSpec(platform="gpu-h100", preset="8gpu-128vcpu-1600gb")
        machines._groups.append(cast(NodeGroupClient, group))
    block = CapacityBlock(id="block-1", limit=128, usage=0, platform="gpu-h100")
    if isinstance(found, str):
        with pytest.raises(CapacityMistake, match=found):
            asyncio.run(machines.check(nodes, 8, block))
    else:
        assert asyncio.run(machines.check(nodes, 8, block)) == found


def refuse(fabric: str | NebiusError) -> None:
    group = Group(fabric=fabric)
    asyncio.run(refuse_elsewhere(cast(NodeGroupClient, group), group.group, BLOCK, Log()))


def test_a_group_on_another_fabric_is_refused() -> None:
    with pytest.raises(CapacityMistake, match="group-1 is on fabric-7, but block block-1 on fabric-2"):
        refuse("fabric-7")


@pytest.mark.parametrize("fabric", ["fabric-2", "", NebiusError("not allowed")], ids=str)
def test_one_on_the_same_fabric_or_on_none_or_unknown_is_not(fabric: str | NebiusError) -> None:
    refuse(fabric)


@pytest.mark.parametrize("error", [NebiusUnreachable("away"), NebiusUnauthenticated("expired")], ids=str)
def test_what_may_be_known_later_is_asked_again(error: NebiusError) -> None:
    with pytest.raises(type(error)):
        refuse(error)
