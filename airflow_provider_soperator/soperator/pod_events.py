"""Pods of Slurm nodes, their Kubernetes Nodes and the Events about both, as lines for people.

Each Slurm node is a Pod of the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain
from typing import TypeVar

from airflow_provider_soperator.soperator.conditions import Condition, Object, conditions_of, parse_time
from airflow_provider_soperator.soperator.kinds import EVENT, NODE, POD, Resource
from airflow_provider_soperator.soperator.objects import Objects
from airflow_provider_soperator.soperator.workloads import containers_of, is_leaving, machine_of
from airflow_provider_soperator.transports.transport_errors import TransportError, is_missing

T = TypeVar("T")

#: The rights that it needs, for errors.
RIGHTS = "get on pods and nodes, and list on events, also in the namespace default,"
#: The namespace of Events about Nodes, which are in no namespace themselves.
_NODE_EVENTS = "default"
#: Events to read for one object; they come unordered.
_MOST_EVENTS = "500"
#: Last Nodes of a Pod to read.
_MOST_NODES = 3
#: Maximum age of Events to show; of these, the newest.
_RECENT = timedelta(hours=6)
_MOST_TOLD = 8
#: Characters of a message; some quote whole stack traces.
_LONGEST = 240


async def lines_about(objects: Objects, name: str, now: datetime) -> list[str]:
    """Lines about a node's Pod, its containers, its Nodes, and the Events about them, newest first.

    Only the Pod is required: the account may lack the right to read the rest.
    """
    troubles: list[str] = []

    async def tried(reading: Awaitable[list[T]]) -> list[T]:
        try:
            return await reading
        except TransportError as error:
            troubles.append(f"(Incomplete: {error})")
            return []

    pod = await _read(objects, POD, objects.namespace, name)
    events = await tried(_events(objects, objects.namespace, "Pod", name))
    # A Pod that was lost with its Node comes back on another one. Events of kubelets name their Node.
    hosts = [machine_of(pod) if pod else "", *((event.get("source") or {}).get("host") for event in _newest(events))]
    nodes = list(dict.fromkeys(filter(None, hosts)))[:_MOST_NODES]
    lines = await asyncio.gather(*(tried(_about_node(objects, node)) for node in nodes))
    for found in await asyncio.gather(*(tried(_events(objects, _NODE_EVENTS, "Node", node)) for node in nodes)):
        events += found
    recent = [_event(event) for event in _newest(events) if now - _time_of(event) <= _RECENT]
    return [f"Pod {name}: {_pod(pod)}", *_containers(pod), *chain(*lines), *recent[:_MOST_TOLD], *troubles]


async def _about_node(objects: Objects, name: str) -> list[str]:
    node = await _read(objects, NODE, "", name)
    return [f"Node {name}: {_node(node)}", *_conditions(node)]


async def _events(objects: Objects, namespace: str, kind: str, name: str) -> list[Object]:
    about = f"involvedObject.kind={kind},involvedObject.name={name}"
    what = f"list events of namespace {namespace}"
    found = await objects.ask("GET", EVENT.path(namespace), what, fieldSelector=about, limit=_MOST_EVENTS)
    return list(found["items"])


async def _read(objects: Objects, resource: Resource, namespace: str, name: str) -> Object | None:
    """An object; None if it does not exist."""
    try:
        return await objects.ask("GET", resource.path(namespace, name), f"read {resource.kind.lower()} {name}")
    except TransportError as error:
        if is_missing(error):
            return None
        raise


def _newest(events: Iterable[Object]) -> list[Object]:
    return sorted(events, key=_time_of, reverse=True)


def _time_of(event: Object) -> datetime:
    """Time of the last occurrence; the field depends on the writer of the Event."""
    series = (event.get("series") or {}).get("lastObservedTime")
    said = series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    found = parse_time(said)
    assert found
    return found


def _pod(pod: Object | None) -> str:
    if pod is None:
        return "does not exist"
    status, machine = pod.get("status") or {}, machine_of(pod)
    said = str(status.get("phase"))
    if status.get("reason"):
        said += f" ({status['reason']})"
    if is_leaving(pod):
        said += ", is being deleted"
    for one in conditions_of(pod).values():
        if one.type in ("PodScheduled", "Ready") and not one.is_true:
            said += f", not {one.type}{_why(one)}"
    return f"{said}, on {f'Node {machine}' if machine else 'no Node yet'}"


def _containers(pod: Object | None) -> Iterator[str]:
    """Lines about containers that wait, were restarted or have failed."""
    for one in containers_of(pod or {}):
        said, state, restarts = [], one.get("state") or {}, one.get("restartCount")
        if (waiting := state.get("waiting") or {}).get("reason"):
            said.append(f"waits{_why(Condition.read(waiting))}")
        if restarts:
            said.append(f"restarted {restarts} times" if restarts > 1 else "restarted once")
        for what, was in (("ended", state), ("previously ended", one.get("lastState") or {})):
            end = was.get("terminated")
            # An init container ends normally.
            if end and (end["exitCode"] or end.get("reason") != "Completed"):
                said.append(f"{what} with exit code {end['exitCode']}{_why(Condition.read(end))}{_at(end)}")
        if said:
            yield f"  container {one['name']}: {', '.join(said)}"


def _at(end: Object) -> str:
    at = parse_time(end.get("finishedAt"))
    return f" at {at:%Y-%m-%d %H:%M:%S}" if at else ""


def _node(node: Object | None) -> str:
    if node is None:
        return "is gone"
    ready = conditions_of(node).get("Ready")
    said = "Ready" if ready and ready.is_true else f"not Ready{_why(ready)}"
    if is_leaving(node):
        said += ", is being deleted"
    return f"{said}, takes no new Pods" if (node.get("spec") or {}).get("unschedulable") else said


def _conditions(node: Object | None) -> Iterator[str]:
    """Lines about true conditions other than Ready, such as NebiusMaintenanceScheduled."""
    for one in conditions_of(node or {}).values():
        if one.type != "Ready" and one.is_true:
            since = f" since {one.since:%Y-%m-%d %H:%M:%S}" if one.since else ""
            yield f"  {one.type}{since}{_why(one)}"


def _event(event: Object) -> str:
    count, about = event.get("count") or 1, event["involvedObject"]
    level = "" if event.get("type") == "Normal" else f"{event.get('type')} "
    what = f"{level}{event.get('reason')}{f' ({count} times)' if count > 1 else ''}"
    return (
        f"{_time_of(event):%Y-%m-%d %H:%M:%S} {about['kind']} {about['name']}: {what}: {_short(event.get('message'))}"
    )


def _why(one: Condition | None) -> str:
    words = ": ".join(filter(None, (one.reason, _short(one.message)))) if one else ""
    return f" ({words})" if words else ""


def _short(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
