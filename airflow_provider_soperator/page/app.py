"""The web application behind the page, which Airflow's API server mounts.

It serves documents, not data: links and forms work as such, in the frame of Airflow's page and without it. No document
is answered without a login, and nothing is changed but by Airflow's own API.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, ConnectionDetails, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag, requires_access_view
from airflow.models.connection import Connection
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from airflow_provider_soperator import __version__
from airflow_provider_soperator.board.check_history import alike
from airflow_provider_soperator.board.picture import INTERVAL, Album, Picture, without_tasks
from airflow_provider_soperator.board.queue_rows import QueueQuery, QueueRow, queue_page, row_of
from airflow_provider_soperator.board.tasks import find_tasks, known_connections
from airflow_provider_soperator.board.wall import STATES, left_overs, wall
from airflow_provider_soperator.capacity.allocation import units_text
from airflow_provider_soperator.page.actions import add_actions, node_actions, offers_to
from airflow_provider_soperator.page.output import add_output
from airflow_provider_soperator.page.sections import Sections
from airflow_provider_soperator.slurm.notations import NoDuration, duration_in_words

#: Nodes up to which each tile has its number.
_SPARSE = 300
_HERE = Path(__file__).parent
#: Only this application's own files, in Airflow's frame.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class BoardQuery(QueueQuery):
    """What a viewer asks the page for."""

    connection: str = ""
    #: The node whose panel is open, and the state of nodes that stand out.
    node: str = ""
    state: str = ""
    #: Words of nodes that stand out.
    find: str = ""


def duration_text(span: timedelta | NoDuration | None) -> str:
    if span is None or isinstance(span, NoDuration):
        return "no limit" if span is NoDuration.UNLIMITED else ""
    return duration_in_words(span.total_seconds())


def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["duration"] = duration_text
    templates.filters["seconds"] = duration_in_words
    templates.filters["percent"] = lambda share: "" if share is None else f"{100 * share:.0f} %"
    templates.filters["units"] = units_text
    templates.filters["local"] = lambda moment, zone: f"{moment.astimezone(zone):%a %d %b %H:%M}"
    templates.filters["alike"] = alike
    templates.filters["age"] = lambda moment: duration_text(datetime.now(timezone.utc) - moment) if moment else ""
    templates.globals["STATES"] = STATES
    # Browsers keep scripts and styles for a while: an upgrade must not meet old ones.
    templates.globals["VERSION"] = __version__
    return templates


def make_app(album: Album | None = None, sections: Sections | None = None) -> FastAPI:
    """Make the application; Airflow mounts it in its API server."""
    app = FastAPI(dependencies=[Depends(get_user)], docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    pictures, templates = album or Album(find_tasks), _templates()
    more = sections or Sections()

    def page(request: Request, name: str, status: int = 200, /, **values: Any) -> Response:
        root = request.scope.get("root_path", "")
        # The application is mounted below the address of Airflow, which links to its pages need.
        airflow = root.rpartition("/")[0]
        text = templates.get_template(name).render(root=root, airflow=airflow, interval=INTERVAL, **values)
        return HTMLResponse(text, status, _HEADERS)

    async def readable(user: Any) -> Callable[[str], bool]:
        dags = await run_in_threadpool(get_auth_manager().get_authorized_dag_ids, user=user, method="GET")
        return dags.__contains__

    def may_see_connection(user: Any, connection: str) -> bool:
        details = ConnectionDetails(conn_id=connection, team_name=Connection.get_team_name(connection))
        return get_auth_manager().is_authorized_connection(method="GET", details=details, user=user)

    def reasons_for(user: Any, connection: str) -> Callable[[str], str]:
        """What a user is told of why something could not be read: it may name hosts."""
        is_told = may_see_connection(user, connection)
        return lambda why: why if is_told else "The reason is told to those who may see the connection."

    def as_seen(picture: Picture, user: Any, may_see: Callable[[str], bool]) -> Picture:
        return without_tasks(picture, may_see, may_see_connection(user, picture.connection))

    async def seen(connection: str, user: Any) -> Picture | None:
        picture = await pictures.newest(connection)
        return picture and await run_in_threadpool(as_seen, picture, user, await readable(user))

    @app.get("/", dependencies=[Depends(requires_access_view(AccessView.JOBS))])
    async def board(
        request: Request,
        user: GetUserDep,
        query: Annotated[BoardQuery, Query()],
    ) -> Response:
        known = await run_in_threadpool(known_connections, os.environ)
        if not known:
            return page(request, "no_connection.html")
        chosen = query.connection or known[0]
        if chosen not in known:
            return page(request, "no_connection.html", 404, connection=chosen, known=known)
        newest = await pictures.newest(chosen)
        if newest is None:
            return page(request, "wait.html", connection=chosen)
        may_see = await readable(user)
        picture = await run_in_threadpool(as_seen, newest, user, may_see)
        shown = await more.of(picture, may_see)

        def draw() -> Response:
            groups = wall(picture.nodes, picture.jobs)
            tiles = [tile for group in groups for tile in group.tiles]
            node = next((tile for tile in tiles if tile.node.name == query.node), None)
            return page(
                request,
                "board.html",
                picture=picture,
                known=known,
                groups=groups,
                node=node,
                node_actions=node_actions(node, picture) if node else [],
                offers=offers_to(user, chosen),
                lit=sum(tile.fits(query.state, query.find) for tile in tiles),
                is_dense=len(tiles) > _SPARSE,
                queue=queue_page(picture, query),
                query=query,
                left_overs=left_overs(picture.nodes, picture.reservations),
                reason=reasons_for(user, chosen),
                **shown,
            )

        # With many nodes and jobs it takes tenths of a second, in which the server has other things to do.
        return await run_in_threadpool(draw)

    @app.get("/job", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))])
    async def job(
        request: Request, user: GetUserDep, dag_id: str, run_id: str, task_id: str, map_index: str = "-1"
    ) -> Response:
        # On a task that is not mapped Airflow leaves its placeholder as it is.
        index = int(map_index) if map_index.isdecimal() else -1
        found: list[tuple[Picture, QueueRow]] = []
        for connection in await run_in_threadpool(known_connections, os.environ):
            picture = await seen(connection, user)
            if picture:
                # Tasks may be of an older look than the jobs.
                of = {job for job, tasks in picture.tasks.items() if tasks.covers(dag_id, run_id, task_id, index)}
                found += [(picture, row_of(picture, job.id)) for job in picture.jobs if job.id in of]
        return page(request, "job.html", found=found, task_id=task_id)

    add_actions(app, page, seen)
    add_output(app, page, seen, reasons_for)
    return app
