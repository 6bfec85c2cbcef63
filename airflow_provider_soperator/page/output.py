"""The document with the last lines of a job's output."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from airflow_provider_soperator.board.looks import attempt
from airflow_provider_soperator.board.output_tail import output_tail
from airflow_provider_soperator.board.picture import Picture
from airflow_provider_soperator.board.tasks import known_connections
from airflow_provider_soperator.hooks.check import in_words
from airflow_provider_soperator.slurm.files import FileError
from airflow_provider_soperator.slurm.job_records import Job


def add_output(
    app: FastAPI,
    page: Callable[..., Response],
    seen: Callable[[str, Any], Awaitable[Picture | None]],
    reasons_for: Callable[[Any, str], Callable[[str], str]],
) -> None:
    """Add the document; ``seen`` is the picture of a connection for a user, ``reasons_for`` what that is told."""

    @app.get("/output", dependencies=[Depends(requires_access_view(AccessView.JOBS))])
    async def output(request: Request, user: GetUserDep, connection: str, job: str) -> Response:
        is_known = connection in await run_in_threadpool(known_connections, os.environ)
        picture = await seen(connection, user) if is_known else None
        found = next((one for one in picture.jobs if str(one.id) == job), None) if picture else None
        tasks = picture.tasks.get(found.id) if picture and found else None
        # What a job prints is as private as its task's log, and of a job without a task nothing is known.
        if found is None or tasks is None or not await run_in_threadpool(_may_read_log, tasks.dag_id, user):
            why = "There is no job of this id in the queue whose task's log you may read."
            return page(request, "output.html", 404, id=job, job=None, tasks=None, text="", why=why)
        failures: dict[str, str] = {}
        text, why = await attempt("output", failures, _tail(connection, found), ("", ""))
        if failures:
            why = (await run_in_threadpool(reasons_for, user, connection))(failures["output"])
        said = {"connection": connection, "id": job, "job": found, "tasks": tasks, "text": text, "why": why}
        return page(request, "output.html", **said, now=datetime.now(timezone.utc))


async def _tail(connection: str, job: Job) -> tuple[str, str]:
    """The last lines, or what is wrong with the file, which is the job's own."""
    try:
        return await output_tail(connection, job), ""
    except FileError as error:
        return "", in_words(error)


def _may_read_log(dag_id: str, user: Any) -> bool:
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(
        method="GET", access_entity=DagAccessEntity.TASK_LOGS, details=details, user=user
    )
