"""What becomes of Pods on Nodes, as their status tells it; and a kubelet of Pods in which nothing runs."""

from __future__ import annotations

from typing import Any

from sandbox.cloud.conditions import condition, timestamp, with_conditions
from sandbox.kube.objects import parse_timestamp
from sandbox.kube.store import ObjectStore


class PlainKubelet:
    """Has Pods that are only objects: they run as soon as they have a Node."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def sync(self) -> None:
        for pod in self._store.list("pods"):
            if pod["spec"].get("nodeName") and not end_if_due(self._store, pod):
                report(self._store, pod, ready=True, message="runs")

    def daemon_of(self, pod: dict[str, Any], container: str) -> str | None:
        """No process runs in any of them."""
        return None


def end_if_due(store: ObjectStore, pod: dict[str, Any]) -> bool:
    """Delete a Pod whose grace period is over, as its kubelet does; True if it was."""
    metadata = pod["metadata"]
    end = parse_timestamp(metadata.get("deletionTimestamp") or "")
    is_due = bool(metadata.get("deletionGracePeriodSeconds")) and end is not None and store.now() >= end
    if is_due:
        store.delete("pods", metadata["name"], metadata["namespace"], uid=metadata["uid"], grace=0)
    return is_due


def report(store: ObjectStore, pod: dict[str, Any], *, ready: bool, message: str) -> None:
    """Say in the status of a Pod that has a Node whether it is ready."""
    metadata = pod["metadata"]
    # As it is now: the caller's copy may be from before it waited.
    old = store.get("pods", metadata["name"], metadata["namespace"]).get("status", {})
    was_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in old.get("conditions") or [])
    if old.get("phase") == "Running" and was_ready == ready:
        return
    reason = "PodReady" if ready else "ContainersNotReady"
    status = with_conditions(
        {
            **old,
            "phase": "Running",
            "podIP": "127.0.0.1",
            "hostIP": "127.0.0.1",
            "startTime": old.get("startTime") or timestamp(),
            "containerStatuses": [
                {
                    "name": container["name"],
                    "ready": ready,
                    "restartCount": 0,
                    "image": container["image"],
                    "imageID": "",  # clients refuse a status without one
                    "state": {"running": {"startedAt": timestamp()}},
                }
                for container in pod["spec"]["containers"]
            ],
        },
        condition("PodScheduled", True, "PodScheduled"),
        condition("ContainersReady", ready, reason, message),
        condition("Ready", ready, reason, message),
    )
    store.patch("pods", metadata["name"], {"status": status}, metadata["namespace"], part="status")


def report_unschedulable(store: ObjectStore, pod: dict[str, Any], message: str) -> None:
    """Say in the status of a Pod that it has no Node, and why; what the status says already is not said again."""
    metadata, old = pod["metadata"], pod.get("status", {})
    status = with_conditions(old, condition("PodScheduled", False, "Unschedulable", message))
    if status != old:
        store.patch("pods", metadata["name"], {"status": status}, metadata["namespace"], part="status")
