"""What Kubernetes knows of a worker, in lines for people who want to know what has become of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_soperator.kubernetes.workers import Worker, happened

#: Events are told of that are at most so old, and of those the newest.
_RECENT = timedelta(hours=6)
_MOST_EVENTS = 8
#: Letters of a message; some quote whole stack traces.
_LONGEST = 240


def tell(worker: Worker, now: datetime) -> list[str]:
    """The Pod and what its containers went through, the Nodes it was on, and the Events about them, newest first."""
    lines = [f"Pod {worker.name}: {_pod(worker.pod)}", *_indented(_containers(worker.pod))]
    for name, node in worker.nodes.items():
        lines += [f"Node {name}: {_node(node)}", *_indented(_conditions(node))]
    lines += [_event(event) for event in _newest(worker.events, now)]
    return lines + [f"(Not all is known: {trouble})" for trouble in worker.troubles]


def _pod(pod: Any) -> str:
    if pod is None:
        return "there is none"
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
    """Those that something has happened to."""
    if pod is None:
        return
    for one in [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]:
        said = []
        if one.state and one.state.waiting and one.state.waiting.reason:
            said.append(f"waits{_why(one.state.waiting)}")
        if one.restart_count:
            said.append(f"restarted {one.restart_count} times" if one.restart_count > 1 else "restarted once")
        for what, state in (("ended", one.state), ("before that it ended", one.last_state)):
            # An init container is meant to end.
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
    """What is wrong with it, and what is going to happen to it, such as NebiusMaintenanceScheduled."""
    for one in (node.status.conditions or ()) if node else ():
        if one.type != "Ready" and one.status == "True":
            since = f" since {one.last_transition_time:%Y-%m-%d %H:%M:%S}" if one.last_transition_time else ""
            yield f"{one.type}{since}{_why(one)}"


def _newest(events: Iterable[Any], now: datetime) -> list[Any]:
    recent = [event for event in events if now - happened(event) <= _RECENT]
    return sorted(recent, key=happened, reverse=True)[:_MOST_EVENTS]


def _event(event: Any) -> str:
    times = f" ({event.count} times)" if event.count and event.count > 1 else ""
    about = f"{event.involved_object.kind} {event.involved_object.name}"
    level = "" if event.type == "Normal" else f"{event.type} "
    return f"{happened(event):%Y-%m-%d %H:%M:%S} {about}: {level}{event.reason}{times}: {_short(event.message or '')}"


def _why(said: Any) -> str:
    words = ": ".join(filter(None, (said.reason, _short(said.message or "")))) if said else ""
    return f" ({words})" if words else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
