"""Pods of Slurm nodes, their Kubernetes Nodes and the Events about both, as lines for people.

Each Slurm node is a Pod of the same name. Objects are those of either Kubernetes client; neither is imported here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from airflow_provider_soperator.transports.transport_errors import (
    API_TIMEOUT,
    TransportError,
    is_missing,
    kubernetes_errors,
)

#: The namespace of Events about Nodes, which are in no namespace themselves.
_NODE_EVENTS = "default"
#: Events to read for one object; they come unordered.
_MOST_EVENTS = 500
#: Last Nodes of a Pod to read.
_MOST_NODES = 3
_RIGHTS = "get on pods and nodes, and list on events, also in the namespace default,"
#: Maximum age of Events to show; of these, the newest.
_RECENT = timedelta(hours=6)
_MOST_TOLD = 8
#: Characters of a message; some quote whole stack traces.
_LONGEST = 240


async def lines_about(core: Any, namespace: str, name: str, now: datetime) -> list[str]:
    """Lines about a node's Pod, its containers, its Nodes, and the Events about them, newest first.

    Only the Pod is required: the account may lack the right to read the rest.
    """
    troubles: list[str] = []

    async def tried(reading: Awaitable[list[Any]]) -> list[Any]:
        try:
            return await reading
        except TransportError as error:
            troubles.append(f"(Incomplete: {error})")
            return []

    pod = await _read(core.read_namespaced_pod(name, namespace, _request_timeout=API_TIMEOUT), f"read pod {name}")
    events = await tried(_events(core, namespace, "Pod", name))
    # A Pod that was lost with its Node comes back on another one. Events of kubelets name their Node.
    hosts = [pod.spec.node_name if pod else None, *(event.source.host for event in _newest(events) if event.source)]
    nodes = list(dict.fromkeys(filter(None, hosts)))[:_MOST_NODES]
    lines = await asyncio.gather(*(tried(_about_node(core, node)) for node in nodes))
    for found in await asyncio.gather(*(tried(_events(core, _NODE_EVENTS, "Node", node)) for node in nodes)):
        events += found
    recent = [_event(event) for event in _newest(events) if now - _time_of(event) <= _RECENT]
    return [f"Pod {name}: {_pod(pod)}", *_containers(pod), *chain(*lines), *recent[:_MOST_TOLD], *troubles]


async def _about_node(core: Any, name: str) -> list[str]:
    node = await _read(core.read_node(name, _request_timeout=API_TIMEOUT), f"read node {name}")
    return [f"Node {name}: {_node(node)}", *_conditions(node)]


async def _events(core: Any, namespace: str, kind: str, name: str) -> list[Any]:
    with kubernetes_errors(f"list events of namespace {namespace}", _RIGHTS):
        found = await core.list_namespaced_event(
            namespace,
            field_selector=f"involvedObject.kind={kind},involvedObject.name={name}",
            limit=_MOST_EVENTS,
            _request_timeout=API_TIMEOUT,
        )
    return list(found.items)


async def _read(call: Awaitable[Any], what: str) -> Any:
    """An object; None if it does not exist."""
    with kubernetes_errors(what, _RIGHTS):
        try:
            return await call
        except Exception as error:
            if is_missing(error):
                return None
            raise


def _newest(events: Iterable[Any]) -> list[Any]:
    return sorted(events, key=_time_of, reverse=True)


def _time_of(event: Any) -> datetime:
    """Time of the last occurrence; the field depends on the writer of the Event."""
    series = event.series.last_observed_time if event.series else None
    found: datetime = series or event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return found


def _pod(pod: Any) -> str:
    if pod is None:
        return "does not exist"
    said = str(pod.status.phase)
    if pod.status.reason:
        said += f" ({pod.status.reason})"
    if pod.metadata.deletion_timestamp:
        said += ", is being deleted"
    for one in pod.status.conditions or ():
        if one.type in ("PodScheduled", "Ready") and one.status != "True":
            said += f", not {one.type}{_why(one)}"
    return f"{said}, on Node {pod.spec.node_name}" if pod.spec.node_name else f"{said}, on no Node yet"


def _containers(pod: Any) -> Iterator[str]:
    """Lines about containers that wait, were restarted or have failed."""
    if pod is None:
        return
    for one in [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]:
        said = []
        if one.state and one.state.waiting and one.state.waiting.reason:
            said.append(f"waits{_why(one.state.waiting)}")
        if one.restart_count:
            said.append(f"restarted {one.restart_count} times" if one.restart_count > 1 else "restarted once")
        for what, state in (("ended", one.state), ("previously ended", one.last_state)):
            # An init container ends normally.
            if state and state.terminated and (state.terminated.exit_code or state.terminated.reason != "Completed"):
                said.append(f"{what} {_end(state.terminated)}")
        if said:
            yield f"  container {one.name}: {', '.join(said)}"


def _end(terminated: Any) -> str:
    at = f" at {terminated.finished_at:%Y-%m-%d %H:%M:%S}" if terminated.finished_at else ""
    return f"with exit code {terminated.exit_code}{_why(terminated)}{at}"


def _node(node: Any) -> str:
    if node is None:
        return "is gone"
    ready = next((one for one in node.status.conditions or () if one.type == "Ready"), None)
    said = "Ready" if ready and ready.status == "True" else f"not Ready{_why(ready)}"
    if node.metadata.deletion_timestamp:
        said += ", is being deleted"
    return f"{said}, takes no new Pods" if node.spec.unschedulable else said


def _conditions(node: Any) -> Iterator[str]:
    """Lines about true conditions other than Ready, such as NebiusMaintenanceScheduled."""
    for one in (node.status.conditions or ()) if node else ():
        if one.type != "Ready" and one.status == "True":
            since = f" since {one.last_transition_time:%Y-%m-%d %H:%M:%S}" if one.last_transition_time else ""
            yield f"  {one.type}{since}{_why(one)}"


def _event(event: Any) -> str:
    times = f" ({event.count} times)" if event.count and event.count > 1 else ""
    about = f"{event.involved_object.kind} {event.involved_object.name}"
    level = "" if event.type == "Normal" else f"{event.type} "
    return f"{_time_of(event):%Y-%m-%d %H:%M:%S} {about}: {level}{event.reason}{times}: {_short(event.message or '')}"


def _why(said: Any) -> str:
    words = ": ".join(filter(None, (said.reason, _short(said.message or "")))) if said else ""
    return f" ({words})" if words else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
