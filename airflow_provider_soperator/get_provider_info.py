"""The provider's description for Airflow, loaded through the ``apache_airflow_provider`` entry point."""

from __future__ import annotations

from typing import Any

from airflow_provider_soperator import __version__
from airflow_provider_soperator.hooks.forms import NEBIUS, SOPERATOR


def get_provider_info() -> dict[str, Any]:
    """Describe the provider in the terms of Airflow's ``provider_info.schema.json``.

    Airflow calls this in each of its processes, so it must import nothing heavy.
    """
    return {
        "package-name": "airflow-provider-soperator",
        "name": "Soperator",
        # reStructuredText; `airflow providers list` prints it without the markup.
        "description": "`Soperator <https://github.com/nebius/soperator>`__: Slurm on Kubernetes",
        "versions": [__version__],
        "integrations": [{"integration-name": "Soperator", "external-doc-url": "https://github.com/nebius/soperator"}],
        "hooks": [
            {
                "integration-name": "Soperator",
                "python-modules": [
                    "airflow_provider_soperator.hooks.airflow_api",
                    "airflow_provider_soperator.hooks.cluster",
                    "airflow_provider_soperator.hooks.nebius",
                    "airflow_provider_soperator.hooks.prometheus",
                    "airflow_provider_soperator.hooks.slurm",
                    "airflow_provider_soperator.hooks.terraform",
                ],
            }
        ],
        "operators": [
            {
                "integration-name": "Soperator",
                "python-modules": [
                    "airflow_provider_soperator.operators.capacity",
                    "airflow_provider_soperator.operators.capacity_dag",
                    "airflow_provider_soperator.operators.cluster",
                    "airflow_provider_soperator.operators.nodes",
                    "airflow_provider_soperator.operators.pipeline",
                    "airflow_provider_soperator.operators.queue",
                    "airflow_provider_soperator.operators.sbatch",
                    "airflow_provider_soperator.operators.stats",
                    "airflow_provider_soperator.operators.steering",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Soperator",
                "python-modules": [
                    "airflow_provider_soperator.sensors.capacity",
                    "airflow_provider_soperator.sensors.cluster",
                    "airflow_provider_soperator.sensors.health",
                    "airflow_provider_soperator.sensors.jobs",
                    "airflow_provider_soperator.sensors.nodes",
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": "Soperator",
                "python-modules": [
                    "airflow_provider_soperator.triggers.shift",
                    "airflow_provider_soperator.triggers.events",
                    "airflow_provider_soperator.triggers.sbatch",
                    "airflow_provider_soperator.triggers.work",
                ],
            }
        ],
        "extra-links": [
            "airflow_provider_soperator.links.slurm.JobLink",
            "airflow_provider_soperator.links.slurm.OutputLink",
            "airflow_provider_soperator.links.slurm.GrafanaLink",
        ],
        "connection-types": [SOPERATOR.described(), NEBIUS.described()],
        # The schema has "path" for what Airflow reads as "class-name".
        "task-decorators": [
            {"name": "sbatch", "class-name": "airflow_provider_soperator.decorators.sbatch.sbatch_task"},
        ],
    }
