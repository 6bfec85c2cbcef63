"""Those who can be asked about the health of nodes beside Slurm, all in one round."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_soperator.health.assessment import Observations
from airflow_provider_soperator.health.metrics import NODE_LABELS, Metric, Sample
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.prometheus import PrometheusHook
from airflow_provider_soperator.soperator.cluster_objects import view
from airflow_provider_soperator.soperator.hosts import KubernetesView
from airflow_provider_soperator.values import NAMESPACE


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

    async def ask(self, max_age: float | None = None) -> Observations:
        """What they say now; raises ``TransportError`` if one of them cannot be asked.

        With ``max_age`` the answer of Kubernetes may be that many seconds old, and is shared with others who look.
        """
        kubernetes, samples = await asyncio.gather(self._kubernetes(max_age), self._samples())
        return Observations(kubernetes, samples, self.node_labels)

    async def _kubernetes(self, max_age: float | None) -> KubernetesView | None:
        if not self.kubernetes_conn_id:
            return None
        async with SoperatorClusterHook(self.kubernetes_conn_id, self.namespace).objects(max_age) as objects:
            return await objects.shared(("view",), lambda: view(objects))

    async def _samples(self) -> dict[Metric, list[Sample]]:
        if not self.prometheus_conn_id:
            return {}
        return await PrometheusHook(self.prometheus_conn_id).faults(self.series)
