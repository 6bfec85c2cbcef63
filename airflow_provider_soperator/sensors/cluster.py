"""Wait until a cluster is ready for jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_soperator.sensors.watch import WatchSensor
from airflow_provider_soperator.values import NAMESPACE, listed
from airflow_provider_soperator.work.protocols import Watch


class ClusterReadySensor(WatchSensor):
    """Wait until a SlurmCluster is available, and every node of its NodeSets that should run has a ready Pod.

        ClusterReadySensor(task_id="is_ready", slurm_conn_id="soperator_default")

    What waiting cannot mend, such as a node that another owner has drained, fails the sensor at once.
    Returns the ``cluster``, its ``version`` and its ``nodesets``.

    :param cluster: name of the SlurmCluster; by default the only one in the namespace
    :param nodesets: names of the NodeSets to look at; by default all
    :param operator_version: release of Soperator that the cluster and its Pods must have; by default any
    :param slurm_conn_id: Airflow connection to Slurm; with it, jobs must be able to start on each of the nodes, too
    :param namespace: namespace of the SlurmCluster
    :param kubernetes_conn_id: Airflow connection to the cluster's Kubernetes
    """

    template_fields: Sequence[str] = (
        "kubernetes_conn_id", "namespace", "cluster", "slurm_conn_id", "nodesets", "operator_version",
    )  # fmt: skip

    def __init__(
        self,
        *,
        cluster: str | None = None,
        nodesets: Sequence[str] = (),
        operator_version: str = "",
        slurm_conn_id: str | None = None,
        namespace: str = NAMESPACE,
        kubernetes_conn_id: str = "kubernetes_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.nodesets = listed(nodesets)
        self.operator_version = operator_version
        self.slurm_conn_id = slurm_conn_id
        self.namespace, self.kubernetes_conn_id = namespace, kubernetes_conn_id

    def watch(self) -> Watch[Any]:
        from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections
        from airflow_provider_soperator.work.clusters import ClusterWatch

        where = ClusterConnections(
            self.kubernetes_conn_id, self.namespace, self.cluster or None, self.slurm_conn_id or None
        )
        return ClusterWatch(where=where, nodesets=tuple(self.nodesets), version=self.operator_version)
