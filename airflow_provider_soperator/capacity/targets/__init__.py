"""Targets: the holders of GPUs of a capacity block, as values for DAG files."""

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

    All nodes beyond the target's size are off and drained by this provider, so that no queued job powers them up.
    Nodes are released in the order of the work that is lost: idle ones first.
    """

    name: str
    #: A Slurm hostlist.
    nodes: str
    gpus_per_unit: int = 8
    slurm_conn_id: str = "soperator_default"
    #: The order in which busy nodes go: by the ``end`` of their jobs, or by the ``work`` that would be lost.
    order: NodeOrder = "end"
    #: Release nodes of one network block together, by Slurm's topology.
    whole_blocks: bool = False
    #: The ids of the Nebius node groups under the nodes. With them, machines are counted instead of estimated, and a
    #: shift first checks that the machines go with their nodes.
    node_groups: tuple[str, ...] = ()
    nebius_conn_id: str = "nebius_default"
    units: str = "nodes"

    def __post_init__(self) -> None:
        if self.gpus_per_unit < 1:
            raise CapacityMistake(f"{self.name}: gpus_per_unit must be >= 1, got {self.gpus_per_unit}")
        if self.order not in ("end", "work"):
            raise CapacityMistake(f"{self.name}: order must be 'end' or 'work', got {self.order!r}")

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
    """A Nebius node group that grows and shrinks within a capacity block, and never buys.

        NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00example")

    A group of fixed size gets another size; for a group with an autoscaler, the bounds are changed. The nodes that go
    cannot be chosen: Nebius picks and drains them.
    """

    name: str
    #: The id of the node group. Its reservation policy has to be STRICT, with the block of the shift.
    node_group: str
    #: GPUs of one node, compared with the group's preset before anything is moved.
    gpus_per_unit: int = 8
    nebius_conn_id: str = "nebius_default"
    #: With an autoscaler: its lower bound. Shrinking below it lowers the bound until the group grows again.
    min_nodes: int = 0

    def __post_init__(self) -> None:
        if self.gpus_per_unit < 1:
            raise CapacityMistake(f"{self.name}: gpus_per_unit must be >= 1, got {self.gpus_per_unit}")
        if self.min_nodes < 0:
            raise CapacityMistake(f"{self.name}: min_nodes must be >= 0, got {self.min_nodes}")

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
    """Replicas of a Kubernetes workload that has a scale subresource.

        KubernetesScaleTarget(
            name="inference", resource="vllm", namespace="inference",
            kubernetes_conn_id="kubernetes_inference", gpus_per_unit=8,
        )

    ``kind`` is Deployment, StatefulSet, or another kind with its group: ``leaderworkersets.leaderworkerset.x-k8s.io``
    or ``group/version/Kind``. This target does not manage machines: an autoscaled node group follows the replicas; a
    node group of fixed size is a separate target.

    KEDA is paused at the number of replicas that is set. It is resumed at the end of a shift that gives at least as
    many replicas as KEDA may ever make (``maxReplicaCount``). With ``pin_hpa`` the bounds of a HorizontalPodAutoscaler
    are set and restored in the same way.
    """

    name: str
    #: The name of the workload.
    resource: str
    #: GPUs of one replica, over all its Pods.
    gpus_per_unit: int
    namespace: str = "default"
    kind: str = "Deployment"
    kubernetes_conn_id: str = "kubernetes_default"
    pin_hpa: bool = False
    units: str = "replicas"

    def __post_init__(self) -> None:
        if self.gpus_per_unit < 1:
            raise CapacityMistake(f"{self.name}: gpus_per_unit must be >= 1, got {self.gpus_per_unit}")
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
