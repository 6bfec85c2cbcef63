"""Objects of a Soperator cluster in a namespace, found by their references to each other, not by name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from airflow_provider_soperator.soperator.clusters import (
    NODESET_LABEL,
    ClusterSeen,
    ClusterSnapshot,
    NodeSetSeen,
    cluster_of,
)
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import NODE_SET, POD, POWER_STATE, SLURM_CLUSTER, Resource
from airflow_provider_soperator.soperator.objects import KindMissing, ObjectMissing, Objects
from airflow_provider_soperator.soperator.workloads import Pod


class ClusterObjects:
    """A Soperator cluster in a namespace, through an open client.

    ``name`` is the SlurmCluster's; without it, the namespace must have only one.
    """

    def __init__(self, objects: Objects, name: str | None = None) -> None:
        self.objects = objects
        self._name = name

    async def look(self) -> ClusterSnapshot:
        clusters, sets, states, pods = await asyncio.gather(
            self._list(SLURM_CLUSTER),
            self._list(NODE_SET),
            self._list(POWER_STATE),
            self.objects.list_all(POD, NODESET_LABEL),
        )
        cluster = ClusterSeen.read(await self._choose(clusters))
        return ClusterSnapshot(cluster, _nodesets(sets, states, pods, cluster.name))

    async def cluster(self) -> ClusterSeen:
        return ClusterSeen.read(await self._choose(await self._list(SLURM_CLUSTER)))

    async def nodeset(self, name: str) -> NodeSetSeen:
        """One NodeSet; ``ObjectMissing`` lists all if there is none of this name."""
        found = {one.name: one for one in (await self.look()).nodesets}
        if name in found:
            return found[name]
        there = ", ".join(found) or "none"
        raise ObjectMissing(f"there is no NodeSet {name} in namespace {self.objects.namespace}", f"there are {there}")

    async def set_replicas(self, nodeset: str, replicas: int, *, version: str = "", dry_run: bool = False) -> None:
        """Scale a NodeSet; a conflict (see ``is_conflict``) if it is no longer at ``version``."""
        held = {"metadata": {"resourceVersion": version}} if version and not dry_run else {}
        body = {**held, "spec": {"replicas": replicas}}
        await self.objects.patch_scale(NODE_SET, nodeset, body, dry_run=dry_run)

    async def _list(self, resource: Resource) -> list[Object]:
        try:
            return await self.objects.list_all(resource)
        except KindMissing as error:
            if resource is POWER_STATE:
                # Before 3.0 there were no ephemeral nodes.
                return []
            raise KindMissing(
                "Soperator is not installed in this Kubernetes cluster",
                "install it, or correct the Kubernetes connection",
            ) from error

    async def _choose(self, clusters: Sequence[Object]) -> Object:
        namespace, names = self.objects.namespace, [str(one["metadata"]["name"]) for one in clusters]
        if not clusters:
            await self.objects.check_namespace()
            raise ObjectMissing(
                f"there is no SlurmCluster in namespace {namespace}",
                "set its namespace; `kubectl get slurmclusters --all-namespaces` lists all",
            )
        if self._name is None and len(clusters) > 1:
            raise ObjectMissing(
                f"there are several SlurmClusters in namespace {namespace}", f"name one of {', '.join(names)}"
            )
        if self._name is None:
            return clusters[0]
        if self._name not in names:
            raise ObjectMissing(
                f"there is no SlurmCluster {self._name} in namespace {namespace}", f"there is {', '.join(names)}"
            )
        return clusters[names.index(self._name)]


def _nodesets(
    sets: Sequence[Object], states: Sequence[Object], pods: Sequence[Object], cluster: str
) -> tuple[NodeSetSeen, ...]:
    by_name = {str(one["metadata"]["name"]): one for one in states}
    members: dict[str, dict[str, Pod]] = {}
    for pod in pods:
        metadata = pod["metadata"]
        members.setdefault(metadata["labels"][NODESET_LABEL], {})[metadata["name"]] = Pod.read(pod)
    return tuple(
        NodeSetSeen.read(one, by_name.get(one["metadata"]["name"]), members.get(one["metadata"]["name"], {}))
        for one in sets
        # A NodeSet without a cluster belongs to the only cluster.
        if cluster_of(one) in ("", cluster)
    )
