"""Clients of a whole cluster: its Kubernetes objects, its Slurm, its metrics, and the targets of a shift."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow.sdk import Variable, conf
from asgiref.sync import sync_to_async

from airflow_provider_soperator.capacity.kubernetes_lease import RIGHTS, KubernetesLease
from airflow_provider_soperator.capacity.lease import beside
from airflow_provider_soperator.capacity.lease_store import LeaseStore
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.health.assessment import Observations
from airflow_provider_soperator.health.figures import Kept, kept_figures
from airflow_provider_soperator.health.metrics import NODE_LABELS, Metric, Sample
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.hooks.prometheus import PrometheusHook
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.soperator.cluster_objects import ClusterObjects
from airflow_provider_soperator.soperator.kinds import NODE, POD
from airflow_provider_soperator.soperator.objects import Objects
from airflow_provider_soperator.soperator.workloads import Pod, pods_on_hosts
from airflow_provider_soperator.values import NAMESPACE, listed, variable

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient
    from nebius.sdk import SDK


#: Airflow has no id of its own, so the first task that needs one makes it.
_VARIABLE = "soperator_installation"
_HEALTH_RIGHTS = "list on pods in it, and a ClusterRole with list on nodes,"


@dataclass(frozen=True)
class ClusterSides:
    """The clients of a cluster: for Kubernetes, and for Slurm if there is a connection to it."""

    kubernetes: ClusterObjects
    slurm: AsyncSlurmClient | None = None

    async def nodes(self, most_age: float) -> Mapping[str, Node] | None:
        """Slurm's nodes by name, at most ``most_age`` seconds old; None without a connection to Slurm."""
        if self.slurm is None:
            return None
        return {node.name: node for node in await self.slurm.ask_shared(ListNodes(), most_age)}


@dataclass(frozen=True)
class ClusterConnections:
    """The connections to both sides; of plain values. Without ``slurm_conn_id`` only Kubernetes is asked."""

    kubernetes_conn_id: str
    namespace: str
    cluster: str | None = None
    slurm_conn_id: str | None = None

    @asynccontextmanager
    async def open(self, max_age: float | None = None) -> AsyncIterator[ClusterSides]:
        """Open both sides for the running event loop. Slurm is connected to at its first question.

        With ``max_age`` lists of Kubernetes may be that many seconds old, and are shared.
        """
        async with AsyncExitStack() as opened:
            hook = SoperatorClusterHook(self.kubernetes_conn_id, self.namespace)
            objects = await opened.enter_async_context(hook.soperator(self.cluster or None, max_age))
            slurm = None
            if self.slurm_conn_id:
                slurm = await opened.enter_async_context(SlurmHook(self.slurm_conn_id).async_client())
            yield ClusterSides(objects, slurm)


@dataclass(frozen=True, kw_only=True)
class HealthSources:
    """The connections that the health of nodes is read from; of plain values."""

    kubernetes_conn_id: str | None = None
    namespace: str = NAMESPACE
    prometheus_conn_id: str | None = None
    #: Labels that select the cluster's series, in a Prometheus of several clusters.
    series: Mapping[str, str] = field(default_factory=dict)
    #: Labels that name the node of a sample.
    node_labels: tuple[str, ...] = NODE_LABELS
    #: Checks whose kept figures are compared, and the share by which a figure may be worse.
    checks: tuple[str, ...] = ()
    tolerance: float = 0.1

    @classmethod
    def named_by(cls, task: Any) -> HealthSources:
        """The sources that a sensor or a trigger names in parameters of the same names."""
        return cls(
            kubernetes_conn_id=task.kubernetes_conn_id or None,
            namespace=task.namespace,
            prometheus_conn_id=task.prometheus_conn_id or None,
            series=dict(task.series or {}),
            node_labels=named(task.node_labels) or NODE_LABELS,
            checks=named(task.checks),
            tolerance=task.tolerance,
        )

    async def ask(self, max_age: float | None = None) -> Observations:
        """Ask all sources; raises ``TransportError`` if one of them cannot be asked.

        With ``max_age`` the answer of Kubernetes may be that many seconds old, and is shared.
        """
        kubernetes, samples, figures = await asyncio.gather(self._kubernetes(max_age), self._samples(), self._figures())
        return Observations(kubernetes, samples, self.node_labels, figures, self.tolerance)

    async def _kubernetes(self, max_age: float | None) -> dict[str, Pod] | None:
        if not self.kubernetes_conn_id:
            return None
        hook = SoperatorClusterHook(self.kubernetes_conn_id, self.namespace)
        async with hook.objects(max_age, _HEALTH_RIGHTS) as objects:
            return pods_on_hosts(*await asyncio.gather(objects.list_all(POD), objects.list_all(NODE)))

    async def _samples(self) -> dict[Metric, list[Sample]]:
        if not self.prometheus_conn_id:
            return {}
        return await PrometheusHook(self.prometheus_conn_id).faults(self.series)

    async def _figures(self) -> dict[str, Kept]:
        # A call to Airflow that has begun is completed: its answer would be taken for that of another one.
        calls = [asyncio.ensure_future(sync_to_async(kept_figures)(check)) for check in self.checks]
        return dict(zip(self.checks, await asyncio.shield(asyncio.gather(*calls)), strict=True))


def named(said: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names that a user gives, or the only one."""
    return tuple(listed(said or ()))


class ShiftClients:
    """Clients for a shift."""

    def slurm(self, conn_id: str) -> AbstractAsyncContextManager[AsyncSlurmClient]:
        return SlurmHook(conn_id).async_client()

    def nebius(self, conn_id: str) -> AbstractAsyncContextManager[SDK]:
        return NebiusHook(conn_id).async_client()

    def kubernetes(self, conn_id: str) -> AbstractAsyncContextManager[ApiClient]:
        return SoperatorClusterHook(conn_id).async_client()

    @asynccontextmanager
    async def leases(self, conn_id: str) -> AsyncIterator[Objects | None]:
        settings = await NebiusHook(conn_id).async_settings()
        if not settings.lease_conn_id:
            yield None
            return
        hook = SoperatorClusterHook(settings.lease_conn_id, settings.lease_namespace)
        async with hook.objects(rights=RIGHTS) as objects:
            yield objects

    async def metric(self, conn_id: str, query: str) -> float | None:
        values = [sample.value for sample in await PrometheusHook(conn_id).query(query)]
        # A rate of nothing, or a share of it, is not a number, and the sum of two that are may be none.
        return value if values and math.isfinite(value := sum(values)) else None

    async def block(self, conn_id: str, block: str) -> CapacityBlock:
        return await NebiusHook(conn_id).block(block)

    async def block_beside_shifts(
        self, conn_id: str, block: str, here: LeaseStore | None, warn: Callable[[str], None]
    ) -> CapacityBlock:
        """The present state of a block for one who is no shift: what a shift is about to claim counts as taken.

        ``here`` is asked if shifts have agreed on no place for their leases; ``warn`` is told if that says nothing.
        """
        async with self.leases(conn_id) as place:
            store = KubernetesLease(place, block, key="") if place else here
            # The lease first: what is claimed then is in the usage, or still in the lease.
            seen = await store.read() if store else None
            if store is None or (seen and seen.record is None):
                warn(
                    f"GPUs of block {block} that a shift has claimed count as free, as they cannot be seen: "
                    f"lease_conn_id of the connection {conn_id} names no cluster that keeps the lease"
                )
            return beside(await self.block(conn_id, block), seen, datetime.now(timezone.utc))


def installation_id() -> str:
    """The id of this Airflow. Two that run the same DAGs, as staging and production do, differ.

    It is of a Variable, which lives as long as Airflow's database, and of the address, which a copy of the database
    does not share.
    """
    if not (known := variable(_VARIABLE)):
        why = "Tells this Airflow apart in the leases of capacity blocks, and in reservations"
        try:
            Variable.set(_VARIABLE, uuid4().hex, description=why)
        except ImportError:
            # Only a task can write it. Where a plan is looked at outside of one, no shift has run yet.
            return ""
        # Another task may have set it a moment later.
        known = variable(_VARIABLE)
    address = conf.get("api", "base_url", fallback="") or ""
    return sha256(f"{known} {address.rstrip('/')}".encode()).hexdigest()[:12]
