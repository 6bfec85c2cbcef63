"""A node group at work as a target: one step each time, whatever has happened since the last."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

from nebius.api.nebius.common.v1 import Operation
from nebius.api.nebius.mk8s.v1 import NodeGroup
from nebius.sdk import SDK

from airflow_provider_soperator.capacity.errors import CapacityBusy, CapacityMistake
from airflow_provider_soperator.capacity.holding import Holding, Release
from airflow_provider_soperator.capacity.targets.base import Purpose, Session, refuse_unnamed
from airflow_provider_soperator.capacity.targets.node_groups import refuse_misfit, refuse_to_buy
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.block import BlockSeen
from airflow_provider_soperator.nebius.blocks import rivals
from airflow_provider_soperator.nebius.errors import NebiusConflict, NebiusDenied, NebiusMissing
from airflow_provider_soperator.nebius.groups import NodeGroups, is_settled, problems, running, size_of
from airflow_provider_soperator.nebius.sizes import Size

_KEYS = uuid.UUID("2b1a6a3e-7a0c-4c53-9d0e-6f4f1f2f3c55")


class NodeGroupSession(Session):
    """Resizes one node group for one purpose.

    Two operations on one group do not get on, so none is begun while another runs; it is waited for like one's own. A
    shrink is the exception, where the running one lacks machines: what hangs for want of capacity ends in no other way.
    """

    def __init__(
        self, sdk: SDK, group_id: str, gpus_per_node: int, min_nodes: int, purpose: Purpose, log: Logger
    ) -> None:
        self._sdk = sdk
        self._group_id = group_id
        self._gpus_per_node = gpus_per_node
        self._min_nodes = min_nodes
        self._purpose = purpose
        self._log = log
        self._groups = NodeGroups(sdk, group_id)
        self._seen: Size | None = None
        self._ordered: Size | None = None
        self._undone = 0
        self._said = ""

    async def check(self, units: int, block: BlockSeen) -> None:
        """Raise ``CapacityMistake`` if it could never have so many nodes of this block."""
        refuse_unnamed(block, f"node group {self._group_id}")
        try:
            group = await self._groups.read()
        except NebiusMissing as error:
            raise CapacityMistake(error.what, error.remedy) from error
        refuse_to_buy(group, block.id)
        refuse_misfit(group, units, self._gpus_per_node, block)
        await self._refuse_other_blocks(group, block)
        await self._refuse_other_region(group, block)
        if group.status.strategy.drain_timeout == timedelta(0):
            self._log.warning(
                "Node group %s drains its nodes for as long as it takes: set strategy.drain_timeout, or a "
                "PodDisruptionBudget can hold up a shrink for ever",
                self._group_id,
            )

    async def look(self) -> Holding:
        """What the group has now. A node counts as long as the API counts it, on its way in and out, too."""
        group, operations = await asyncio.gather(self._groups.read(), self._groups.operations())
        size = self._noted(group, operations)
        operation = running(operations)
        return Holding(
            allowed=size.most,
            held=group.status.node_count,
            ready=_ready(group, size),
            is_settled=is_settled(group, operation),
            problems=problems(group, operation),
        )

    async def shrink(self, to: int, release: Release) -> None:
        """Have at most so many nodes. Nebius chooses and drains them, so all that ``release`` can say is whether."""
        if release.mode is None:
            return
        group, operations = await asyncio.gather(self._groups.read(), self._groups.operations())
        size = self._noted(group, operations)
        if size.most <= to:
            return
        operation = running(operations)
        if operation and not _lacks_machines(group, operation):
            self._say_once(f"{operation.id} still runs on it, and is waited for")
            return
        await self._resize(group, size.shrunk(to))

    async def grow(self, to: int) -> None:
        """Be allowed at least so many nodes."""
        group, operations = await asyncio.gather(self._groups.read(), self._groups.operations())
        size = self._noted(group, operations)
        if size.most >= to:
            return
        # Since the check somebody may have changed it, and a node more could be bought.
        refuse_to_buy(group, self._purpose.block)
        if operation := running(operations):
            self._say_once(f"{operation.id} still runs on it, and is waited for")
            return
        await self._resize(group, size.grown(to, self._min_nodes))

    async def finish(self) -> None:
        """Nothing is there that was only for the shift."""

    async def _resize(self, group: NodeGroup, size: Size) -> None:
        before, version = size_of(group), group.metadata.resource_version
        # From this step alone another process, or a try after an answer that was lost, makes the same key.
        key = str(uuid.uuid5(_KEYS, f"{self._purpose.key}/{self._group_id}/{size}/{version}"))
        self._ordered = size
        try:
            operation = await self._groups.resize(group, size, key)
        except NebiusConflict as error:
            self._say_once(f"it cannot be resized just now, and is tried again: {error.what}")
            return
        self._log.info(
            "Node group %s: from %s to %s (%s)%s",
            self._group_id,
            before,
            size,
            operation,
            f": {self._purpose.why}" if self._purpose.why else "",
        )

    def _noted(self, group: NodeGroup, operations: list[Operation]) -> Size:
        """The group's size; others may change it once, and are then overruled, but not twice."""
        size, known = size_of(group), (self._seen, self._ordered)
        is_foreign = self._seen is not None and size not in known
        self._seen = size
        if not is_foreign:
            return size
        newest = operations[0] if operations else None
        who = f"{newest.created_by or 'somebody'} with {newest.id}" if newest else "somebody"
        said = f"node group {self._group_id} was set to {size} by {who}"
        self._undone += self._ordered is not None
        if self._undone > 1:
            raise CapacityBusy(
                f"{said}, and not for the first time since it is being resized here",
                "find out who else resizes it (a person, another DAG, Terraform), and have one of them stop",
            )
        self._log.warning("Meanwhile %s", said)
        return size

    async def _refuse_other_blocks(self, group: NodeGroup, block: BlockSeen) -> None:
        if group.spec.template.reservation_policy.reservation_ids:
            return
        if others := await rivals(self._sdk, block.id):
            raise CapacityMistake(
                f"node group {self._group_id} names no block, so its machines may come from {', '.join(others)}, too",
                f"put {block.id} into the reservation_ids of its reservation policy",
            )

    async def _refuse_other_region(self, group: NodeGroup, block: BlockSeen) -> None:
        try:
            region = await self._groups.region(group)
        except (NebiusDenied, NebiusMissing) as error:
            # To see a cluster's project is a right that moving capacity does not need.
            self._log.info("Node group %s: its region was not checked: %s", self._group_id, error.what)
            return
        if region != block.region:
            raise CapacityMistake(
                f"node group {self._group_id} is in {region}, and block {block.id} in {block.region}",
                "name a node group of the same region",
            )

    def _say_once(self, what: str) -> None:
        if what != self._said:
            self._said = what
            self._log.info("Node group %s: %s", self._group_id, what)


def _ready(group: NodeGroup, size: Size) -> int:
    """How many can work. What an autoscaler may add is as good as ready: it waits for work, not for machines."""
    ready = group.status.ready_node_count
    return ready if size.least is None else ready + max(0, size.most - group.status.node_count)


def _lacks_machines(group: NodeGroup, operation: Operation) -> bool:
    return group.status.node_count < group.status.target_node_count or bool(problems(group, operation))
