"""Nodes beside the block that a target buys while the block lacks them: a node group of its own, and its account."""

from __future__ import annotations

import math
import uuid
from datetime import datetime

from nebius.api.nebius.mk8s.v1 import NodeGroup, ReservationPolicy
from nebius.sdk import SDK

from airflow_provider_soperator.capacity.targets import BoughtNodes
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.api import NebiusConflict, NebiusMissing
from airflow_provider_soperator.nebius.node_groups import (
    GroupSize,
    NodeGroupClient,
    gpus_of,
    problems,
    size_of,
)

_KEYS = uuid.UUID("6d0f6f0c-0f5f-4a0e-8a55-0b0f1f0c9a61")
#: Labels of the group: the end of the window that pays (a Unix time), the GPU-seconds that it has paid for until
#: ``since``, and that moment. They change with the size, in the same call, so that no process has to remember them.
_WINDOW, _SPENT, _SINCE = "soperator-window", "soperator-gpu-seconds", "soperator-since"


async def read_known(client: NodeGroupClient) -> NodeGroup:
    """Read a group; ``CapacityMistake`` if there is none."""
    try:
        return await client.read()
    except NebiusMissing as error:
        raise CapacityMistake(error.what, error.remedy) from error


class BoughtGroup:
    """The node group of bought nodes during one shift. Its size is how many are paid for.

    ``window_ends``: when the window ends that pays for them, which an override may outlast, or end before.
    """

    def __init__(
        self,
        sdk: SDK,
        said: BoughtNodes,
        gpus_per_node: int,
        key: str,
        log: Logger,
        window_ends: datetime | None = None,
    ) -> None:
        self._window_ends = window_ends
        self._said, self._gpus, self._key, self._log = said, gpus_per_node, key, log
        self.group_id = said.node_group
        self._client = NodeGroupClient(sdk, said.node_group)

    async def check(self) -> None:
        """Raise ``CapacityMistake`` if its machines may be of a block, or cannot replace those of the target."""
        group = await read_known(self._client)
        policy = group.spec.template.reservation_policy.policy
        if policy != ReservationPolicy.Policy.FORBID:
            raise CapacityMistake(
                f"node group {self.group_id} is to buy nodes beside the block, but has the reservation policy "
                f"{ReservationPolicy.Policy(policy).name}, with which it may take those of a block",
                "use a group with the policy FORBID",
            )
        preset = group.spec.template.resources.preset or ""
        if (gpus := gpus_of(preset)) != self._gpus:
            raise CapacityMistake(
                f"a node of {self.group_id} has {gpus} GPUs (preset {preset}), expected {self._gpus}",
                "buy nodes of the size that the target's own have",
            )
        if size_of(group).least is not None:
            said = f"node group {self.group_id} has an autoscaler, which would buy by itself"
            raise CapacityMistake(said, "use a group of fixed size, 0 at first")

    async def look(self) -> tuple[int, int, tuple[str, ...]]:
        """The nodes that are paid for, how many of them cannot take work yet, and why."""
        group = await self._client.read()
        paid = size_of(group).most
        if not (to_come := max(0, paid - group.status.ready_node_count)):
            return paid, 0, ()
        causes = problems(group, await self._client.operations())
        return paid, to_come, tuple(f"node group {self.group_id}: {cause}" for cause in causes)

    async def bring(self, lacks: int, keeps: int, now: datetime, until: datetime | None) -> bool:
        """Buy nodes that are lacking, and let those go that ``keeps`` does not need; True if there is nothing to do.

        What is bought is paid for until then: nobody has to come back before it.
        """
        group, ends = await self._client.read(), self._window_ends or until
        labels = dict(group.metadata.labels)
        has, window, spent = size_of(group).most, str(int(ends.timestamp())) if ends else "", 0.0
        if labels.get(_WINDOW) == window:
            passed = max(0.0, now.timestamp() - float(labels[_SINCE]))
            spent = float(labels[_SPENT]) + passed * has * self._gpus
        seconds = (until - now).total_seconds() if until else 0.0
        # A little more, so that what could be paid for when it was bought still can be, whatever was rounded.
        left = self._said.gpu_hours * 3600 - spent + 1
        affordable = int(left / (self._gpus * seconds)) if seconds > 0 else 0
        to = max(0, min(max(lacks, min(has, keeps)), self._said.max_nodes, affordable))
        if to == has and (to == 0 or labels.get(_WINDOW) == window):
            return True
        # In whole seconds, rounded up: a node would go that the same look has bought for all that is left.
        account = {_WINDOW: window, _SPENT: str(round(spent)), _SINCE: str(math.ceil(now.timestamp()))}
        group.metadata.labels = {**labels, **account}
        key = str(uuid.uuid5(_KEYS, f"{self._key}/{self.group_id}/{to}/{group.metadata.resource_version}"))
        try:
            await self._client.resize(group, GroupSize(to), key)
        except NebiusConflict as error:
            self._log.info("Cannot be resized at present, retrying: %s", error.what)
            return False
        cost = f"{spent / 3600:.1f} of {self._said.gpu_hours:g} GPU-hours of this window are spent"
        self._log.warning("Node group %s: %s nodes beside the block, not %s; %s", self.group_id, to, has, cost)
        return False
