"""Node groups of Nebius during a shift: as a target, or as the machines under Slurm nodes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from nebius.api.nebius.common.v1 import Operation
from nebius.api.nebius.mk8s.v1 import NodeGroup, NodeGroupStatus, ReservationPolicy
from nebius.sdk import SDK

from airflow_provider_soperator.capacity.holdings import Holding, Release
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget
from airflow_provider_soperator.capacity.targets.bought_nodes import BoughtGroup, read_known
from airflow_provider_soperator.capacity.targets.protocol import (
    MachineClues,
    Session,
    SessionContext,
    refuse_forbidden,
    refuse_unnamed,
)
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.api import NebiusConflict, NebiusError, NebiusUnauthenticated
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock, rivals
from airflow_provider_soperator.nebius.node_groups import (
    MOST_NODES,
    GroupSize,
    NodeGroupClient,
    gpus_of,
    is_settled,
    problems,
    running,
    size_of,
)
from airflow_provider_soperator.soperator.evictions import RIGHTS, PodEvictions
from airflow_provider_soperator.soperator.objects import Objects

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient


_Policy = ReservationPolicy.Policy
_SET_POLICY = "nebius mk8s node-group update --template-reservation-policy-policy strict"
_SCALES_DOWN = "give it an autoscaler with min_node_count=0 (in Soperator's recipe: autoscaling.min_size)"
_KEYS = uuid.UUID("2b1a6a3e-7a0c-4c53-9d0e-6f4f1f2f3c55")


@dataclass
class GroupNotes:
    """What a session remembers while its connection is opened again."""

    seen: GroupSize | None = None
    ordered: GroupSize | None = None
    #: How often a change by others was reverted; and who else resizes the group, once that has been overruled.
    undone: int = 0
    kept: str = ""


class NodeGroupSession(Session):
    """Resizes one node group for one shift.

    A group takes one operation at a time, so a running one is waited for, also if others began it. The exceptions: a
    shrink is sent while an operation lacks machines, because nothing else ends such an operation; and a growth is sent
    after another one, as machines take minutes to boot: the API may refuse it, or let it take over.
    """

    def __init__(
        self,
        target: NebiusNodeGroupTarget,
        sdk: SDK,
        context: SessionContext,
        log: Logger,
        kubernetes: ApiClient | None = None,
    ) -> None:
        self._target, self._group_id, self._sdk, self._context, self._log = target, target.node_group, sdk, context, log
        #: What empties nodes before they go, and the nodes beside the block, if the user has declared either.
        self._evictions: PodEvictions | None = None
        self._bought: BoughtGroup | None = None
        if kubernetes:
            # Cordons are named after the block, for the next shift undoes them.
            why = f"airflow:capacity/{context.block or self._group_id}: {context.why}"
            label, objects = f"nebius.com/node-group-id={self._group_id}", Objects(kubernetes, "", RIGHTS)
            self._evictions = PodEvictions(objects, label, why, context.may_take, log)
        if target.fallback:
            of_shift = context.key, log, context.window_ends
            self._bought = BoughtGroup(sdk, target.fallback, target.gpus_per_unit, *of_shift)
        self._client = NodeGroupClient(sdk, target.node_group)
        self._notes: GroupNotes = context.memory.setdefault(target.name, GroupNotes())
        self._said = ""

    async def check(self, units: int, block: CapacityBlock) -> None:
        whose = f"node group {self._group_id}"
        refuse_unnamed(block, whose)
        group = await checked(self._client, units, self._target.gpus_per_unit, block, self._log)
        if not group.spec.template.reservation_policy.reservation_ids and (others := await rivals(self._sdk, block.id)):
            raise CapacityMistake(
                f"{whose} names no block, so its machines may also come from {', '.join(others)}",
                f"add {block.id} to the reservation_ids of its reservation policy",
            )
        if self._bought:
            await self._bought.check()
        if group.status.strategy.drain_timeout == timedelta(0):
            remedy = "set strategy.drain_timeout, or a PodDisruptionBudget can block a shrink forever"
            self._log.warning("Node group %s has no drain timeout: %s", self._group_id, remedy)
        if self._evictions:
            with refuse_forbidden(whose):
                found = await self._evictions.check()
            if group.status.ready_node_count and not found:
                raise CapacityMistake(
                    f"the Kubernetes cluster of kubernetes_conn_id has no Node of {whose}",
                    "use a connection to the cluster of the group",
                )

    async def look(self) -> Holding:
        """Read the holding. A node counts as long as the API counts it, also while it arrives or leaves."""
        group, operations, size = await self._see()
        # A node that an autoscaler may add counts as ready: it only waits for work.
        may_come = 0 if size.least is None else max(0, size.most - group.status.node_count)
        evictions = self._evictions
        cordoned = sum(node.is_ours for node in await evictions.nodes()) if evictions else 0
        waits = evictions.problems if evictions else ()
        bought, to_come, causes = await self._bought.look() if self._bought else (0, 0, ())
        return Holding(
            allowed=size.most,
            held=group.status.node_count,
            ready=max(0, group.status.ready_node_count + may_come - cordoned),
            finishing=evictions.busy if evictions else 0,
            is_settled=is_settled(group, running(operations)),
            problems=(*filter(None, [self._notes.kept]), *waits, *problems(group, operations), *causes),
            pinned=size.most if self._notes.kept else None,
            bought=bought,
            to_come=to_come,
        )

    async def explain(self, to: int, release: Release) -> Mapping[str, str]:
        return await self._evictions.explain(to) if self._evictions else {}

    async def notes(self, to: int) -> tuple[str, ...]:
        group, said = await self._client.read(), ""
        if self._evictions is None:
            said = "Nebius ends the Pods of the nodes that it takes: set kubernetes_conn_id to have them evicted first"
        elif size_of(group).least is None:
            said = "Nebius chooses the machines, and may take others than those that are emptied"
            said = f"of a group of fixed size {said}"
        return (said,) if said and to < group.status.node_count else ()

    async def shrink(self, to: int, release: Release) -> None:
        """Shrink to at most ``to`` nodes: by those without Pods, unless nodes are to go by force.

        Without evictions Nebius chooses and drains the nodes, so that ``release`` decides only when.
        """
        if release.mode is None or self._notes.kept:
            return
        if self._evictions:
            staying = await self._evictions.step(to)
            to = to + self._evictions.short if release.takes_busy(datetime.now(timezone.utc)) else max(to, staying)
        group, operations, size = await self._see()
        if size.most <= to or self._notes.kept:
            return
        lacks_machines = group.status.node_count < group.status.target_node_count or problems(group, operations)
        await self._resize(group, size.shrunk(to), running(operations), waits=not lacks_machines)

    async def grow(self, to: int) -> None:
        """Allow at least ``to`` nodes."""
        group, operations, size = await self._see()
        if self._evictions:
            await self._evictions.keep(max(to, size.most))
        if size.most >= to or self._notes.kept:
            return
        # The group may have changed since the check, and could buy another node.
        refuse_to_buy(group, self._context.block)
        replaces = group.status.outdated_node_count or group.status.node_count > group.status.target_node_count
        grown = size.grown(to, self._target.min_nodes)
        await self._resize(group, grown, running(operations), waits=bool(replaces))

    async def finish(self) -> None:
        """Undo the cordons of nodes that stay."""
        if self._evictions:
            await self._evictions.keep(size_of(await self._client.read()).most)

    async def forget(self, key: str) -> None:
        # Cordons have the name of the block: once that is another shift's, they are, too.
        if key != self._context.key:
            await self.finish()

    async def buy(self, lacks: int, keeps: int, now: datetime, until: datetime | None) -> bool:
        return await self._bought.bring(lacks, keeps, now, until) if self._bought else True

    async def machines(self) -> MachineClues:
        beside = frozenset({self._bought.group_id} if self._bought else ())
        return MachineClues(groups=frozenset({self._group_id}), beside=beside, count=0, are_units=True)

    async def _see(self) -> tuple[NodeGroup, list[Operation], GroupSize]:
        """The group, its operations, and its size."""
        group, operations = await asyncio.gather(self._client.read(), self._client.operations())
        return group, operations, self._noted(group, operations)

    async def _resize(self, group: NodeGroup, size: GroupSize, running: Operation | None, *, waits: bool) -> None:
        """Request a size, unless it ``waits`` for a running operation."""
        if running and waits:
            self._say_once(f"waiting for {running.id}, which is still running")
            return
        before, version = size_of(group), group.metadata.resource_version
        # Derived from this step, so that another process, or a retry after a lost answer, makes the same key.
        after = f"{version}/{running.id if running else ''}"
        key = str(uuid.uuid5(_KEYS, f"{self._context.key}/{self._group_id}/{size}/{after}"))
        self._notes.ordered = size
        try:
            operation = await self._client.resize(group, size, key)
        except NebiusConflict as error:
            self._say_once(f"cannot be resized at present, retrying: {error.what}")
            return
        why = f": {self._context.why}" if self._context.why else ""
        self._log.info("Node group %s: resizing from %s to %s (%s)%s", self._group_id, before, size, operation, why)

    def _noted(self, group: NodeGroup, operations: list[Operation]) -> GroupSize:
        """The group's size. A change by others is reverted once; after a second one the group is left to them."""
        size, before = size_of(group), self._notes.seen
        self._notes.seen = size
        if before is None or size in (before, self._notes.ordered):
            return size
        who = (operations[0].created_by if operations else "") or "an unknown account"
        who += f" with {operations[0].id}" if operations else ""
        said = f"node group {self._group_id} was set to {size} by {who}"
        self._notes.undone += self._notes.ordered is not None
        if self._notes.undone > 1:
            self._notes.kept = (
                f"{said}, which is the second such change during this shift: find out who else resizes it (a person, "
                "another DAG, Terraform), and stop one of them"
            )
        self._log.warning("Meanwhile, %s", self._notes.kept or said)
        return size

    def _say_once(self, what: str) -> None:
        if what != self._said:
            self._said = what
            self._log.info("Node group %s: %s", self._group_id, what)


class GroupMachines:
    """The machines of the node groups under a set of Slurm nodes."""

    def __init__(self, sdk: SDK, groups: Sequence[str], log: Logger) -> None:
        self._groups, self._log = [NodeGroupClient(sdk, group) for group in groups], log

    async def count(self) -> int:
        """Count the machines, including those that arrive or leave."""
        found = await asyncio.gather(*(group.read() for group in self._groups))
        return sum(group.status.node_count for group in found)

    async def check(self, nodes: int | None, gpus_per_node: int | None, block: CapacityBlock) -> list[str]:
        """Raise ``CapacityMistake`` if the machines are not of this block, or would stay when their nodes go.

        Without ``gpus_per_node`` the units of the target are not machines; without ``nodes`` there may be others on the
        machines. Returns what will be in their way.
        """
        most, least, notes = 0, 0, list[str]()
        for one in self._groups:
            if gpus_per_node is not None:
                group = await checked(one, None, gpus_per_node, block, self._log)
            elif gpus_of((group := await one.read()).spec.template.resources.preset or ""):
                refuse_to_buy(group, block.id)
            else:
                continue
            size = size_of(group)
            at_least = size.most if size.least is None else size.least
            most, least = most + size.most, least + at_least
            is_fixed = at_least == size.most
            said = f"node group {group.metadata.id} always has {size if is_fixed else f'at least {at_least} nodes'}"
            if gpus_per_node is not None and is_fixed:
                what = f"{said}: its machines keep their GPUs when their Slurm nodes are powered down"
                raise CapacityMistake(what, _SCALES_DOWN)
            if nodes is None and at_least:
                notes.append(f"{said}: their GPUs are not free when nothing runs on them")
        if nodes is not None and most < nodes:
            said = f"the node groups have room for {most} machines, but {nodes} nodes are desired"
            raise CapacityMistake(said, "name all node groups under the nodes")
        if nodes is not None and least > nodes:
            said = f"the node groups keep at least {least} machines, with their GPUs, but {nodes} nodes are desired"
            raise CapacityMistake(said, _SCALES_DOWN)
        return notes


async def checked(
    client: NodeGroupClient, units: int | None, gpus_per_node: int, block: CapacityBlock, log: Logger
) -> NodeGroup:
    """Read a group; ``CapacityMistake`` if it could never have ``units`` nodes of this block (None: as it is)."""
    group = await read_known(client)
    refuse_to_buy(group, block.id)
    refuse_misfit(group, size_of(group).most if units is None else units, gpus_per_node, block)
    await refuse_elsewhere(client, group, block, log)
    return group


async def refuse_elsewhere(client: NodeGroupClient, group: NodeGroup, block: CapacityBlock, log: Logger) -> None:
    """Raise ``CapacityMistake`` if the group is in another region, or on another InfiniBand fabric, than the block."""
    for what, read, there, remedy in (
        ("in", client.region, block.region, "of the same region"),
        ("on", client.fabric, block.fabric, "whose GPU cluster is on the block's fabric"),
    ):
        try:
            here = await read(group)
        except NebiusError as error:
            if error.retryable or isinstance(error, NebiusUnauthenticated):
                raise
            # Moving capacity does not need the right to read projects and GPU clusters.
            log.info("It is not checked if node group %s is %s %s: %s", group.metadata.id, what, there, error)
            continue
        if here and there and here != there:
            raise CapacityMistake(
                f"node group {group.metadata.id} is {what} {here}, but block {block.id} {what} {there}: it never gets "
                "a machine of this block",
                f"use a node group {remedy}",
            )


def refuse_to_buy(group: NodeGroup, block_id: str) -> None:
    """Raise ``CapacityMistake`` unless all machines of a group come from the block."""
    group_id, policy = group.metadata.id, group.spec.template.reservation_policy
    if policy.policy != _Policy.STRICT:
        what = "never uses a block" if policy.policy == _Policy.FORBID else "buys machines that the block lacks"
        raise CapacityMistake(
            f"node group {group_id} has the reservation policy {_Policy(policy.policy).name}: it {what}",
            f"`{_SET_POLICY} --template-reservation-policy-reservation-ids {block_id} --id {group_id}`, which replaces "
            "its nodes one after the other",
        )
    if others := [one for one in policy.reservation_ids if one != block_id]:
        said = f"takes its machines from {', '.join(policy.reservation_ids)}, not from {block_id}"
        said += " alone" * (len(others) < len(policy.reservation_ids))
        raise CapacityMistake(f"node group {group_id} {said}", "use that block, or another node group")
    kind = group.spec.template.WhichOneof("pricing_model")
    if group.spec.template.HasField("preemptible") or kind not in (None, "on_demand"):
        said = f"node group {group_id} has preemptible machines, which are never of a block"
        raise CapacityMistake(said, "use a regular node group")


def refuse_misfit(group: NodeGroup, units: int, gpus_per_node: int, block: CapacityBlock) -> None:
    """Raise ``CapacityMistake`` if the block has no machines of the group's kind, or too few."""
    group_id, resources = group.metadata.id, group.spec.template.resources
    if group.status.state == NodeGroupStatus.State.DELETING:
        raise CapacityMistake(f"node group {group_id} is being deleted", "use another node group")
    if resources.platform != block.platform:
        raise CapacityMistake(
            f"node group {group_id} has machines of {resources.platform}, but block {block.id} is of {block.platform}",
            "use a node group of the same platform",
        )
    gpus = gpus_of(resources.preset or "")
    if gpus != gpus_per_node:
        raise CapacityMistake(
            f"a node of {group_id} has {gpus} GPUs (preset {resources.preset}), expected {gpus_per_node}",
            f"set gpus_per_unit={gpus}" if gpus else "use a node group with GPUs",
        )
    if group.spec.template.HasField("nvlink") and units != size_of(group).most:
        said = f"node group {group_id} is one NVLink group of {size_of(group)}, which Nebius cannot resize"
        raise CapacityMistake(said, "keep its size in every window of the schedule")
    if not 0 <= units <= MOST_NODES:
        remedy = f"Nebius allows 0 to {MOST_NODES} in one group"
        raise CapacityMistake(f"node group {group_id} cannot have {units} nodes", remedy)
    needs, limit = units * gpus_per_node, max(block.limit, block.next_change_to or 0)
    if needs > limit:
        said = f"{units} nodes of {group_id} need {needs} GPUs, but block {block.id} has {limit}"
        raise CapacityMistake(said, "ask for fewer, or extend the block")
