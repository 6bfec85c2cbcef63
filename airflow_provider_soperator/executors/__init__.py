"""The executor that runs each task of Airflow as a Slurm job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_soperator.executors.slurm import SlurmExecutor

__all__ = ["SlurmExecutor"]


# Each process of Airflow reads the options from a module of this room, and few need the executor.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from airflow_provider_soperator.executors.slurm import SlurmExecutor

    return SlurmExecutor
