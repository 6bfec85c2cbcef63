"""Nodes and partitions over slurmrestd."""

from __future__ import annotations

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node, Partition
from airflow_provider_soperator.slurm.errors import UnknownNode
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.requests.commands import clean
from airflow_provider_soperator.slurm.requests.nodes import (
    ListNodes,
    ListPartitions,
    NodeOrder,
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
    minutes,
    moment,
    number,
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
        cpus_used=said.get("alloc_cpus") or 0,
        memory=said.get("real_memory") or 0,
        memory_used=said.get("alloc_memory") or 0,
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
        total_nodes=said["nodes"]["total"],
        max_time=minutes(said["maximums"]["time"], unset=NoDuration.UNLIMITED),
        default_time=minutes(said["defaults"]["time"]),
        priority_tier=number(said["priority"]["tier"]) or 0,
    )
