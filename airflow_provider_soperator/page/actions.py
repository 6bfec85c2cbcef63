"""What people do from the page: the buttons that a viewer has, and the form that tells what an action will do.

Nothing is changed here. The form is sent by the browser to Airflow's own API, which triggers a DAG with the rights of
the viewer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag, requires_access_view
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

from airflow_provider_soperator.board.leftovers import OwnersNeed, left_overs
from airflow_provider_soperator.board.offers import Offer, fields_of, find_offers
from airflow_provider_soperator.board.picture import Picture
from airflow_provider_soperator.board.queue_rows import QueueRow, row_of
from airflow_provider_soperator.board.tasks import dags_at_work
from airflow_provider_soperator.board.wall import Tile, wall
from airflow_provider_soperator.page.viewer import Viewer
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.job_ids import JobIdSet, ids_in
from airflow_provider_soperator.slurm.node_conditions import DrainReason
from airflow_provider_soperator.slurm.node_orders import static_among
from airflow_provider_soperator.slurm.states import NodeFlag

Named = TypeVar("Named")
#: Nodes, jobs and files that a form tells of one by one.
_TOLD = 20
_MAY_TRIGGER = requires_access_dag("POST", DagAccessEntity.RUN)
router = APIRouter()


@dataclass(frozen=True)
class Offers:
    """The actions on one cluster, as one viewer has them."""

    all: Sequence[Offer]

    def of(self, *kinds: str) -> list[Offer]:
        """Those of these kinds, in their order."""
        return [offer for kind in kinds for offer in self.all if offer.kind == kind]

    def label(self, offer: Offer, does: str = "") -> str:
        """What its button says; where several DAGs do the same, also which of them this is."""
        does = does or offer.title
        return f"{does} by {offer.dag_id}" if len(self.of(offer.kind)) > 1 else does

    def usable(self, kind: str) -> Offer | None:
        """One that the viewer can trigger now."""
        return next((offer for offer in self.of(kind) if offer.is_allowed and not offer.is_paused), None)


def offers_to(viewer: Viewer, connection: str) -> Offers:
    """The actions on the cluster behind a connection, and which of them a user may carry out."""
    # A DAG that one may not read is not named.
    readable = [one for one in find_offers(connection) if viewer.may_see(one.dag_id)]
    approvals = {one for one in readable if one.kind == "approve"}
    may_approve = viewer.may("PUT", DagAccessEntity.HITL_DETAIL, {one.dag_id for one in approvals})
    may_trigger = viewer.may("POST", DagAccessEntity.RUN, {one.dag_id for one in readable if one not in approvals})
    return Offers(
        [replace(one, is_allowed=one.dag_id in (may_approve if one in approvals else may_trigger)) for one in readable]
    )


def node_actions(tile: Tile, picture: Picture) -> list[tuple[str, dict[str, str]]]:
    """The kinds of actions that make sense for a node, with what is known of their forms."""
    node, nodes = tile.node, {"nodes": tile.node.name}
    ours = DrainReason.parse(node.reason)
    drains = ("undrain", {**nodes, "drain_owner": ours.owner if ours else ""})
    is_drained = node.state.has(NodeFlag.DRAIN)
    found: list[tuple[str, dict[str, str]]] = [drains if is_drained else ("drain", nodes)]
    is_static = picture.config is not None and bool(static_among([node.name], picture.config))
    if not is_static:
        found.append(("power_up" if node.is_off or node.is_going_off else "power_down", nodes))
    return found if node.is_off else [*found, ("replace", nodes | ({"any_owner": "true"} if is_drained else {}))]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What an action is about, as the picture has it."""

    tiles: Sequence[Tile] = ()
    jobs: Sequence[QueueRow] = ()
    #: How many are not told one by one.
    more: int = 0
    #: What the cluster has not.
    unknown: Sequence[str] = ()
    reservation: Reservation | None = None
    files: Sequence[str] = ()
    #: Who may still need what is to be released.
    needs: Sequence[OwnersNeed] = ()


def _read(reader: Callable[[str], list[Named]], text: str) -> tuple[list[Named], list[str]]:
    """What a text names; and the text, if it cannot be read."""
    try:
        return reader(text), []
    except ValueError:
        return [], [text]


def subject_of(picture: Picture | None, given: Mapping[str, str], owner: str) -> Subject:
    """The nodes with their jobs, the jobs, the reservation or the files that an action of an owner is about.

    Of mistakes the form tells, and of those who may need what is released.
    """
    if picture is None:
        return Subject()
    names, no_names = _read(hostlist.expand, given.get("nodes", ""))
    meant, no_ids = _read(ids_in, given.get("job_ids", ""))
    known = {tile.node.name: tile for group in wall(picture.nodes, picture.jobs) for tile in group.tiles}
    tiles = [known[name] for name in names if name in known]
    on_nodes = {job for tile in tiles for job in tile.jobs}
    wanted = JobIdSet(meant)
    jobs = [job for job in picture.jobs if not job.state.is_finished and (job.id in on_nodes or wanted.touches(job.id))]
    there = JobIdSet(job.id for job in jobs)
    missing = no_names + [name for name in names if name not in known]
    missing += no_ids + [str(job) for job in meant if not there.touches(job)]
    # What was drained from the page has no run that needs it.
    held = [one for one in left_overs(picture) if one.dag_id != owner and one.is_meant(given)]
    files = [file for one in held for file in one.of(given.values()).files]
    at_work = dags_at_work({one.dag_id for one in held}) if held else {}
    return Subject(
        tiles=tiles[:_TOLD],
        jobs=[row_of(picture, job.id) for job in jobs[:_TOLD]],
        files=files[:_TOLD],
        more=sum(max(0, len(found) - _TOLD) for found in (tiles, jobs, files)),
        unknown=missing[:_TOLD] + [f"{len(missing) - _TOLD} more"] * (len(missing) > _TOLD),
        reservation=next((one.reservation for one in held if one.reservation), None),
        needs=list(dict.fromkeys(one.need(at_work) for one in held)),
    )


@router.get("/action", dependencies=[Depends(requires_access_view(AccessView.JOBS)), Depends(_MAY_TRIGGER)])
async def action(request: Request, viewer: Annotated[Viewer, Depends()], dag_id: str, connection: str) -> Response:
    offers = await run_in_threadpool(offers_to, viewer, connection)
    offer = next((one for one in offers.all if one.dag_id == dag_id), None)
    if offer is None or not offer.is_allowed:
        raise HTTPException(404, "There is no such action on this cluster")
    given = {name: value for name, value in request.query_params.items() if name not in ("dag_id", "connection")}
    picture = await viewer.seen(connection)

    def draw() -> Response:
        about = subject_of(picture, given, dag_id.removesuffix(f"_{offer.kind}"))
        values = {"offer": offer, "fields": fields_of(dag_id, given), "given": given, "connection": connection}
        return viewer.page("action.html", picture=picture, about=about, **values)

    return await run_in_threadpool(draw)
