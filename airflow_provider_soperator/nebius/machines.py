"""The machines under Slurm's nodes, as the API counts them: Slurm knows of its nodes only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nebius.sdk import SDK

from airflow_provider_soperator.capacity.block import BlockSeen
from airflow_provider_soperator.capacity.errors import CapacityMistake
from airflow_provider_soperator.nebius.errors import NebiusMissing
from airflow_provider_soperator.nebius.groups import NodeGroups, size_of
from airflow_provider_soperator.nebius.suitability import refuse_misfit, refuse_to_buy


class Machines:
    """Those of the node groups that a set of Slurm's nodes stands on."""

    def __init__(self, sdk: SDK, groups: Sequence[str]) -> None:
        self._groups = [NodeGroups(sdk, group) for group in groups]

    async def count(self) -> int:
        """How many there are, on their way in and out, too."""
        found = await asyncio.gather(*(group.read() for group in self._groups))
        return sum(group.status.node_count for group in found)

    async def check(self, nodes: int, gpus_per_node: int, block: BlockSeen) -> None:
        """Raise ``CapacityMistake`` if they are not of this block, or would not go when their nodes do."""
        most = 0
        for one in self._groups:
            try:
                group = await one.read()
            except NebiusMissing as error:
                raise CapacityMistake(error.what, error.remedy) from error
            size = size_of(group)
            refuse_to_buy(group, block.id)
            refuse_misfit(group, size.most, gpus_per_node, block)
            if size.least is None or size.least >= size.most:
                raise CapacityMistake(
                    f"node group {group.metadata.id} always has {size}: its machines stay, and keep their GPUs, when "
                    "their Slurm nodes are powered down",
                    "give it an autoscaler with min_node_count=0 (in Soperator's recipe: autoscaling.min_size)",
                )
            most += size.most
        if most < nodes:
            raise CapacityMistake(
                f"the node groups have room for {most} machines, and {nodes} nodes are wanted",
                "name all groups under the nodes",
            )
