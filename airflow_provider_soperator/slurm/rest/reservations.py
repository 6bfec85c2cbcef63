"""Reservations over slurmrestd: listed by any version, made and changed since v0.0.43."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.errors import NotPermitted, ReservationConflict, UnknownReservation
from airflow_provider_soperator.slurm.requests.commands import clean, listed
from airflow_provider_soperator.slurm.requests.reservations import (
    CreateReservation,
    DeleteReservation,
    ListReservations,
    UpdateReservation,
)
from airflow_provider_soperator.slurm.rest.calls import (
    NAME,
    Json,
    RestCall,
    Site,
    Steps,
    asked,
    handles,
    moment,
    segment,
)

_CHANGES_SINCE = 43


@handles
def list_reservations(request: ListReservations, site: Site) -> Steps[tuple[Reservation, ...]]:
    """List reservations, without comments, which slurmrestd does not return."""
    data = yield from asked(RestCall("GET", "slurm/reservations/"))
    now = datetime.now(timezone.utc)
    return tuple(_reservation(one, now) for one in data["reservations"])


def _reservation(said: Json, now: datetime) -> Reservation:
    start, end = moment(said["start_time"]), moment(said["end_time"])
    return Reservation(
        name=said["name"],
        start=start,
        end=end,
        nodelist=clean(said["node_list"]),
        flags=frozenset(said["flags"]),
        users=listed(said["users"]),
        accounts=listed(said["accounts"]),
        partition=clean(said["partition"]),
        is_active=start is not None and end is not None and start <= now <= end,
    )


@handles
def create(request: CreateReservation, site: Site) -> Steps[str]:
    """Create a reservation. slurmrestd would change one that has its name, so it is looked up before."""
    request.command()
    site.require(_CHANGES_SINCE, "make reservations")
    if (yield from _exists(request.name)):
        raise ReservationConflict(f"reservation {request.name} already exists", NAME)
    said = _changes(request)
    if request.end is None:
        said["duration"] = {"set": True, "infinite": True, "number": 0}
    said |= {"partition": request.partition} if request.partition else {}
    try:
        yield from asked(RestCall("POST", "slurm/reservation", body=said))
    except NotPermitted as error:
        # slurmctld has the same message for both.
        raise NotPermitted(error.said, error.command, f"{error.remedy}; or there is no user {request.users}") from None
    return request.name


@handles
def update(request: UpdateReservation, site: Site) -> Steps[None]:
    """Change a reservation. slurmrestd would create a missing one, so it is looked up before."""
    request.command()
    site.require(_CHANGES_SINCE, "change reservations")
    if not (yield from _exists(request.name)):
        raise UnknownReservation("Requested reservation is invalid", NAME)
    yield from asked(RestCall("POST", "slurm/reservation", body=_changes(request)))


@handles
def delete(request: DeleteReservation, site: Site) -> Steps[bool]:
    request.command()
    site.require(_CHANGES_SINCE, "delete reservations")
    try:
        yield from asked(RestCall("DELETE", f"slurm/reservation/{segment(request.name)}"))
    except UnknownReservation:
        return False
    return True


def _exists(name: str) -> Steps[bool]:
    data = yield from asked(RestCall("GET", "slurm/reservations/"))
    return any(one["name"] == name for one in data["reservations"])


def _changes(request: CreateReservation | UpdateReservation) -> dict[str, Any]:
    said: dict[str, Any] = {"name": request.name}
    if request.nodes:
        said["node_list"] = [hostlist.fold(request.nodes)]
    for name, when in (("start_time", request.start), ("end_time", request.end)):
        if when:
            said[name] = {"set": True, "number": int(when.timestamp())}
    for name, names in (("users", request.users), ("accounts", request.accounts)):
        if names:
            said[name] = list(names)
    if request.flags:
        said["flags"] = [_flag(flag) for flag in request.flags]
    if request.comment:
        said["comment"] = request.comment
    return said


def _flag(flag: str) -> str:
    return f"NO_{flag[1:].upper()}" if flag.startswith("-") else flag.removeprefix("+").upper()
