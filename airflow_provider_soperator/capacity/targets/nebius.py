"""A node group of a Nebius Managed Kubernetes cluster as a target: inference, for the most part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_soperator.capacity.errors import CapacityMistake
from airflow_provider_soperator.capacity.targets.base import Clients, Purpose
from airflow_provider_soperator.logger import Logger

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.targets.nebius_session import NodeGroupSession


@dataclass(frozen=True, kw_only=True)
class NebiusNodeGroupTarget:
    """A node group that grows and shrinks within a capacity block, and never buys.

        NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00example")

    How its size is set is the group's: a fixed count is set to another one, and where an autoscaler decides its bounds
    are moved. Nobody can choose which nodes go: Nebius drains some of them.
    """

    name: str
    #: The id of the node group. Its reservation policy has to be STRICT, and its block the one that is moved.
    node_group: str
    #: GPUs of one node. It is compared with the group's preset before anything is moved.
    gpus_per_unit: int = 8
    nebius_conn_id: str = "nebius_default"
    #: With an autoscaler: as many nodes as it is to keep in any case. A shrink to fewer lowers that for the time being,
    #: and the next growth brings it back.
    min_nodes: int = 0

    def __post_init__(self) -> None:
        if self.gpus_per_unit < 1:
            raise CapacityMistake(f"{self.name}: gpus_per_unit is {self.gpus_per_unit}", "nodes without GPUs hold none")
        if self.min_nodes < 0:
            raise CapacityMistake(f"{self.name}: min_nodes is {self.min_nodes}", "leave it out, or set 1 or more")

    @property
    def units(self) -> str:
        return "nodes"

    @asynccontextmanager
    async def open(self, purpose: Purpose, clients: Clients, log: Logger) -> AsyncIterator[NodeGroupSession]:
        async with clients.nebius(self.nebius_conn_id) as sdk:
            from airflow_provider_soperator.capacity.targets.nebius_session import NodeGroupSession

            yield NodeGroupSession(sdk, self.node_group, self.gpus_per_unit, self.min_nodes, purpose, log)
