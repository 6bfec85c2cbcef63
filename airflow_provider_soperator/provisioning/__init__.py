"""Descriptions of clusters, and their provisioners. The names for DAG files are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_soperator.provisioning.connections import Connections
    from airflow_provider_soperator.provisioning.parts import (
        Disk,
        Filesystem,
        LocalNvme,
        NodeSet,
        PartitionSpec,
        ServiceNodes,
        Submount,
    )
    from airflow_provider_soperator.provisioning.spec import ClusterSpec, Installation, KubernetesObjects, Recipe

_MODULES = {
    "connections": ("Connections",),
    "parts": ("Disk", "Filesystem", "LocalNvme", "NodeSet", "PartitionSpec", "ServiceNodes", "Submount"),
    "spec": ("ClusterSpec", "Installation", "KubernetesObjects", "Recipe"),
}
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


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
