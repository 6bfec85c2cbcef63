"""Nodes, partitions and reservations over slurmrestd; reservations are made and changed since v0.0.43."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node, Partition, Reservation
from airflow_provider_soperator.slurm.errors import NotPermitted, ReservationConflict, UnknownNode, UnknownReservation
from airflow_provider_soperator.slurm.requests.commands import clean, listed
from airflow_provider_soperator.slurm.requests.nodes import (
    CreateReservation,
    DeleteReservation,
    ListNodes,
    ListPartitions,
    ListReservations,
    NodeOrder,
    UpdateReservation,
    fold_names,
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
from airflow_provider_soperator.slurm.states import NodeState

#: States that are several flags, as ``scontrol`` sends them.
_FLAGS = {"power_down_asap": ["POWER_DOWN", "POWER_DRAIN"], "power_down_force": ["POWER_DOWN", "POWERED_DOWN"]}


@handles
def list_nodes(request: ListNodes, site: Site) -> Steps[tuple[Node, ...]]:
    """List nodes. All are requested, as a call cannot have a list of names."""
    wanted = None if request.names is None else set(hostlist.expand(fold_names(request.names)))
    data = yield from asked(RestCall("GET", "slurm/nodes/"))
    nodes: dict[str, Json] = {one["name"]: one for one in data["nodes"]}
    if missing := (wanted or set()) - nodes.keys():
        raise UnknownNode(f"there is no node {hostlist.fold(missing)}", NAME)
    return tuple(_node(one) for name, one in nodes.items() if wanted is None or name in wanted)


def _node(said: Json) -> Node:
    reason = clean(said.get("reason") or "")
    return Node(
        name=said["name"],
        state=NodeState.parse(said["state"]),
        partitions=tuple(sorted(said.get("partitions") or ())),
        reason=reason,
        # The user stays after the reason has been removed.
        reason_user=said.get("reason_set_by_user") or "" if reason else "",
        reason_since=moment(said.get("reason_changed_at")),
        comment=clean(said.get("comment") or ""),
        extra=clean(said.get("extra") or ""),
        features=tuple(said.get("features") or ()),
        gres=clean(said.get("gres") or ""),
        gres_used=clean(said.get("gres_used") or ""),
        cpus=said.get("cpus") or 0,
        memory=said.get("real_memory") or 0,
        address=said.get("address") or "",
        version=said.get("version") or "",
        instance=clean(said.get("instance_id") or ""),
        booted_at=moment(said.get("boot_time")),
    )


@handles
def order(request: NodeOrder, site: Site) -> Steps[None]:
    """Update nodes in one call, as ``scontrol`` does it."""
    request.command()
    state, reason = request.change()
    body = {"name": [hostlist.fold(request.names)], "state": _FLAGS.get(state, [state.upper()])}
    yield from asked(RestCall("POST", "slurm/nodes/", body=body | ({"reason": reason} if reason else {})))


@handles
def list_partitions(request: ListPartitions, site: Site) -> Steps[tuple[Partition, ...]]:
    """List partitions; the flags for default and hidden ones are known from v0.0.45 on."""
    data = yield from asked(RestCall("GET", "slurm/partitions/"))
    return tuple(map(_partition, data["partitions"]))


def _partition(said: Json) -> Partition:
    flags = said.get("flags") or ()
    return Partition(
        name=said["name"],
        state=said["partition"]["state"][0],
        is_default="DEFAULT" in flags,
        is_hidden="HIDDEN" in flags,
        nodelist=said["nodes"]["configured"],
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
