"""Nodes and partitions over slurmrestd."""

from __future__ import annotations

from typing import Any

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Machine, Node, Partition
from airflow_provider_soperator.slurm.errors import UnknownNode
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.requests.commands import clean
from airflow_provider_soperator.slurm.requests.nodes import (
    CommentNodes,
    Drain,
    ListMachines,
    ListNodes,
    ListPartitions,
    NodeDetail,
    PowerDown,
    PowerDownMode,
    PowerUp,
    ResumeNodes,
    Undrain,
)
from airflow_provider_soperator.slurm.rest.calls import (
    NAME,
    Json,
    RestCall,
    Site,
    Steps,
    as_lines,
    asked,
    handles,
    minutes,
    moment,
    number,
    segment,
)
from airflow_provider_soperator.slurm.states import NodeState

#: ``scontrol`` sends the same flags.
_POWER_DOWN = {
    PowerDownMode.IDLE: ["POWER_DOWN"],
    PowerDownMode.ASAP: ["POWER_DOWN", "POWER_DRAIN"],
    PowerDownMode.FORCE: ["POWER_DOWN", "POWERED_DOWN"],
}


@handles
def list_nodes(request: ListNodes, site: Site) -> Steps[tuple[Node, ...]]:
    """List nodes. All are requested, as a call cannot have a list of names."""
    request.command()  # rejects an invalid list of nodes
    wanted = None if request.names is None else hostlist.expand(hostlist.fold(request.names))
    data = yield from asked(RestCall("GET", "slurm/nodes/"))
    nodes = {one["name"]: one for one in data["nodes"]}
    missing = [name for name in wanted or () if name not in nodes]
    if missing:
        raise _unknown(hostlist.fold(missing))
    return tuple(_node(one) for name, one in nodes.items() if wanted is None or name in set(wanted))


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
        cpus_used=said.get("alloc_cpus") or 0,
        memory=said.get("real_memory") or 0,
        memory_used=said.get("alloc_memory") or 0,
        address=said.get("address") or "",
        version=said.get("version") or "",
    )


def _unknown(names: str) -> UnknownNode:
    return UnknownNode(f"there is no node {names}", NAME)


@handles
def list_machines(request: ListMachines, site: Site) -> Steps[tuple[Machine, ...]]:
    request.command()
    data = yield from asked(RestCall("GET", "slurm/nodes/"))
    nodes = {one["name"]: one for one in data["nodes"]}
    names = hostlist.expand(hostlist.fold(request.names))
    if missing := [name for name in names if name not in nodes]:
        raise _unknown(hostlist.fold(missing))
    return tuple(_machine(nodes[name]) for name in names)


def _machine(said: Json) -> Machine:
    return Machine(
        node=said["name"], instance=clean(said.get("instance_id") or ""), since=moment(said.get("boot_time"))
    )


@handles
def node_detail(request: NodeDetail, site: Site) -> Steps[str]:
    request.command()
    answer = yield RestCall("GET", f"slurm/node/{segment(request.name)}")
    # For a missing node the answer is an error with the text "No error".
    if not answer.data.get("nodes"):
        raise _unknown(request.name)
    return as_lines(answer.data["nodes"][0])


@handles
def power_up(request: PowerUp, site: Site) -> Steps[None]:
    return _order(request, {"state": ["POWER_UP"]})


@handles
def power_down(request: PowerDown, site: Site) -> Steps[None]:
    reason = {"reason": request.reason} if request.reason else {}
    return _order(request, {"state": _POWER_DOWN[request.mode], **reason})


@handles
def drain(request: Drain, site: Site) -> Steps[None]:
    return _order(request, {"state": ["DRAIN"], "reason": request.reason})


@handles
def undrain(request: Undrain, site: Site) -> Steps[None]:
    return _order(request, {"state": ["UNDRAIN"]})


@handles
def resume(request: ResumeNodes, site: Site) -> Steps[None]:
    return _order(request, {"state": ["RESUME"]})


@handles
def comment(request: CommentNodes, site: Site) -> Steps[None]:
    return _order(request, {"comment": request.comment})


def _order(
    request: PowerUp | PowerDown | Drain | Undrain | ResumeNodes | CommentNodes, change: dict[str, Any]
) -> Steps[None]:
    request.command()
    # All in one call, as scontrol does it.
    yield from asked(RestCall("POST", "slurm/nodes/", body={"name": [hostlist.fold(request.names)], **change}))


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
        total_nodes=said["nodes"]["total"],
        max_time=minutes(said["maximums"]["time"], unset=NoDuration.UNLIMITED),
        default_time=minutes(said["defaults"]["time"]),
        priority_tier=number(said["priority"]["tier"]) or 0,
    )
