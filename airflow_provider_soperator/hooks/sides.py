"""Both sides of a cluster at once: its objects in Kubernetes, and its Slurm."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.hooks.stock import known
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.soperator.cluster_objects import ClusterObjects


@dataclass(frozen=True)
class Sides:
    """A cluster that can be asked on both sides, or on that of Kubernetes only."""

    kubernetes: ClusterObjects
    slurm: AsyncSlurmClient | None = None

    async def nodes(self, most_age: float) -> Mapping[str, Node] | None:
        """Slurm's nodes by their names, at most so many seconds old; None if Slurm is not to be asked."""
        if self.slurm is None:
            return None
        return {node.name: node for node in await self.slurm.ask_shared(ListNodes(), most_age)}


@dataclass(frozen=True)
class Where:
    """The connections to both sides; of plain values. Without ``slurm_conn_id`` only Kubernetes is asked."""

    kubernetes_conn_id: str
    namespace: str
    cluster: str | None = None
    slurm_conn_id: str | None = None

    @asynccontextmanager
    async def open(self, max_age: float | None = None) -> AsyncIterator[Sides]:
        """Both sides, for the running event loop. Slurm is connected to once it is asked.

        With ``max_age`` lists of Kubernetes may be that many seconds old, as those who only look share them.
        """
        async with AsyncExitStack() as opened:
            hook = SoperatorClusterHook(self.kubernetes_conn_id, self.namespace)
            objects = await opened.enter_async_context(hook.soperator(self.cluster or None, max_age))
            slurm = None
            if self.slurm_conn_id:
                with known(self.slurm_conn_id):
                    slurm = await opened.enter_async_context(SlurmHook(self.slurm_conn_id).async_client())
            yield Sides(objects, slurm)
