"""A whole cluster as Kubernetes has it at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.soperator.clusters import ClusterSeen
from airflow_provider_soperator.soperator.nodesets import NodeSetSeen


@dataclass(frozen=True)
class Seen:
    """A SlurmCluster and its NodeSets."""

    cluster: ClusterSeen
    nodesets: tuple[NodeSetSeen, ...] = ()

    def describe(self) -> dict[str, Any]:
        """What there is, for tasks that go on with it."""
        return {
            "cluster": self.cluster.name,
            "version": self.cluster.version,
            "nodesets": {
                one.name: {"replicas": one.replicas, "ephemeral": one.is_ephemeral, "nodes": list(one.active_nodes)}
                for one in self.nodesets
            },
        }
