"""Airflow plugin with the provider's timetables, loaded through the ``airflow.plugins`` entry point."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin


class SoperatorPlugin(AirflowPlugin):
    """Registers the timetables, so that Airflow can store them with DAGs."""

    name = "soperator"

    # Every Airflow process loads all plugins, also that of each task; few need timetables.
    @property
    def timetables(self) -> list[Any]:  # type: ignore[override]
        from airflow_provider_soperator.timetables.capacity import CapacityTimetable, ReconciledCapacityTimetable

        return [CapacityTimetable, ReconciledCapacityTimetable]
