"""Node groups of Nebius: size, operations, the call that resizes them, and their machines: which were bought."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from nebius.api.nebius.capacity.v1 import CapacityBlockGroupServiceClient, ListCapacityBlockGroupResourcesRequest
from nebius.api.nebius.common.v1 import ListOperationsRequest, Operation, ResourceEvent
from nebius.api.nebius.compute import v1 as compute
from nebius.api.nebius.iam.v2 import GetProjectRequest, ProjectServiceClient
from nebius.api.nebius.mk8s import v1 as mk8s
from nebius.base.protos.dynamic import REGISTRY
from nebius.sdk import SDK

from airflow_provider_soperator.nebius.api import NebiusMissing, answer, listed, status_words

#: The API's limit for one node group.
MOST_NODES = 100
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)
#: Labels of a machine: its node group and cluster.
_GROUP, _CLUSTER = "mk8s-node-group-id", "mk8s-cluster-id"
#: Label that Soperator's recipe gives the Kubernetes Nodes of a node group.
_NODESET = "slurm.nebius.ai/nodeset-name"
#: Machines that are tried until one is found: some may have gone, and those of another cloud are never found.
_TRIES = 3
#: Machines in these states have no GPUs yet, or no longer.
_WITHOUT = (compute.InstanceStatus.InstanceState.CREATING, compute.InstanceStatus.InstanceState.DELETING)


@dataclass(frozen=True)
class GroupSize:
    """The size of a node group: fixed, or autoscaled between two bounds.

    >>> print(GroupSize(4), GroupSize(8, least=2))
    4 nodes 2-8 nodes
    """

    most: int
    #: None for a group without an autoscaler.
    least: int | None = None

    def __str__(self) -> str:
        return f"{self.most} nodes" if self.least is None else f"{self.least}-{self.most} nodes"

    def shrunk(self, to: int) -> GroupSize:
        """The size after a shrink to at most ``to`` nodes.

        >>> print(GroupSize(8, least=2).shrunk(1))
        1-1 nodes
        """
        return GroupSize(to, None if self.least is None else min(self.least, to))

    def grown(self, to: int, least: int) -> GroupSize:
        """The size after a growth to at least ``to`` nodes; ``least`` restores a lower bound that a shrink has lowered.

        >>> print(GroupSize(1, least=1).grown(8, least=2))
        2-8 nodes
        """
        return GroupSize(to, None if self.least is None else min(max(self.least, least), to))


class NodeGroupClient:
    """Reads and resizes one node group. A group is sent back as it was read, so that no field gets lost."""

    def __init__(self, sdk: SDK, group_id: str) -> None:
        self._sdk = sdk
        self._id = group_id
        self._thing = f"node group {group_id}"
        self._client = mk8s.NodeGroupServiceClient(sdk)

    async def read(self) -> mk8s.NodeGroup:
        return await answer(self._client.get, mk8s.GetNodeGroupRequest(id=self._id), "read", self._thing)

    async def operations(self) -> list[Operation]:
        """List the operations that the service still knows, newest first."""
        request = ListOperationsRequest(resource_id=self._id)
        thing = f"operations of {self._thing}"
        found = await listed(self._client.operation_service().list, request, thing, of="operations")
        return sorted(found, key=lambda operation: operation.created_at or _LONG_AGO, reverse=True)

    async def resize(self, group: mk8s.NodeGroup, size: GroupSize, key: str) -> str:
        """Request a size and return the operation's id; a conflict if the group has changed since it was read.

        The whole spec is sent: the SDK would reset omitted fields.
        """
        if size.least is None:
            group.spec.fixed_node_count = size.most
        else:
            group.spec.autoscaling = mk8s.NodeGroupAutoscalingSpec(min_node_count=size.least, max_node_count=size.most)
        request = mk8s.UpdateNodeGroupRequest(metadata=group.metadata, spec=group.spec)
        metadata = [("X-Idempotency-Key", key)]
        thing = f"{self._thing} to {size}"
        operation = await answer(self._client.update, request, "resize", thing, metadata=metadata)
        return str(operation.id)

    async def project(self, group: mk8s.NodeGroup) -> str:
        """Read the id of the project of the group's cluster."""
        request = mk8s.GetClusterRequest(id=group.metadata.parent_id)
        cluster = await answer(mk8s.ClusterServiceClient(self._sdk).get, request, "read", f"cluster {request.id}")
        return cluster.metadata.parent_id

    async def region(self, group: mk8s.NodeGroup) -> str:
        """Read the group's region, which is a field of its cluster's project."""
        request = GetProjectRequest(id=await self.project(group))
        project = await answer(ProjectServiceClient(self._sdk).get, request, "read", f"project {request.id}")
        return project.spec.region

    async def fabric(self, group: mk8s.NodeGroup) -> str:
        """Read the InfiniBand fabric of the group's GPU cluster; empty if it has none."""
        if not (cluster := group.spec.template.gpu_cluster) or not cluster.id:
            return ""
        client, request = compute.GpuClusterServiceClient(self._sdk), compute.GetGpuClusterRequest(id=cluster.id)
        found = await answer(client.get, request, "read", f"GPU cluster {cluster.id}")
        return found.spec.infiniband_fabric


def size_of(group: mk8s.NodeGroup) -> GroupSize:
    """The size in the group's spec."""
    if (bounds := group.spec.autoscaling) is not None:
        return GroupSize(bounds.max_node_count, bounds.min_node_count)
    return GroupSize(group.spec.fixed_node_count or 0)


def gpus_of(preset: str) -> int:
    """The GPUs of one machine, from the name of its preset.

    >>> gpus_of("8gpu-128vcpu-1600gb"), gpus_of("16vcpu-64gb")
    (8, 0)
    """
    found = re.match(r"(\d+)gpu\b", preset)
    return int(found[1]) if found else 0


def running(operations: Sequence[Operation]) -> Operation | None:
    """The running operation; a group has at most one."""
    return next((operation for operation in operations if operation.status is None), None)


def is_settled(group: mk8s.NodeGroup, operation: Operation | None) -> bool:
    """True if no node arrives or leaves. ``operation`` is the running one."""
    status = group.status
    is_complete = status.node_count == status.target_node_count
    return (
        operation is None
        and status.state == mk8s.NodeGroupStatus.State.RUNNING
        and is_complete
        and not status.reconciling
        # A newly requested size may not have reached the status yet.
        and (size_of(group).least is not None or status.target_node_count == size_of(group).most)
    )


def problems(group: mk8s.NodeGroup, operations: Sequence[Operation]) -> tuple[str, ...]:
    """Causes that keep a group from its size; the newest operation is the first.

    A full block is not an error to Nebius: the operation just continues.
    """
    operation = running(operations)
    if is_settled(group, operation):
        return ()
    found = list[str]()
    # An aborted one has made way for another.
    if operation is None and operations and (end := operations[0].status) and end.code.name not in ("OK", "ABORTED"):
        found.append(f"operation {operations[0].id} has failed: {status_words(end)}")
    if operation and operation.progress_data.type_url:
        data = REGISTRY.unpack_any(operation.progress_data)
        if isinstance(data, mk8s.ProgressData):
            found += [problem.message or problem.stage for problem in data.problems]
    # The group also keeps events of earlier changes.
    since = operation.created_at if operation else group.metadata.updated_at
    for last in (event.last_occurrence for event in group.status.events):
        is_recent = since is None or last.occurred_at is None or last.occurred_at >= since
        if is_recent and last.level in (ResourceEvent.Level.WARN, ResourceEvent.Level.ERROR):
            found.append(last.message or last.code)
    return tuple(dict.fromkeys(found))


async def find_groups(
    sdk: SDK, machines: Collection[str], neighbours: Sequence[str] = (), nodesets: Collection[str] = ()
) -> frozenset[str]:
    """Find the node groups of machines, and of NodeSets in the cluster that these and their neighbours belong to.

    Empty if none can be found.
    """
    client = compute.InstanceServiceClient(sdk)
    for machine in [*sorted(machines)[:_TRIES], *neighbours[:_TRIES]]:
        try:
            home = await answer(client.get, compute.GetInstanceRequest(id=machine), "read", f"machine {machine}")
            break
        except NebiusMissing:
            continue
    else:
        return frozenset()
    there = await _instances(sdk, home.metadata.parent_id)
    found = {_label(one, _GROUP) for one in there if one.metadata.id in machines}
    if nodesets and (cluster := _label(home, _CLUSTER)):
        request = mk8s.ListNodeGroupsRequest(parent_id=cluster)
        groups = await listed(mk8s.NodeGroupServiceClient(sdk).list, request, f"node groups of {cluster}")
        labels = {one.metadata.id: one.spec.template.metadata for one in groups}
        found |= {group for group, said in labels.items() if said and said.labels.get(_NODESET, "") in nodesets}
    return frozenset(found - {""})


async def project_of(sdk: SDK, group: str) -> str:
    """Read the id of the project that the machines of a node group are in."""
    client = NodeGroupClient(sdk, group)
    return await client.project(await client.read())


async def bought_gpus(sdk: SDK, block_id: str, groups: Collection[str]) -> tuple[int, int]:
    """Count the GPUs of node groups' machines that the block does not hold, and all machines."""
    request = ListCapacityBlockGroupResourcesRequest(id=block_id)
    thing = f"machines of capacity block {block_id}"
    held = await answer(CapacityBlockGroupServiceClient(sdk).list_resources, request, "list", thing)
    projects = {await project_of(sdk, group) for group in sorted(groups)}
    machines = [
        one
        for project in projects
        for one in await _instances(sdk, project)
        if _label(one, _GROUP) in groups and one.status.state not in _WITHOUT
    ]
    beside = [one for one in machines if one.metadata.id not in held.resource_ids]
    bought = [one for one in beside if one.status.reservation_id != block_id]
    return sum(gpus_of(one.spec.resources.preset or "") for one in bought), len(machines)


def _label(one: compute.Instance, name: str) -> str:
    return one.metadata.labels.get(name, "")


async def _instances(sdk: SDK, project: str) -> list[compute.Instance]:
    request = compute.ListInstancesRequest(parent_id=project)
    return await listed(compute.InstanceServiceClient(sdk).list, request, f"machines of {project}")
