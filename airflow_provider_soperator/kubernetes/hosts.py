"""All of a cluster's workers at once, as the health of nodes needs to know them: their Pods, and the Nodes below.

Objects are those of kubernetes_asyncio; of the client nothing is imported here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_soperator.kubernetes.view import Condition, Host, KubernetesView, Pod
from airflow_provider_soperator.transports.transport_errors import API_TIMEOUT, kubernetes_errors

_RIGHTS = "list on pods in it, and a ClusterRole with list on nodes,"
#: What containers wait for that is no fault.
_USUAL = frozenset({"ContainerCreating", "PodInitializing"})


async def view(core: Any, namespace: str) -> KubernetesView:
    """Two questions, whatever the number of workers."""
    with kubernetes_errors(f"list pods of namespace {namespace}, and nodes", _RIGHTS):
        pods, nodes = await asyncio.gather(
            core.list_namespaced_pod(namespace, _request_timeout=API_TIMEOUT),
            core.list_node(_request_timeout=API_TIMEOUT),
        )
    hosts = {node.metadata.name: _host(node) for node in nodes.items}
    return KubernetesView({pod.metadata.name: _pod(pod, hosts) for pod in pods.items})


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
