"""Descriptions of clusters, and their provisioners."""

from airflow_provider_soperator.provisioning.parts import (
    Disk,
    Filesystem,
    LocalNvme,
    NodeSet,
    PartitionSpec,
    ServiceNodes,
    Submount,
)
from airflow_provider_soperator.provisioning.spec import (
    ClusterSpec,
    Connections,
    Installation,
    KubernetesObjects,
    Recipe,
)

__all__ = [
    "ClusterSpec",
    "Connections",
    "Disk",
    "Filesystem",
    "Installation",
    "KubernetesObjects",
    "LocalNvme",
    "NodeSet",
    "PartitionSpec",
    "Recipe",
    "ServiceNodes",
    "Submount",
]
