"""Pods of Slurm nodes, their Kubernetes Nodes and the Events about both, as lines for people.

Each Slurm node is a Pod of the same name. Objects are those of either Kubernetes client; neither is imported here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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


@dataclass
class PodHistory:
    """Pod of a Slurm node, its present and former Nodes, and the Events about them."""

    name: str
    #: None if it does not exist.
    pod: Any = None
    #: Nodes by name; None for one that is gone. Several if the Pod has moved.
    nodes: dict[str, Any] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    #: Errors of reads that failed.
    troubles: list[str] = field(default_factory=list)


async def read_history(core: Any, namespace: str, name: str) -> PodHistory:
    """Read everything. Only the Pod is required: the account may lack the right to read the rest."""
    history = PodHistory(name)
    history.pod = await _read(
        core.read_namespaced_pod(name, namespace, _request_timeout=API_TIMEOUT), f"read pod {name}"
    )
    await _try(history, _add_events(history, core, namespace, "Pod", name))
    # A Pod that was lost with its Node comes back on another one. Events of kubelets name their Node.
    newest = sorted(history.events, key=_time_of, reverse=True)
    hosts = [event.source.host for event in newest if event.source and event.source.host]
    if history.pod and history.pod.spec.node_name:
        hosts.insert(0, history.pod.spec.node_name)
    history.nodes = dict.fromkeys([*dict.fromkeys(hosts)][:_MOST_NODES])
    await asyncio.gather(*(_try(history, _add_node(history, core, node)) for node in list(history.nodes)))
    return history


def _time_of(event: Any) -> datetime:
    """Time of the last occurrence; the field depends on the writer of the Event."""
    series = event.series.last_observed_time if event.series else None
    found: datetime = series or event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return found


async def _add_node(history: PodHistory, core: Any, name: str) -> None:
    history.nodes[name] = await _read(core.read_node(name, _request_timeout=API_TIMEOUT), f"read node {name}")
    await _add_events(history, core, _NODE_EVENTS, "Node", name)


async def _add_events(history: PodHistory, core: Any, namespace: str, kind: str, name: str) -> None:
    with kubernetes_errors(f"list events of namespace {namespace}", _RIGHTS):
        found = await core.list_namespaced_event(
            namespace,
            field_selector=f"involvedObject.kind={kind},involvedObject.name={name}",
            limit=_MOST_EVENTS,
            _request_timeout=API_TIMEOUT,
        )
    history.events += found.items


async def _read(call: Awaitable[Any], what: str) -> Any:
    """An object; None if it does not exist."""
    with kubernetes_errors(what, _RIGHTS):
        try:
            return await call
        except Exception as error:
            if is_missing(error):
                return None
            raise


async def _try(history: PodHistory, work: Awaitable[None]) -> None:
    try:
        await work
    except TransportError as error:
        history.troubles.append(str(error))


def describe(history: PodHistory, now: datetime) -> list[str]:
    """Lines about the Pod, its containers, its Nodes, and the Events about them, newest first."""
    lines = [f"Pod {history.name}: {_pod(history.pod)}", *_indented(_containers(history.pod))]
    for name, node in history.nodes.items():
        lines += [f"Node {name}: {_node(node)}", *_indented(_conditions(node))]
    lines += [_event(event) for event in _newest(history.events, now)]
    return lines + [f"(Incomplete: {trouble})" for trouble in history.troubles]


def _pod(pod: Any) -> str:
    if pod is None:
        return "does not exist"
    said = str(pod.status.phase)
    if pod.status.reason:
        said += f" ({pod.status.reason})"
    if pod.metadata.deletion_timestamp:
        said += ", is being deleted"
    said += "".join(f", not {one.type}{_why(one)}" for one in pod.status.conditions or () if _is_news(one))
    return f"{said}, on Node {pod.spec.node_name}" if pod.spec.node_name else f"{said}, on no Node yet"


def _is_news(condition: Any) -> bool:
    return condition.type in ("PodScheduled", "Ready") and condition.status != "True"


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
            yield f"container {one.name}: {', '.join(said)}"


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
            yield f"{one.type}{since}{_why(one)}"


def _newest(events: Iterable[Any], now: datetime) -> list[Any]:
    recent = [event for event in events if now - _time_of(event) <= _RECENT]
    return sorted(recent, key=_time_of, reverse=True)[:_MOST_TOLD]


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


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
