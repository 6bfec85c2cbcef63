"""The node group of bought nodes in memory, in the place of a client of the API."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, cast

from nebius.api.nebius.common.v1 import Operation, ResourceMetadata
from nebius.api.nebius.mk8s.v1 import NodeGroup, NodeGroupSpec, NodeTemplate, ReservationPolicy, ResourcesSpec

from airflow_provider_soperator.capacity.targets import BoughtNodes
from airflow_provider_soperator.capacity.targets.bought_nodes import BoughtGroup
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.api import NebiusConflict
from airflow_provider_soperator.nebius.node_groups import GroupSize, NodeGroupClient
from tests.unit.capacity.world import Log

POLICY = ReservationPolicy.Policy


class Group:
    """The group as the API has it, and how many GPU-hours its nodes have cost."""

    def __init__(self, policy: ReservationPolicy.Policy = POLICY.FORBID, preset: str = "8gpu-128vcpu-1600gb") -> None:
        template = NodeTemplate(
            reservation_policy=ReservationPolicy(policy=policy), resources=ResourcesSpec(preset=preset)
        )
        self.group = NodeGroup(
            metadata=ResourceMetadata(id="bought", resource_version=1, labels={"owner": "serving"}),
            spec=NodeGroupSpec(fixed_node_count=0, template=template),
        )
        self.running: list[Operation] = []
        self.refuses = 0
        self.keys: list[str] = []

    @property
    def nodes(self) -> int:
        return self.group.spec.fixed_node_count or 0

    async def read(self) -> NodeGroup:
        return NodeGroup.FromString(self.group.SerializeToString())

    async def operations(self) -> list[Operation]:
        return self.running

    async def resize(self, group: NodeGroup, size: GroupSize, key: str) -> str:
        if self.refuses:
            self.refuses -= 1
            raise NebiusConflict("operation op-1 is running")
        assert size.least is None
        if group.metadata.resource_version != self.group.metadata.resource_version:
            raise NebiusConflict("the group has changed since it was read")
        group.spec.fixed_node_count = size.most
        group.metadata.resource_version += 1
        self.group = group
        self.keys.append(key)
        return "op"

    def session(
        self, max_nodes: int = 2, gpu_hours: float = 1000.0, window_ends: datetime | None = None
    ) -> BoughtGroup:
        said = BoughtNodes(node_group="bought", max_nodes=max_nodes, gpu_hours=gpu_hours)
        return self.of(said, "shift-1", Log(), window_ends)

    def of(self, said: BoughtNodes, key: str, log: Logger, window_ends: datetime | None = None) -> BoughtGroup:
        made = BoughtGroup(cast(Any, None), said, 8, key, log, window_ends)
        made._client = cast(NodeGroupClient, self)
        return made

    def bring(self, lacks: int, keeps: int, now: datetime, until: datetime | None, **said: Any) -> int:
        asyncio.run(self.session(**said).bring(lacks, keeps, now, until))
        return self.nodes
