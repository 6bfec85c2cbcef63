"""Airflow plugin with the provider's timetables, loaded through the ``airflow.plugins`` entry point."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import AirflowPlugin


class SoperatorPlugin(AirflowPlugin):
    """Registers the timetables, so that Airflow can store them with DAGs, and the page with the tab of a task's job."""

    name = "soperator"

    # Every Airflow process loads all plugins, also that of each task; few need timetables.
    @property
    def timetables(self) -> list[Any]:  # type: ignore[override]
        from airflow_provider_soperator.timetables.capacity import CapacityTimetable, ReconciledCapacityTimetable

        return [CapacityTimetable, ReconciledCapacityTimetable]

    # For the API server alone, which asks more than once.
    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        from airflow_provider_soperator.page.app import make_app

        return [{"app": make_app(), "url_prefix": "/soperator", "name": "Soperator"}]

    @cached_property
    def external_views(self) -> list[Any]:  # type: ignore[override]
        from airflow.configuration import conf

        root = urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + "/soperator"
        icons = {"icon": f"{root}/static/icon.svg", "icon_dark_mode": f"{root}/static/icon-dark.svg"}
        job = "job?dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"
        page = {"destination": "nav", "url_route": "soperator", "nav_top_level": True}
        tab = {"destination": "task_instance", "url_route": "soperator_job"}
        return [
            {"name": "Soperator", "href": f"{root}/", **page, **icons},
            {"name": "Slurm job", "href": f"{root}/{job}", **tab, **icons},
        ]
