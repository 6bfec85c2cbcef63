"""The web application behind the page, which Airflow's API server mounts.

It serves documents, not data: links and forms work as such, in the frame of Airflow's page and without it. No document
is answered without a login, and nothing is changed but by Airflow's own API.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from datetime import datetime, timezone
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag, requires_access_view
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.staticfiles import StaticFiles

from airflow_provider_soperator.board.leftovers import left_overs
from airflow_provider_soperator.board.looks import Looks, attempt
from airflow_provider_soperator.board.picture import GLANCE, INTERVAL, take
from airflow_provider_soperator.board.queue_rows import QueueQuery, output_tail, queue_page, row_of
from airflow_provider_soperator.board.tasks import known_connections
from airflow_provider_soperator.board.wall import wall
from airflow_provider_soperator.hooks.check import in_words
from airflow_provider_soperator.page import actions
from airflow_provider_soperator.page.actions import node_actions, offers_to
from airflow_provider_soperator.page.sections import Sections
from airflow_provider_soperator.page.viewer import HERE, Viewer, document
from airflow_provider_soperator.slurm.files import FileError
from airflow_provider_soperator.slurm.job_records import Job

#: Nodes up to which each tile has its number.
_SPARSE = 300
#: The parts of a picture that have the job of a task.
_OF_A_TASK = ("jobs", "tasks")


class BoardQuery(QueueQuery):
    """What a viewer asks the page for."""

    connection: str = ""
    #: The node whose panel is open, and the state of nodes that stand out.
    node: str = ""
    state: str = ""
    #: Words of nodes that stand out.
    find: str = ""


router = APIRouter()


@router.get("/", dependencies=[Depends(requires_access_view(AccessView.JOBS))])
async def board(viewer: Annotated[Viewer, Depends()], query: Annotated[BoardQuery, Query()]) -> Response:
    known = await run_in_threadpool(known_connections, os.environ)
    chosen = query.connection or next(iter(known), "")
    if chosen not in known:
        return viewer.page("no_connection.html", 404 if known else 200, connection=chosen, known=known)
    picture = await viewer.seen(chosen)
    if picture is None:
        return viewer.page("wait.html", connection=chosen)
    shown = await viewer.sections.of(picture, viewer.may_see)

    def draw() -> Response:
        groups = wall(picture.nodes, picture.jobs)
        tiles = [tile for group in groups for tile in group.tiles]
        node = next((tile for tile in tiles if tile.node.name == query.node), None)
        return viewer.page(
            "board.html",
            picture=picture,
            known=known,
            groups=groups,
            counts=Counter(tile.state for tile in tiles),
            node=node,
            node_actions=node_actions(node, picture) if node else [],
            offers=offers_to(viewer, chosen),
            lit=sum(tile.fits(query.state, query.find) for tile in tiles),
            is_dense=len(tiles) > _SPARSE,
            queue=queue_page(picture, query),
            query=query,
            left_overs=left_overs(picture),
            reason=viewer.reasons(chosen),
            **shown,
        )

    # With many nodes and jobs it takes tenths of a second, in which the server has other things to do.
    return await run_in_threadpool(draw)


@router.get("/job", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))])
async def job(
    viewer: Annotated[Viewer, Depends()], dag_id: str, run_id: str, task_id: str, map_index: str = "-1"
) -> Response:
    # On a task that is not mapped Airflow leaves its placeholder as it is.
    index = int(map_index) if map_index.isdecimal() else -1
    known = await run_in_threadpool(known_connections, os.environ)
    # Of the queue it has only the jobs of this task, which they may read.
    seen = dict(zip(known, await asyncio.gather(*map(viewer.whole, known)), strict=True))
    found = [
        (picture, row_of(picture, job.id))
        for picture in filter(None, seen.values())
        for job in picture.jobs
        if (tasks := picture.tasks.get(job.id)) and tasks.covers(dag_id, run_id, task_id, index)
    ]
    unread = [name for name, picture in seen.items() if picture is None]
    # The moments of what is shown of those whose queue cannot be read; its reason may name hosts.
    stale = {
        name: min((picture.since[part] for part in _OF_A_TASK if part in picture.since), default=None)
        for name, picture in seen.items()
        if picture and any(part in picture.failures for part in _OF_A_TASK)
    }
    return viewer.page("job.html", found=found, task_id=task_id, unread=unread, stale=stale)


@router.get("/output", dependencies=[Depends(requires_access_view(AccessView.JOBS))])
async def output(viewer: Annotated[Viewer, Depends()], connection: str, job: str) -> Response:
    """The last lines of a job's output."""
    is_known = connection in await run_in_threadpool(known_connections, os.environ)
    picture = await viewer.whole(connection) if is_known else None
    if is_known and picture is None:
        # Each process of the API server has pictures of its own.
        return viewer.page("wait.html", connection=connection)
    found = next((one for one in picture.jobs if str(one.id) == job), None) if picture else None
    tasks = picture.tasks.get(found.id) if picture and found else None
    # What a job prints is as private as its tasks' logs, and of a job without a task nothing is known.
    owners = tasks.dag_ids if tasks else set()
    may_read = await run_in_threadpool(viewer.may, "GET", DagAccessEntity.TASK_LOGS, owners)
    if found is None or not owners or may_read != owners:
        why = "There is no job of this id in the queue whose task's log you may read."
        return viewer.page("output.html", 404, id=job, job=None, tasks=None, text="", why=why)
    failures: dict[str, str] = {}
    text, why = await attempt("output", failures, _tail(connection, found), ("", ""))
    if failures:
        why = (await run_in_threadpool(viewer.reasons, connection))(failures["output"])
    said = {"connection": connection, "id": job, "job": found, "tasks": tasks, "text": text, "why": why}
    return viewer.page("output.html", **said, now=datetime.now(timezone.utc))


async def _tail(connection: str, job: Job) -> tuple[str, str]:
    """The last lines, or what is wrong with the file, which is the job's own."""
    try:
        return await output_tail(connection, job), ""
    except FileError as error:
        return "", in_words(error)


def _offer_login(request: Request, _: Exception) -> Response:
    """Lead to Airflow's login, and from there back to what was asked for."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return document(request, "login.html", 401, asked=f"{path}?{request.url.query}")


def make_app() -> FastAPI:
    """Make the application; Airflow mounts it in its API server."""
    app = FastAPI(dependencies=[Depends(get_user)], docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(401, _offer_login)
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    app.state.pictures, app.state.sections = Looks(take, INTERVAL, GLANCE), Sections()
    app.include_router(router)
    app.include_router(actions.router)
    return app
