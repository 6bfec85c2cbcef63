"""Objects of a cluster as each version of Soperator writes them, for tests of what is read from them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.soperator.clusters import PARTS, ClusterSeen, NodeSetSeen
from airflow_provider_soperator.soperator.workloads import Pod

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
LONG_AGO = NOW - timedelta(days=30)


def said(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(type: str, status: str, reason: str, message: str = "", since: datetime = LONG_AGO) -> dict[str, str]:
    return {"type": type, "status": status, "reason": reason, "message": message, "lastTransitionTime": said(since)}


def parts(**changed: dict[str, str]) -> list[dict[str, str]]:
    """The conditions of a cluster all of whose parts are available, but for some."""
    return [changed.get(part) or condition(part, "True", "Available") for part in PARTS]


def cluster_object(
    phase: str | None = "Available",
    conditions: list[dict[str, str]] | None = None,
    *,
    accounting: bool = True,
    changed: datetime | None = None,
    **spec: Any,
) -> dict[str, Any]:
    fields = {"time": said(changed), "manager": "kubectl"} if changed else {}
    # Whoever writes the status only is no one who changes the cluster.
    status_fields = {"time": said(NOW), "manager": "manager", "subresource": "status"}
    return {
        "metadata": {
            "name": "soperator",
            "generation": 2 if changed else 1,
            "managedFields": [status_fields, *([fields] if fields else [])],
        },
        "spec": {"slurmNodes": {"accounting": {"enabled": accounting}}, **spec},
        "status": ({"phase": phase} if phase else {}) | {"conditions": parts() if conditions is None else conditions},
    }


def cluster(*args: Any, **fields: Any) -> ClusterSeen:
    return ClusterSeen.read(cluster_object(*args, **fields))


def nodeset(
    replicas: int = 2,
    *,
    active: list[int] | None = None,
    pods: Mapping[str, Pod] | None = None,
    phase: str = "Ready",
    conditions: list[dict[str, str]] | None = None,
    **metadata: Any,
) -> NodeSetSeen:
    """A static one; with ``active`` ordinals an ephemeral one. Its Pods are all ready, but for those given."""
    ordinals = range(replicas) if active is None else active
    ready = {f"worker-{one}": Pod(is_ready=True) for one in ordinals}
    return NodeSetSeen.read(
        {
            "metadata": {"name": "worker", **metadata},
            "spec": {"replicas": replicas, "ephemeralNodes": active is not None},
            "status": {"phase": phase, "conditions": conditions or []},
        },
        None if active is None else {"spec": {"activeNodes": active}},
        {**ready, **(pods or {})},
    )


def without(*names: str, **fields: Any) -> NodeSetSeen:
    """A static NodeSet some of whose Pods are not there."""
    whole = nodeset(**fields)
    return NodeSetSeen(
        name=whole.name,
        replicas=whole.replicas,
        phase=whole.phase,
        pods={name: pod for name, pod in whole.pods.items() if name not in names},
    )


def slurm(**states: str) -> dict[str, Node]:
    """Slurm's nodes, ``worker_0="IDLE+CLOUD"``; after a colon the reason."""
    found = {}
    for name, text in states.items():
        state, _, reason = text.partition(": ")
        node = name.replace("_", "-")
        found[node] = Node(name=node, state=NodeState.parse(state), reason=reason)
    return found
