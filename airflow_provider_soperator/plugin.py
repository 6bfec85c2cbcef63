"""What Airflow takes from plugins only, through the ``airflow.plugins`` entry point: timetables."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin


class SoperatorPlugin(AirflowPlugin):
    """Registers what DAGs can be scheduled by, so that Airflow can store it with them."""

    name = "soperator"

    # Every process of Airflow's loads all plugins, also the one of each task; few ask for timetables.
    @property
    def timetables(self) -> list[Any]:  # type: ignore[override]
        from airflow_provider_soperator.timetables.capacity import CapacityTimetable

        return [CapacityTimetable]
