"""What a Pod, as a plain object, tells of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

#: Why a container waits that will not wait long.
_STARTING = ("ContainerCreating", "PodInitializing")


def is_on_a_node(pod: Object) -> bool:
    """Whether it holds what it has asked for; what has ended holds nothing."""
    return bool(machine_of(pod)) and _status(pod).get("phase") not in ("Succeeded", "Failed")


def machine_of(pod: Object) -> str:
    """The Node that it is on; empty while it waits for one."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def is_leaving(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_ready(pod: Object) -> bool:
    return not is_leaving(pod) and any(
        one["type"] == "Ready" and one["status"] == "True" for one in _status(pod).get("conditions") or ()
    )


def problems_of(pod: Object) -> Iterator[str]:
    """What keeps it from running, in the words of whoever has found it."""
    status = _status(pod)
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            yield str(one.get("message") or one.get("reason"))
    for one in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (one.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason and reason not in _STARTING:
            yield f"container {one['name']} waits ({reason}: {waiting.get('message') or 'no more is said'})"


def _status(pod: Object) -> Object:
    return pod.get("status") or {}
