"""The names of the executor's options, which each process of Airflow reads with the provider's description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SECTION = "soperator"
#: Each option with its type in Airflow's description, its default and what it means.
OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "executor_conn_id": ("string", "soperator_default", "Connection of the cluster on which SlurmExecutor runs tasks."),
    "executor_root": (
        "string",
        "airflow/executor",
        "Folder of the executor on the shared file system, absolute or from the home of the connection's user.",
    ),
    "executor_python": (
        "string",
        "",
        "Path of a Python on the nodes that has Airflow. Empty: a venv is made in executor_root.",
    ),
    "executor_packages": (
        "string",
        "",
        "Packages of the venv, separated by blanks. Empty: those of the scheduler, at their versions.",
    ),
    "executor_job": ("string", "", "What each job asks for, as JSON: fields of BatchJob, and share."),
    "executor_queues": ("string", "", "The same by queue, as JSON. Any other queue is the name of a partition."),
    "executor_parallelism": ("integer", "10000", "Tasks that may run or wait in Slurm at once, for one scheduler."),
    "executor_token_days": (
        "integer",
        "7",
        "Days for which a job may wait in Slurm: so long its token lets it start its task.",
    ),
}


def described() -> dict[str, Any]:
    """The section in the provider's description."""
    options = {
        name: {"description": said, "version_added": None, "type": kind, "default": default, "example": None}
        for name, (kind, default, said) in OPTIONS.items()
    }
    return {SECTION: {"description": "SlurmExecutor, which runs tasks as Slurm jobs.", "options": options}}
