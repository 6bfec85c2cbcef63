"""One who looks at a document of the page: their rights in Airflow, what they see of a cluster, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from airflow_provider_soperator import __version__
from airflow_provider_soperator.board.check_history import alike
from airflow_provider_soperator.board.looks import Looks
from airflow_provider_soperator.board.picture import INTERVAL, Picture, without_tasks
from airflow_provider_soperator.board.wall import STATES
from airflow_provider_soperator.capacity.allocation import units_text
from airflow_provider_soperator.page.sections import Sections
from airflow_provider_soperator.slurm.notations import NoDuration, duration_in_words

HERE = Path(__file__).parent
#: Only this application's own files, in Airflow's frame.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Viewer:
    """The user of a request."""

    def __init__(self, request: Request, user: GetUserDep) -> None:
        self._request, self._user = request, user
        self._pictures: Looks[Picture] = request.app.state.pictures
        self.sections: Sections = request.app.state.sections

    @cached_property
    def _readable(self) -> Collection[str]:
        return get_auth_manager().get_authorized_dag_ids(user=self._user, method="GET")

    def may_see(self, dag_id: str) -> bool:
        """True for a DAG that they may read. The first question asks Airflow's database, and so belongs in a thread."""
        return dag_id in self._readable

    def may(self, method: Literal["GET", "POST", "PUT"], entity: DagAccessEntity, dag_ids: Collection[str]) -> set[str]:
        """Those of some DAGs on which they have a right, in the team of each."""
        teams = DagModel.get_dag_id_to_team_name_mapping(list(dag_ids)) if dag_ids else {}

        def is_allowed(dag_id: str) -> bool:
            details = DagDetails(id=dag_id, team_name=teams.get(dag_id))
            return get_auth_manager().is_authorized_dag(
                method=method, access_entity=entity, details=details, user=self._user
            )

        return set(filter(is_allowed, dag_ids))

    def may_see_connection(self, connection: str) -> bool:
        details = ConnectionDetails(conn_id=connection, team_name=Connection.get_team_name(connection))
        return get_auth_manager().is_authorized_connection(method="GET", details=details, user=self._user)

    def reasons(self, connection: str) -> Callable[[str], str]:
        """What they are told of why something could not be read: it may name hosts."""
        is_told = self.may_see_connection(connection)
        return lambda why: why if is_told else "The reason is told to those who may see the connection."

    async def whole(self, connection: str) -> Picture | None:
        """The newest picture of a connection, with what they may not see; None while the first one is being taken."""
        return await self._pictures.newest(connection)

    async def seen(self, connection: str) -> Picture | None:
        """The newest picture of a connection, as they may see it."""
        picture = await self.whole(connection)
        return await run_in_threadpool(self._as_seen, picture) if picture else None

    def _as_seen(self, picture: Picture) -> Picture:
        return without_tasks(picture, self.may_see, self.may_see_connection(picture.connection))

    def page(self, name: str, status: int = 200, /, **values: Any) -> Response:
        """Draw a document."""
        return document(self._request, name, status, **values)


def document(request: Request, name: str, status: int = 200, /, **values: Any) -> Response:
    """Draw a document, also for one who is not logged in."""
    # The application is mounted below the address of Airflow, which links to its pages need.
    root = request.scope.get("root_path", "")
    where = {"root": root, "airflow": root.rpartition("/")[0], "interval": INTERVAL}
    return HTMLResponse(_TEMPLATES.get_template(name).render(**where, **values), status, _HEADERS)


def _duration(span: timedelta | NoDuration | None) -> str:
    if span is None or isinstance(span, NoDuration):
        return "no limit" if span is NoDuration.UNLIMITED else ""
    return duration_in_words(span.total_seconds())


_TEMPLATES = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "duration": _duration,
    "seconds": duration_in_words,
    "percent": lambda share: "" if share is None else f"{100 * share:.0f} %",
    "units": units_text,
    "local": lambda moment, zone: f"{moment.astimezone(zone):%a %d %b %H:%M}",
    "alike": alike,
    "age": lambda moment: _duration(datetime.now(timezone.utc) - moment) if moment else "",
}
# Browsers keep scripts and styles for a while: an upgrade must not meet old ones.
_TEMPLATES.globals |= {"STATES": STATES, "VERSION": __version__}
