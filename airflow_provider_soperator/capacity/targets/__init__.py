"""All that can hold GPUs of a capacity block; each is imported when a DAG file asks for it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.targets.kubernetes import KubernetesScaleTarget
    from airflow_provider_soperator.capacity.targets.nebius import NebiusNodeGroupTarget
    from airflow_provider_soperator.capacity.targets.slurm import SlurmNodesTarget

__all__ = ["KubernetesScaleTarget", "NebiusNodeGroupTarget", "SlurmNodesTarget"]

_MODULES = {"KubernetesScaleTarget": "kubernetes", "NebiusNodeGroupTarget": "nebius", "SlurmNodesTarget": "slurm"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
