"""The cluster over slurmrestd: Slurm itself, its nodes, partitions and reservations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Any

from airflow_provider_soperator.slurm import errors, hostlist, notations, requests
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Controller, Node, Partition, Reservation
from airflow_provider_soperator.slurm.files import FileRequest, JobFolder
from airflow_provider_soperator.slurm.requests.cluster import read_config
from airflow_provider_soperator.slurm.requests.nodes import fold_names
from airflow_provider_soperator.slurm.rest import calls
from airflow_provider_soperator.slurm.rest.calls import NAME, Json, RestCall, RestSteps, Site, asked, handles
from airflow_provider_soperator.slurm.states import NodeState


@handles
def show_config(request: requests.ShowConfig, site: Site) -> RestSteps[ClusterConfig]:
    """Get the settings; ``settings`` has slurmrestd's names and notation, which differ a little from ``scontrol``'s."""
    site.require(45, "show the cluster's settings")
    data = yield from asked(RestCall("GET", "slurm/conf"))
    return read_config(
        data["meta"]["slurm"]["release"], {name: _setting(value) for name, value in data["slurm_conf"].items()}
    )


def _setting(value: Any) -> str:
    if isinstance(value, Mapping) and "infinite" in value:
        value = "INFINITE" if value["infinite"] else calls.number(value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_setting(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ",".join(map(_setting, value))
    return "" if value is None else str(value)


@handles
def ping(request: requests.Ping, site: Site) -> RestSteps[tuple[Controller, ...]]:
    data = yield from asked(RestCall("GET", "slurm/ping/"))
    found = tuple(map(_controller, data["pings"]))
    if not any(controller.is_up for controller in found):
        # Other calls also return the reason.
        yield from asked(RestCall("GET", "slurm/diag/"))
        said = ", ".join(f"slurmctld at {controller.host} is down" for controller in found)
        raise errors.ControllerUnreachable(said, NAME)
    return found


def _controller(said: Json) -> Controller:
    is_up = said["responding"] if "responding" in said else said["pinged"] == "UP"
    role = said.get("mode") or ("primary" if said.get("primary") else "backup")
    return Controller(host=said["hostname"], role=role, is_up=is_up)


@handles
def who_am_i(request: requests.WhoAmI, site: Site) -> RestSteps[str]:
    """Return the user in the token: slurmrestd has no call for it."""
    if not site.user:
        calls.unsupported("tell whose token this is, and the token names no user", "set the user of the connection")
    yield from ()  # no call at all
    return site.user


@handles
def clock(request: requests.ReadClock, site: Site) -> RestSteps[datetime | None]:
    data = yield from asked(RestCall("GET", "slurm/diag/"))
    return calls.moment(data["statistics"]["req_time"])


@handles
def job_folder(request: JobFolder, site: Site) -> RestSteps[PurePosixPath]:
    yield from ()
    return PurePosixPath(site.home)


@handles
def file_request(request: FileRequest, site: Site) -> RestSteps[None]:  # type: ignore[type-arg]
    calls.unsupported("reach the cluster's files", "name an SSH or Kubernetes connection beside it for files")


#: States that are several flags, as ``scontrol`` sends them.
_FLAGS = {"power_down_asap": ["POWER_DOWN", "POWER_DRAIN"], "power_down_force": ["POWER_DOWN", "POWERED_DOWN"]}


@handles
def list_nodes(request: requests.ListNodes, site: Site) -> RestSteps[tuple[Node, ...]]:
    """List nodes. All are requested, as a call cannot have a list of names."""
    wanted = None if request.names is None else set(hostlist.expand(fold_names(request.names)))
    data = yield from asked(RestCall("GET", "slurm/nodes/"))
    nodes: dict[str, Json] = {one["name"]: one for one in data["nodes"]}
    if missing := (wanted or set()) - nodes.keys():
        raise errors.UnknownNode(f"there is no node {hostlist.fold(missing)}", NAME)
    return tuple(_node(one) for name, one in nodes.items() if wanted is None or name in wanted)


def _node(said: Json) -> Node:
    reason = notations.clean(said.get("reason") or "")
    return Node(
        name=said["name"],
        state=NodeState.parse(said["state"]),
        partitions=tuple(sorted(said.get("partitions") or ())),
        reason=reason,
        # The user stays after the reason has been removed.
        reason_user=said.get("reason_set_by_user") or "" if reason else "",
        reason_since=calls.moment(said.get("reason_changed_at")),
        comment=notations.clean(said.get("comment") or ""),
        features=tuple(said.get("features") or ()),
        gres=notations.clean(said.get("gres") or ""),
        gres_used=notations.clean(said.get("gres_used") or ""),
        cpus=said.get("cpus") or 0,
        memory=said.get("real_memory") or 0,
        instance=notations.clean(said.get("instance_id") or ""),
        booted_at=calls.moment(said.get("boot_time")),
    )


@handles
def order(request: requests.NodeOrder, site: Site) -> RestSteps[None]:
    """Update nodes in one call, as ``scontrol`` does it."""
    request.command()
    state, reason = request.change()
    body = {"name": [hostlist.fold(request.names)], "state": _FLAGS.get(state, [state.upper()])}
    yield from asked(RestCall("POST", "slurm/nodes/", body=body | ({"reason": reason} if reason else {})))


@handles
def list_partitions(request: requests.ListPartitions, site: Site) -> RestSteps[tuple[Partition, ...]]:
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
        has_suspend_time=calls.number(said.get("suspend_time")) is not None,
    )


_RESERVATIONS_SINCE = 43


@handles
def list_reservations(request: requests.ListReservations, site: Site) -> RestSteps[tuple[Reservation, ...]]:
    """List reservations, without comments, which slurmrestd does not return."""
    data = yield from asked(RestCall("GET", "slurm/reservations/"))
    now = datetime.now(timezone.utc)
    return tuple(_reservation(one, now) for one in data["reservations"])


def _reservation(said: Json, now: datetime) -> Reservation:
    start, end = calls.moment(said["start_time"]), calls.moment(said["end_time"])
    return Reservation(
        name=said["name"],
        start=start,
        end=end,
        nodelist=notations.clean(said["node_list"]),
        flags=frozenset(said["flags"]),
        users=notations.listed(said["users"]),
        accounts=notations.listed(said["accounts"]),
        is_active=start is not None and end is not None and start <= now <= end,
    )


@handles
def create(request: requests.CreateReservation, site: Site) -> RestSteps[str]:
    """Create a reservation. slurmrestd would change one that has its name, so it is looked up before."""
    request.command()
    site.require(_RESERVATIONS_SINCE, "make reservations")
    if (yield from _exists(request.name)):
        raise errors.ReservationConflict(f"reservation {request.name} already exists", NAME)
    said = _changes(request)
    if request.end is None:
        said["duration"] = {"set": True, "infinite": True, "number": 0}
    said |= {"partition": request.partition} if request.partition else {}
    try:
        yield from asked(RestCall("POST", "slurm/reservation", body=said))
    except errors.NotPermitted as error:
        # slurmctld has the same message for both.
        remedy = f"{error.remedy}; or there is no user {request.users}"
        raise errors.NotPermitted(error.said, error.command, remedy) from None
    return request.name


@handles
def update(request: requests.UpdateReservation, site: Site) -> RestSteps[None]:
    """Change a reservation. slurmrestd would create a missing one, so it is looked up before."""
    request.command()
    site.require(_RESERVATIONS_SINCE, "change reservations")
    if not (yield from _exists(request.name)):
        raise errors.UnknownReservation("Requested reservation is invalid", NAME)
    yield from asked(RestCall("POST", "slurm/reservation", body=_changes(request)))


@handles
def delete(request: requests.DeleteReservation, site: Site) -> RestSteps[bool]:
    request.command()
    site.require(_RESERVATIONS_SINCE, "delete reservations")
    try:
        yield from asked(RestCall("DELETE", f"slurm/reservation/{calls.segment(request.name)}"))
    except errors.UnknownReservation:
        return False
    return True


def _exists(name: str) -> RestSteps[bool]:
    data = yield from asked(RestCall("GET", "slurm/reservations/"))
    return any(one["name"] == name for one in data["reservations"])


def _changes(request: requests.CreateReservation | requests.UpdateReservation) -> dict[str, Any]:
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
