"""Kubernetes Nodes that are emptied before their machines go: the choice, the cordons, and the eviction of Pods.

A Pod that is evicted leaves its Services first, and has its grace period to finish what it serves. The API server
refuses an eviction that a PodDisruptionBudget does not allow. As ``kubectl drain`` does, Pods of DaemonSets and static
Pods are left alone, and Pods without a controller, which nothing would start again, are never evicted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import NODE
from airflow_provider_soperator.soperator.objects import Objects
from airflow_provider_soperator.soperator.workloads import MANAGER, is_leaving, is_on_a_node, is_ready

#: The rights that it needs, for errors.
RIGHTS = "a ClusterRole with list and patch on nodes, list on pods, and create on pods/eviction,"
#: Marks a cordon of this provider, and says whose it is and why.
CORDONED = f"{MANAGER}/cordoned"
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True)
class PodHost:
    """A Kubernetes Node with the Pods that have to leave it."""

    node: Object
    pods: tuple[Object, ...]
    #: Why Pods cannot leave now.
    obstacles: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def is_cordoned(self) -> bool:
        return bool((self.node.get("spec") or {}).get("unschedulable"))

    @property
    def is_ours(self) -> bool:
        """True if it has a cordon of this provider."""
        return self.is_cordoned and self.is_marked

    @property
    def is_marked(self) -> bool:
        return CORDONED in (self.node["metadata"].get("annotations") or {})

    @property
    def serving(self) -> Counter[str]:
        """Ready Pods by their controllers."""
        return Counter(_controller_of(pod).get("uid", "") for pod in self.pods if is_ready(pod))

    def __str__(self) -> str:
        count = self.serving.total()
        names = sorted({f"{pod['metadata']['namespace']}/{_controller_of(pod).get('name')}" for pod in self.pods})
        said = f"serves with {count} Pods ({', '.join(names)})" if count else "no Pod serves there"
        return "; ".join([said, *self.obstacles])


def choose(hosts: Sequence[PodHost], count: int, may_take: Collection[str] | None = None) -> list[PodHost]:
    """The Nodes that go: those that are going already, then those on which least depends.

    Of Nodes with equally many Pods that serve, one goes whose Pods have the most replicas on Nodes that stay.
    """
    left = [host for host in hosts if may_take is None or host.name in may_take or host.is_cordoned]
    staying, chosen = list(hosts), list[PodHost]()
    while left and len(chosen) < count:
        elsewhere = sum((host.serving for host in staying), Counter[str]())
        # Of equal Nodes the youngest: it has served for the shortest time.
        left.sort(key=lambda host: str(host.node["metadata"].get("creationTimestamp")), reverse=True)
        first = min(left, key=lambda host: _rank(host, elsewhere))
        chosen.append(first)
        left.remove(first)
        staying.remove(first)
    return chosen


def _rank(host: PodHost, everywhere: Counter[str]) -> tuple[bool, bool, bool, bool, int, int]:
    serving = host.serving
    replicas = min((everywhere[owner] - count for owner, count in serving.items()), default=0)
    # A cordon that is not ours was made by a person, or by Nebius for a machine that it is about to take.
    cordoned_by_others = host.is_cordoned and not host.is_ours
    return (
        not is_leaving(host.node),
        not cordoned_by_others,
        not host.is_ours,
        bool(host.obstacles),
        serving.total(),
        -replicas,
    )


class PodEvictions:
    """Empties Kubernetes Nodes that a label selects.

    :param objects: the objects of their cluster
    :param selector: the label of the Nodes
    :param why: written into the annotation of each cordon
    :param may_take: names of the Nodes that may go; None: any
    """

    def __init__(
        self, objects: Objects, selector: str, why: str, may_take: Collection[str] | None, log: Logger
    ) -> None:
        self._objects, self._selector, self._why, self._may_take, self._log = objects, selector, why, may_take, log
        self._told: dict[str, str] = {}
        #: As of the last step: how many more are to go than may, how many of those that go still have Pods, and why.
        self.short = 0
        self.busy = 0
        self.problems: tuple[str, ...] = ()

    async def nodes(self) -> list[PodHost]:
        """The Nodes, without their Pods."""
        return [PodHost(node, ()) for node in await self._objects.list_all(NODE, self._selector)]

    async def explain(self, stay: int) -> dict[str, str]:
        """The Nodes that would go if so many stay, and what serves there."""
        hosts = await self._hosts(stay)
        return {host.name: str(host) for host in choose(hosts, len(hosts) - stay, self._may_take)}

    async def step(self, stay: int) -> int:
        """Take a step towards as few Nodes with Pods; returns how many have to stay for now."""
        hosts = await self._hosts(stay)
        chosen = choose(hosts, len(hosts) - stay, self._may_take)
        await self._uncordon([host for host in hosts if host not in chosen])
        for host in chosen:
            if not host.is_cordoned:
                self._log.info("Cordoning Node %s: %s", host.name, host)
                await self._change(host, cordoned=True)
        waits = {host.name: "; ".join(left) for host in chosen if (left := await self._evict_all(host))}
        for name, why in waits.items():
            if self._told.get(name) != why:
                self._told[name] = why
                self._log.info("Waiting for Node %s: %s", name, why)
        self.busy = len(waits)
        self.problems = tuple(f"Node {name}: {why}" for name, why in waits.items())
        self.short = max(0, len(hosts) - stay - len(chosen))
        if self.short:
            self.problems += (f"{self.short} more may not go by the plan that was approved",)
        # A Pod may have come between this look and the cordon.
        return len(hosts) - sum(host.is_cordoned and not host.pods for host in chosen)

    async def keep(self, stay: int) -> None:
        """Undo our cordons, but those of the Nodes that go if so many stay."""
        nodes, self.busy, self.problems = await self.nodes(), 0, ()
        going = choose(nodes, len(nodes) - stay)
        await self._uncordon([node for node in nodes if node not in going])
        if left := [node.name for node in going if node.is_ours]:
            self._log.info("Node %s stays cordoned, as its machine is about to go", ", ".join(left))

    async def check(self) -> int:
        """Count the Nodes; raises if the account lacks a right."""
        nodes = await self.nodes()
        for node in nodes[:1]:
            await self._objects.patch_node(node.name, {"metadata": {}}, dry_run=True)
            for pod in (await self._objects.list_pods_on(node.name))[:1]:
                await self._objects.evict(pod, dry_run=True)
        return len(nodes)

    async def _hosts(self, stay: int) -> list[PodHost]:
        nodes = await self.nodes()
        pods = await asyncio.gather(*(self._objects.list_pods_on(node.name) for node in nodes))
        hosts = [replace(node, pods=tuple(filter(_has_to_leave, on))) for node, on in zip(nodes, pods, strict=True)]
        if sum(host.is_cordoned for host in hosts) >= len(hosts) - stay:
            # The choice is made, and what is in the way is found out by evictions.
            return hosts
        return [replace(host, obstacles=await self._evict_all(host, dry_run=True)) for host in hosts]

    async def _evict_all(self, host: PodHost, *, dry_run: bool = False) -> tuple[str, ...]:
        """Evict its Pods, or see if that is possible; what they still wait for."""
        return tuple(filter(None, [await self._evict(pod, dry_run) for pod in host.pods]))

    async def _evict(self, pod: Object, dry_run: bool) -> str:
        name = f"Pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        if is_leaving(pod):
            return "" if dry_run else f"{name} has until {pod['metadata']['deletionTimestamp']} to end"
        if not _controller_of(pod):
            return f"{name} has no controller that would start it again elsewhere: delete it if it may go"
        refused = await self._objects.evict(pod, dry_run=dry_run)
        if refused:
            return f"{name} may not be evicted now: {refused}"
        return "" if dry_run else f"{name} is being evicted"

    async def _uncordon(self, hosts: Collection[PodHost]) -> None:
        for host in hosts:
            if host.is_ours and not is_leaving(host.node):
                self._log.info("Uncordoning Node %s, which stays", host.name)
                await self._change(host, cordoned=False)
            elif host.is_marked and not host.is_cordoned:
                # Others have uncordoned it; their next cordon is not ours.
                await self._objects.patch_node(host.name, {"metadata": {"annotations": {CORDONED: None}}})

    async def _change(self, host: PodHost, *, cordoned: bool) -> None:
        # One change, so that no cordon is ever without its owner.
        annotations = {CORDONED: self._why if cordoned else None}
        await self._objects.patch_node(
            host.name, {"metadata": {"annotations": annotations}, "spec": {"unschedulable": cordoned or None}}
        )


def _has_to_leave(pod: Object) -> bool:
    is_static = _MIRROR in (pod["metadata"].get("annotations") or {})
    return is_on_a_node(pod) and not is_static and _controller_of(pod).get("kind") != "DaemonSet"


def _controller_of(pod: Object) -> Object:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})
