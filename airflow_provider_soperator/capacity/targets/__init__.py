"""Targets: holders of GPUs of a capacity block, as values that DAG files make."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.values import listed

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.targets.protocol import Clients, Session, SessionContext
    from airflow_provider_soperator.logger import Logger

__all__ = ["BoughtNodes", "KubernetesScaleTarget", "NebiusNodeGroupTarget", "SlurmNodesTarget"]


def _refuse_less(target: Any, **least: int) -> None:
    for name, number in least.items():
        if (said := getattr(target, name)) < number:
            raise CapacityMistake(f"{target.name}: {name} must be >= {number}, got {said}")


@dataclass(frozen=True, kw_only=True)
class SlurmNodesTarget:
    """Ephemeral nodes of a Soperator cluster.

        SlurmNodesTarget(name="training", nodes="worker-[0-7]", gpus_per_unit=8)

    With n units, all other nodes are off, and drained under this provider's name, so that no queued job powers them up.
    Nodes on which least work is lost go first: idle ones.

    :param name: name of the target in schedules and forms
    :param nodes: names of the nodes, as a list or as Slurm writes them; those that do not exist stay away
    :param gpus_per_unit: GPUs of one node
    :param slurm_conn_id: Airflow connection to Slurm
    :param order: busy nodes go by the ``"end"`` of their jobs, or by the ``"work"`` that would be lost
    :param whole_network_blocks: nodes of one network block, or leaf switch, of Slurm's topology go together
    :param node_groups: ids of the Nebius node groups under the nodes. With them it is known which nodes have machines.
        Before a shift they are checked, named or found: their machines have to go with the nodes, and are never bought
    :param nebius_conn_id: Airflow connection to the Nebius API
    :param units: word for the units in forms and messages
    """

    name: str
    nodes: str
    gpus_per_unit: int = 8
    slurm_conn_id: str = "soperator_default"
    order: Literal["end", "work"] = "end"
    whole_network_blocks: bool = False
    node_groups: tuple[str, ...] = ()
    nebius_conn_id: str = "nebius_default"
    units: str = "nodes"

    def __post_init__(self) -> None:
        _refuse_less(self, gpus_per_unit=1)
        if self.order not in ("end", "work"):
            raise CapacityMistake(f"{self.name}: order must be 'end' or 'work', got {self.order!r}")
        object.__setattr__(self, "nodes", nodes := ",".join(listed(self.nodes)))
        try:
            hostlist.check(nodes)
        except hostlist.HostlistError as error:
            raise CapacityMistake(f"{self.name}: {error}") from None
        object.__setattr__(self, "node_groups", tuple(listed(self.node_groups)))

    @property
    def size(self) -> int:
        """The number of its nodes."""
        return len(hostlist.expand(self.nodes))

    @asynccontextmanager
    async def open(self, context: SessionContext, clients: Clients, log: Logger) -> AsyncIterator[Session]:
        from airflow_provider_soperator.capacity.targets.slurm_session import SlurmNodesSession
        from airflow_provider_soperator.slurm.requests import WhoAmI

        async with AsyncExitStack() as opened:
            client = await opened.enter_async_context(clients.slurm(self.slurm_conn_id))
            machines = None
            if self.node_groups:
                from airflow_provider_soperator.capacity.targets.nebius_session import GroupMachines

                sdk = await opened.enter_async_context(clients.nebius(self.nebius_conn_id))
                machines = GroupMachines(sdk, self.node_groups, log)
            yield SlurmNodesSession(self, client, await client.ask(WhoAmI()), machines, context, log)


@dataclass(frozen=True, kw_only=True)
class BoughtNodes:
    """Nodes that are bought beside a block while it lacks them, within a budget.

        BoughtNodes(node_group="mk8snodegroup-e00bought", max_nodes=2, gpu_hours=128)

    They go as soon as the block has others in their place, or with the next handover.

    :param node_group: id of a node group of fixed size with the reservation policy FORBID, for these nodes alone
    :param max_nodes: nodes at a time
    :param gpu_hours: GPU-hours that one window of the schedule may cost: a node is bought only if they last until the
        end of the window
    :param after: time from the handover until nodes are bought
    """

    node_group: str
    max_nodes: int
    gpu_hours: float
    after: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        if self.max_nodes < 1:
            raise CapacityMistake(f"max_nodes must be >= 1, got {self.max_nodes}")
        if self.gpu_hours <= 0:
            raise CapacityMistake(f"gpu_hours must be > 0, got {self.gpu_hours}")

    def __str__(self) -> str:
        return (
            f"what the block lacks {self.after} after the handover is bought: up to {self.max_nodes} nodes of "
            f"{self.node_group}, for up to {self.gpu_hours:g} GPU-hours"
        )


@dataclass(frozen=True, kw_only=True)
class NebiusNodeGroupTarget:
    """A Nebius node group that grows and shrinks within a capacity block, and never buys.

        NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00example")

    A group of fixed size gets another count; of an autoscaled group the bounds are moved.

    With ``kubernetes_conn_id`` the nodes that go are cordoned and emptied before the group shrinks: their Pods are
    evicted, as far as PodDisruptionBudgets allow. An autoscaler then takes these machines; of a group of fixed size
    Nebius chooses the machines, and what it leaves is uncordoned. Without it Nebius chooses, and ends what runs there.

    :param name: name of the target in schedules and forms
    :param node_group: id of the node group, whose reservation policy is STRICT, on the block that is moved
    :param gpus_per_unit: GPUs of one node, which is compared with the group's preset
    :param nebius_conn_id: Airflow connection to the Nebius API
    :param min_nodes: with an autoscaler: its lower bound; a shrink below lowers it until the next growth
    :param kubernetes_conn_id: Airflow connection to the group's Kubernetes cluster, to evict Pods from nodes that go
    :param fallback: nodes to buy while the block lacks them; without it nothing is ever bought
    """

    name: str
    node_group: str
    gpus_per_unit: int = 8
    nebius_conn_id: str = "nebius_default"
    min_nodes: int = 0
    kubernetes_conn_id: str | None = None
    fallback: BoughtNodes | None = None
    units: ClassVar[str] = "nodes"

    def __post_init__(self) -> None:
        _refuse_less(self, gpus_per_unit=1, min_nodes=0)

    @asynccontextmanager
    async def open(self, context: SessionContext, clients: Clients, log: Logger) -> AsyncIterator[Session]:
        async with AsyncExitStack() as opened:
            sdk, kubernetes = await opened.enter_async_context(clients.nebius(self.nebius_conn_id)), None
            from airflow_provider_soperator.capacity.targets.nebius_session import NodeGroupSession

            if self.kubernetes_conn_id:
                kubernetes = await opened.enter_async_context(clients.kubernetes(self.kubernetes_conn_id))
            yield NodeGroupSession(self, sdk, context, log, kubernetes)


@dataclass(frozen=True, kw_only=True)
class KubernetesScaleTarget:
    """Replicas of a Kubernetes workload with a scale subresource.

        KubernetesScaleTarget(
            name="inference", resource="vllm", namespace="inference",
            kubernetes_conn_id="kubernetes_inference", gpus_per_unit=8,
        )

    Machines are not moved with them: an autoscaled node group follows, one of a fixed size is a target of its own.

    KEDA is paused at the number that is set. It decides again at the end of a shift that has given just the replicas
    that it may make at most (``maxReplicaCount``).

    :param name: name of the target in schedules and forms
    :param resource: name of the workload
    :param gpus_per_unit: GPUs of one replica, in all its Pods
    :param namespace: namespace of the workload
    :param kind: Deployment, StatefulSet, or another kind with its group, as
        ``leaderworkersets.leaderworkerset.x-k8s.io`` or ``group/version/Kind``
    :param kubernetes_conn_id: Airflow connection to the Kubernetes cluster
    :param pin_hpa: move the bounds of a HorizontalPodAutoscaler, and restore them as with KEDA
    :param units: word for the units in forms and messages
    """

    name: str
    resource: str
    gpus_per_unit: int
    namespace: str = "default"
    kind: str = "Deployment"
    kubernetes_conn_id: str = "kubernetes_default"
    pin_hpa: bool = False
    units: str = "replicas"

    def __post_init__(self) -> None:
        _refuse_less(self, gpus_per_unit=1)
        from airflow_provider_soperator.soperator.kinds import KindMistake, check_kind

        try:
            check_kind(self.kind)
        except KindMistake as error:
            raise CapacityMistake(str(error)) from None

    def open(self, context: SessionContext, clients: Clients, log: Logger) -> AbstractAsyncContextManager[Session]:
        from airflow_provider_soperator.capacity.targets.kubernetes_session import open_session

        return open_session(self, context, clients, log)


#: A holder of GPUs of a block. In JSON each kind is told by a field that it alone has, and needs.
Target = SlurmNodesTarget | NebiusNodeGroupTarget | KubernetesScaleTarget


def refuse_strangers(values: Iterable[object], kinds: Any = Target, what: str = "target") -> None:
    """Raise ``CapacityMistake`` if any of these is of another kind: another process could not read it."""
    for one in values:
        if type(one) not in get_args(kinds):
            names = ", ".join(sorted(kind.__name__ for kind in get_args(kinds)))
            raise CapacityMistake(f"{one!r} is not a {what}", f"use {names}")


def refuse_common(targets: Sequence[Target]) -> None:
    """Raise ``CapacityMistake`` if two targets have anything in common: they would take it from each other for ever."""
    names = [target.name for target in targets]
    if len(set(names)) < len(names):
        raise CapacityMistake(f"two targets have the same name: {', '.join(names)}", "rename one")
    for one, other in combinations(targets, 2):
        if common := _common(one, other):
            raise CapacityMistake(f"{one.name} and {other.name} both have {common}", "let one of them have it")


def _common(one: Target, other: Target) -> str:
    if isinstance(one, SlurmNodesTarget) and isinstance(other, SlurmNodesTarget):
        is_one_cluster = one.slurm_conn_id == other.slurm_conn_id
        return hostlist.fold(hostlist.intersect(one.nodes, other.nodes)) if is_one_cluster else ""
    if groups := _groups(one) & _groups(other):
        return min(groups)
    if isinstance(one, KubernetesScaleTarget) and isinstance(other, KubernetesScaleTarget):
        fields = ("resource", "namespace", "kind", "kubernetes_conn_id")
        return one.resource if all(getattr(one, name) == getattr(other, name) for name in fields) else ""
    return ""


def _groups(one: Target) -> set[str]:
    """The ids of the node groups that a target names, also of those in which it buys."""
    if isinstance(one, NebiusNodeGroupTarget):
        return {one.node_group, *([one.fallback.node_group] if one.fallback else ())}
    return {*one.node_groups} if isinstance(one, SlurmNodesTarget) else set()
