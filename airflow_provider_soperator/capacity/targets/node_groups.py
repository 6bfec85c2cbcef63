"""Node groups of Nebius under a target: whether they can have so many nodes of one block, and how many they have."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from nebius.api.nebius.mk8s.v1 import NodeGroup, NodeGroupStatus, ReservationPolicy
from nebius.sdk import SDK

from airflow_provider_soperator.capacity.errors import CapacityMistake
from airflow_provider_soperator.nebius.block import BlockSeen
from airflow_provider_soperator.nebius.errors import NebiusMissing
from airflow_provider_soperator.nebius.groups import NodeGroups, size_of
from airflow_provider_soperator.nebius.sizes import MOST_NODES

_Policy = ReservationPolicy.Policy
_SET_POLICY = "nebius mk8s node-group update --template-reservation-policy-policy strict"


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


def refuse_to_buy(group: NodeGroup, block_id: str) -> None:
    """Whatever this group adds has to come from the block, or not at all."""
    group_id, policy = group.metadata.id, group.spec.template.reservation_policy
    if policy.policy != _Policy.STRICT:
        what = "takes no machine from a block" if policy.policy == _Policy.FORBID else "buys what the block lacks"
        raise CapacityMistake(
            f"node group {group_id} has the reservation policy {_Policy(policy.policy).name}: it {what}",
            f"`{_SET_POLICY} --template-reservation-policy-reservation-ids {block_id} --id {group_id}`, which replaces "
            "its nodes one after the other",
        )
    if policy.reservation_ids and block_id not in policy.reservation_ids:
        raise CapacityMistake(
            f"node group {group_id} takes its machines from {', '.join(policy.reservation_ids)}, not from {block_id}",
            "name the block that it belongs to, or another node group",
        )
    kind = group.spec.template.WhichOneof("pricing_model")
    if group.spec.template.HasField("preemptible") or kind not in (None, "on_demand"):
        raise CapacityMistake(
            f"node group {group_id} has preemptible machines, which no block gives", "name a regular node group"
        )


def refuse_misfit(group: NodeGroup, units: int, gpus_per_node: int, block: BlockSeen) -> None:
    """The block has such machines, and enough of them."""
    group_id, resources = group.metadata.id, group.spec.template.resources
    if group.status.state == NodeGroupStatus.State.DELETING:
        raise CapacityMistake(f"node group {group_id} is being deleted", "name another node group")
    if resources.platform != block.platform:
        raise CapacityMistake(
            f"node group {group_id} has machines of {resources.platform}, and block {block.id} is of {block.platform}",
            "name a node group of the same platform",
        )
    gpus = gpus_of(resources.preset or "")
    if gpus != gpus_per_node:
        raise CapacityMistake(
            f"a node of {group_id} has {gpus} GPUs (preset {resources.preset}), and not {gpus_per_node}",
            f"set gpus_per_unit={gpus}" if gpus else "name a node group with GPUs",
        )
    size = size_of(group)
    if group.spec.template.HasField("nvlink") and units != size.most:
        raise CapacityMistake(
            f"node group {group_id} is one NVLink group of {size}, which Nebius cannot resize",
            "let it keep its size in every window of the schedule",
        )
    if not 0 <= units <= MOST_NODES:
        raise CapacityMistake(
            f"node group {group_id} cannot have {units} nodes", f"Nebius takes from 0 to {MOST_NODES} for one group"
        )
    limit = max(block.limit, block.next_change_to or 0)
    if units * gpus_per_node > limit:
        raise CapacityMistake(
            f"{units} nodes of {group_id} need {units * gpus_per_node} GPUs, and block {block.id} has {limit}",
            "ask for fewer, or have the block extended",
        )


def gpus_of(preset: str) -> int:
    """The GPUs of one machine: Nebius names its presets by what they have.

    >>> gpus_of("8gpu-128vcpu-1600gb"), gpus_of("16vcpu-64gb")
    (8, 0)
    """
    found = re.match(r"(\d+)gpu\b", preset)
    return int(found[1]) if found else 0
