"""Those who can be asked about the health of nodes beside Slurm, all in one round."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.health.assessment import Seen
from airflow_provider_soperator.health.metrics import NODE_LABELS, Metric, Sample
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.prometheus import PrometheusHook
from airflow_provider_soperator.hooks.settings import NAMESPACE
from airflow_provider_soperator.soperator.cluster_objects import view
from airflow_provider_soperator.soperator.hosts import KubernetesView


@dataclass(frozen=True, kw_only=True)
class Witnesses:
    """Connections to ask, of plain values; none is asked without one."""

    kubernetes_conn_id: str | None = None
    namespace: str = NAMESPACE
    prometheus_conn_id: str | None = None
    #: Of the series that are meant, where a Prometheus has those of several clusters.
    series: Mapping[str, str] = field(default_factory=dict)
    #: Labels that tell whose a figure is.
    node_labels: tuple[str, ...] = NODE_LABELS

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Witnesses:
        return cls(**{**written, "node_labels": tuple(written.get("node_labels") or NODE_LABELS)})

    def write(self) -> dict[str, Any]:
        return {
            "kubernetes_conn_id": self.kubernetes_conn_id,
            "namespace": self.namespace,
            "prometheus_conn_id": self.prometheus_conn_id,
            "series": dict(self.series),
            "node_labels": list(self.node_labels),
        }

    async def ask(self) -> Seen:
        """What they say now; raises ``TransportError`` if one of them cannot be asked."""
        kubernetes, samples = await asyncio.gather(self._kubernetes(), self._samples())
        return Seen(kubernetes, samples, self.node_labels)

    async def _kubernetes(self) -> KubernetesView | None:
        if not self.kubernetes_conn_id:
            return None
        async with SoperatorClusterHook(self.kubernetes_conn_id, self.namespace).async_client() as client:
            import kubernetes_asyncio.client

            return await view(kubernetes_asyncio.client.CoreV1Api(client), self.namespace)

    async def _samples(self) -> dict[Metric, list[Sample]]:
        if not self.prometheus_conn_id:
            return {}
        return await PrometheusHook(self.prometheus_conn_id).faults(self.series)
