"""Pods of Slurm nodes and their Kubernetes Nodes, as far as the health of nodes needs them.

They are read from objects of kubernetes_asyncio, which is not imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_provider_soperator.soperator.conditions import Condition

#: Reasons to wait that are not a fault.
_USUAL = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(frozen=True)
class Host:
    """The machine of a Pod."""

    name: str
    created: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    is_leaving: bool = False
    #: The Pod names it, but the API has no such Node any more.
    is_gone: bool = False


@dataclass(frozen=True)
class Pod:
    """The Pod of a Slurm node."""

    phase: str
    is_ready: bool
    #: None while the Pod has none.
    host: Host | None = None
    #: Why a container does not run, such as ``CrashLoopBackOff``, or why the Pod is not scheduled.
    trouble: str = ""
    is_leaving: bool = False
    since: datetime | None = None


@dataclass(frozen=True)
class KubernetesView:
    """All Pods of a namespace by name; the Pod of a Slurm node has the node's name."""

    pods: Mapping[str, Pod] = field(default_factory=dict)

    @classmethod
    def read(cls, pods: Iterable[Any], nodes: Iterable[Any]) -> KubernetesView:
        hosts = {node.metadata.name: _host(node) for node in nodes}
        return cls({pod.metadata.name: _pod(pod, hosts) for pod in pods})


def _host(node: Any) -> Host:
    return Host(
        name=node.metadata.name,
        created=node.metadata.creation_timestamp,
        conditions=tuple(
            Condition(one.type, one.status, one.reason or "", one.message or "", one.last_transition_time)
            for one in node.status.conditions or ()
        ),
        is_leaving=node.metadata.deletion_timestamp is not None,
    )


def _pod(pod: Any, hosts: dict[str, Host]) -> Pod:
    name = pod.spec.node_name
    conditions = pod.status.conditions or ()
    return Pod(
        phase=str(pod.status.phase),
        is_ready=any(one.type == "Ready" and one.status == "True" for one in conditions),
        host=(hosts.get(name) or Host(name, is_gone=True)) if name else None,
        trouble=_trouble(pod),
        is_leaving=pod.metadata.deletion_timestamp is not None,
        since=max((one.last_transition_time for one in conditions if one.last_transition_time), default=None),
    )


def _trouble(pod: Any) -> str:
    for one in pod.status.conditions or ():
        if one.type == "PodScheduled" and one.status != "True":
            return ": ".join(filter(None, (one.reason, one.message)))
    for one in [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]:
        waiting = one.state.waiting if one.state else None
        if waiting and waiting.reason and waiting.reason not in _USUAL:
            return f"container {one.name} waits: {': '.join(filter(None, (waiting.reason, waiting.message)))}"
    return ""
