"""Machines of node groups: the groups under machines, and how many GPUs of a group were bought beside a block."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nebius.api.nebius.capacity.v1 import CapacityBlockGroupServiceClient, ListCapacityBlockGroupResourcesRequest
from nebius.api.nebius.compute.v1 import (
    GetInstanceRequest,
    Instance,
    InstanceServiceClient,
    InstanceStatus,
    ListInstancesRequest,
)
from nebius.api.nebius.mk8s.v1 import ListNodeGroupsRequest, NodeGroup, NodeGroupServiceClient
from nebius.sdk import SDK

from airflow_provider_soperator.nebius.api import NebiusMissing, answer, pages
from airflow_provider_soperator.nebius.node_groups import NodeGroupClient, gpus_of

#: Labels of a machine: its node group and cluster.
_GROUP, _CLUSTER = "mk8s-node-group-id", "mk8s-cluster-id"
#: Label that Soperator's recipe gives the Kubernetes Nodes of a node group.
_NODESET = "slurm.nebius.ai/nodeset-name"
#: Machines that are tried until one is found: some may have gone, and those of another cloud are never found.
_TRIES = 3
#: Machines in these states have no GPUs yet, or no longer.
_WITHOUT = (InstanceStatus.InstanceState.CREATING, InstanceStatus.InstanceState.DELETING)


async def find_groups(
    sdk: SDK, machines: Collection[str], neighbours: Sequence[str] = (), nodesets: Collection[str] = ()
) -> frozenset[str]:
    """Find the node groups of machines, and of NodeSets in the cluster that these and their neighbours belong to.

    Empty if none can be found.
    """
    client = InstanceServiceClient(sdk)
    for machine in [*sorted(machines)[:_TRIES], *neighbours[:_TRIES]]:
        try:
            home = await answer(client.get, GetInstanceRequest(id=machine), "read", f"machine {machine}")
            break
        except NebiusMissing:
            continue
    else:
        return frozenset()
    there = await _instances(sdk, home.metadata.parent_id)
    found = {_label(one, _GROUP) for one in there if one.metadata.id in machines}
    if nodesets and (cluster := _label(home, _CLUSTER)):
        labels = {one.metadata.id: one.spec.template.metadata for one in await _node_groups(sdk, cluster)}
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


def _label(one: Instance, name: str) -> str:
    return one.metadata.labels.get(name, "")


async def _instances(sdk: SDK, project: str) -> list[Instance]:
    request = ListInstancesRequest(parent_id=project)
    listed = await pages(InstanceServiceClient(sdk).list, request, f"machines of {project}")
    return [one for page in listed for one in page.items]


async def _node_groups(sdk: SDK, cluster: str) -> list[NodeGroup]:
    request = ListNodeGroupsRequest(parent_id=cluster)
    listed = await pages(NodeGroupServiceClient(sdk).list, request, f"node groups of {cluster}")
    return [one for page in listed for one in page.items]
