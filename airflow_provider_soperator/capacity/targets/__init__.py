"""Targets: all that can hold GPUs of a capacity block, as values that DAG files make."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_soperator.errors import CapacityMistake

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.node_choice import NodeOrder
    from airflow_provider_soperator.capacity.targets.nebius_session import GroupMachines
    from airflow_provider_soperator.capacity.targets.protocol import Clients, Session, SessionContext
    from airflow_provider_soperator.logger import Logger

__all__ = ["KubernetesScaleTarget", "NebiusNodeGroupTarget", "SlurmNodesTarget"]


@dataclass(frozen=True, kw_only=True)
class SlurmNodesTarget:
    """Ephemeral nodes of a Soperator cluster.

        SlurmNodesTarget(name="training", nodes="worker-[0-7]", gpus_per_unit=8)

    To have n of them means that all others are off and drained, in this provider's name; so no queued job powers them
    up again. Which ones go is chosen by what is lost with them: idle ones first.
    """

    name: str
    #: A Slurm hostlist.
    nodes: str
    gpus_per_unit: int = 8
    slurm_conn_id: str = "soperator_default"
    #: Busy nodes go by the ``end`` of their jobs, or by the ``work`` that would be lost.
    order: NodeOrder = "end"
    #: Nodes of one block of the network go together, as Slurm's topology has them.
    whole_network_blocks: bool = False
    #: The ids of the Nebius node groups that the nodes stand on. With them it is known, and not guessed, which nodes
    #: have their machines yet; and that the machines go with the nodes is checked before anything is moved.
    node_groups: tuple[str, ...] = ()
    nebius_conn_id: str = "nebius_default"
    units: str = "nodes"

    def __post_init__(self) -> None:
        if self.gpus_per_unit < 1:
            raise CapacityMistake(f"{self.name}: a node has at least one GPU, not {self.gpus_per_unit}")
        if self.order not in ("end", "work"):
            raise CapacityMistake(f"{self.name}: order={self.order!r} is neither 'end' nor 'work'")

    @asynccontextmanager
    async def open(self, context: SessionContext, clients: Clients, log: Logger) -> AsyncIterator[Session]:
        from airflow_provider_soperator.capacity.targets.slurm_session import SlurmNodesSession
        from airflow_provider_soperator.slurm.requests import WhoAmI

        async with AsyncExitStack() as opened:
            client = await opened.enter_async_context(clients.slurm(self.slurm_conn_id))
            machines = await self._open_machines(opened, clients) if self.node_groups else None
            yield SlurmNodesSession(self, client, await client.ask(WhoAmI()), machines, context, log)

    async def _open_machines(self, opened: AsyncExitStack, clients: Clients) -> GroupMachines:
        sdk = await opened.enter_async_context(clients.nebius(self.nebius_conn_id))
        from airflow_provider_soperator.capacity.targets.nebius_session import GroupMachines

        return GroupMachines(sdk, self.node_groups)


@dataclass(frozen=True, kw_only=True)
class NebiusNodeGroupTarget:
    """A node group that grows and shrinks within a capacity block, and never buys.

        NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00example")

    How its size is set is the group's: a fixed count is set to another one, and where an autoscaler decides its bounds
    are moved. The nodes that go cannot be chosen: Nebius drains some of them.
    """

    name: str
    #: The id of the node group. Its reservation policy has to be STRICT, and its block the one that is moved.
    node_group: str
    #: GPUs of one node. It is compared with the group's preset before anything is moved.
    gpus_per_unit: int = 8
    nebius_conn_id: str = "nebius_default"
    #: With an autoscaler: as many nodes as it is to keep in any case. A shrink to fewer lowers that for the time being,
    #: and the next growth brings it back.
    min_nodes: int = 0

    def __post_init__(self) -> None:
        if self.gpus_per_unit < 1:
            raise CapacityMistake(f"{self.name}: gpus_per_unit is {self.gpus_per_unit}", "nodes without GPUs hold none")
        if self.min_nodes < 0:
            raise CapacityMistake(f"{self.name}: min_nodes is {self.min_nodes}", "leave it out, or set 1 or more")

    @property
    def units(self) -> str:
        return "nodes"

    @asynccontextmanager
    async def open(self, context: SessionContext, clients: Clients, log: Logger) -> AsyncIterator[Session]:
        async with clients.nebius(self.nebius_conn_id) as sdk:
            from airflow_provider_soperator.capacity.targets.nebius_session import NodeGroupSession

            yield NodeGroupSession(sdk, self.node_group, self.gpus_per_unit, self.min_nodes, context, log)


@dataclass(frozen=True, kw_only=True)
class KubernetesScaleTarget:
    """Replicas of anything that has a scale subresource.

        KubernetesScaleTarget(
            name="inference", resource="vllm", namespace="inference",
            kubernetes_conn_id="kubernetes_inference", gpus_per_unit=8,
        )

    ``kind`` is Deployment, StatefulSet, or another with its group: ``leaderworkersets.leaderworkerset.x-k8s.io``, or
    ``group/version/Kind``. Machines are not its affair: an autoscaled node group follows, one of a fixed size is a
    target of its own.

    KEDA is paused at the number that is set. It rules again at the end of a shift that has given at least as many
    replicas as it may ever make (``maxReplicaCount``). With ``pin_hpa`` the bounds of a HorizontalPodAutoscaler are
    moved, and come back, in the same way.
    """

    name: str
    #: The workload's own name.
    resource: str
    #: GPUs of one replica, in all its Pods.
    gpus_per_unit: int
    namespace: str = "default"
    kind: str = "Deployment"
    kubernetes_conn_id: str = "kubernetes_default"
    pin_hpa: bool = False
    units: str = "replicas"

    def __post_init__(self) -> None:
        if self.gpus_per_unit < 1:
            raise CapacityMistake(f"{self.name}: a replica has at least one GPU, not {self.gpus_per_unit}")
        from airflow_provider_soperator.soperator.kinds import KindMistake, check_kind

        try:
            check_kind(self.kind)
        except KindMistake as error:
            raise CapacityMistake(str(error)) from None

    @asynccontextmanager
    async def open(self, context: SessionContext, clients: Clients, log: Logger) -> AsyncIterator[Session]:
        from airflow_provider_soperator.capacity.targets.kubernetes_session import open_session

        async with open_session(self, clients, log) as session:
            yield session
