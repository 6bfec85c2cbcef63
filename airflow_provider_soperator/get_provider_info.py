"""The provider's description for Airflow, loaded through the ``apache_airflow_provider`` entry point."""

from __future__ import annotations

from typing import Any

from airflow_provider_soperator import __version__
from airflow_provider_soperator.executors.settings import described
from airflow_provider_soperator.hooks.forms import NEBIUS, SOPERATOR


def get_provider_info() -> dict[str, Any]:
    """Describe the provider in the terms of Airflow's ``provider_info.schema.json``.

    Airflow calls this in each of its processes, so it must import nothing heavy. The plugin has an entry point
    and is not named here as well: an Airflow that discovers providers eagerly would show a second one, as an error.
    """
    return {
        "package-name": "airflow-provider-soperator",
        "name": "Soperator",
        # reStructuredText; `airflow providers list` prints it without the markup.
        "description": "`Soperator <https://github.com/nebius/soperator>`__: Slurm on Kubernetes",
        "versions": [__version__],
        "integrations": [{"integration-name": "Soperator", "external-doc-url": "https://github.com/nebius/soperator"}],
        "hooks": _listed("hooks", "airflow_api", "cluster", "nebius", "prometheus", "slurm", "terraform"),
        "operators": _listed(
            "operators",
            "capacity",
            "action_dags",
            "capacity_dag",
            "cluster",
            "leftovers",
            "nodes",
            "pipeline",
            "queue",
            "sbatch",
            "stats",
            "steering",
        ),
        "sensors": _listed("sensors", "capacity", "cluster", "health", "jobs", "nodes"),
        "triggers": _listed("triggers", "capacity_watch", "events", "sbatch", "shift", "work"),
        "extra-links": [
            "airflow_provider_soperator.links.JobLink",
            "airflow_provider_soperator.links.OutputLink",
            "airflow_provider_soperator.links.GrafanaLink",
        ],
        "executors": ["airflow_provider_soperator.executors.SlurmExecutor"],
        "config": described(),
        "connection-types": [SOPERATOR.described(), NEBIUS.described()],
        "cli": ["airflow_provider_soperator.cli.definition.get_cli_commands"],
        # The schema has "path" for what Airflow reads as "class-name".
        "task-decorators": [
            {"name": "sbatch", "class-name": "airflow_provider_soperator.decorators.sbatch.sbatch_task"},
        ],
    }


def _listed(room: str, *modules: str) -> list[dict[str, Any]]:
    """Modules, as the entry of one integration."""
    return [{"integration-name": "Soperator", "python-modules": [f"{__package__}.{room}.{name}" for name in modules]}]
