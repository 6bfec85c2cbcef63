"""Kubernetes Events: what `kubectl describe` shows of an object's past."""

from __future__ import annotations

from collections import deque
from typing import Any

from sandbox.cloud.conditions import timestamp
from sandbox.kube.store import ObjectStore

#: Events kept; the oldest go first, as they do on a real cluster after an hour.
KEPT = 500


class Recorder:
    """Writes Events, each new one once: the same said again of the same object is no news."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._last: dict[str, tuple[str, str]] = {}
        self._kept: deque[tuple[str, str]] = deque()

    def tell(
        self, about: dict[str, Any], reason: str, message: str, *, warning: bool = False, kubelet_of: str = ""
    ) -> None:
        metadata = about["metadata"]
        if self._last.get(metadata["uid"]) == (reason, message):
            return
        self._last[metadata["uid"]] = (reason, message)
        namespace = metadata.get("namespace", "default")
        now = timestamp()
        event = {
            "metadata": {"generateName": f"{metadata['name']}."},
            "involvedObject": {
                "kind": about["kind"],
                "apiVersion": about["apiVersion"],
                "name": metadata["name"],
                "namespace": metadata.get("namespace", ""),
                "uid": metadata["uid"],
            },
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "source": {"component": "kubelet", "host": kubelet_of} if kubelet_of else {"component": "sandbox"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        created = self._store.create("events", event, namespace)["metadata"]
        self._kept.append((created["name"], created["namespace"]))
        if len(self._kept) > KEPT:
            self._drop(*self._kept.popleft())

    def _drop(self, name: str, namespace: str) -> None:
        # Whoever can write to the store may have deleted it already.
        if self._store.list("events", namespace, fields=f"metadata.name={name}"):
            self._store.delete("events", name, namespace)
