"""KEDA as far as a sandbox needs it: it sets the replicas of what a ScaledObject names, unless it is paused."""

from __future__ import annotations

from typing import Any

from sandbox.cloud.conditions import condition, with_conditions
from sandbox.kube.objects import dig, put
from sandbox.kube.store import ObjectStore

PAUSED = "autoscaling.keda.sh/paused"
PAUSED_REPLICAS = "autoscaling.keda.sh/paused-replicas"


class ScaledObjectController:
    """Of triggers it knows ``cron``, which asks for its ``desiredReplicas`` at any time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def sync(self) -> None:
        for scaled in self._store.list("scaledobjects"):
            self._sync(scaled)

    def _sync(self, scaled: dict[str, Any]) -> None:
        metadata = scaled["metadata"]
        annotations = metadata.get("annotations") or {}
        is_paused = PAUSED_REPLICAS in annotations or annotations.get(PAUSED) == "true"
        found = self._scale(scaled, _wanted(scaled["spec"], annotations))
        status = with_conditions(
            scaled.get("status", {}),
            condition("Ready", found, "ScaledObjectReady" if found else "ScaledObjectCheckFailed"),
            condition("Paused", is_paused, "ScaledObjectPaused" if is_paused else "ScaledObjectUnpaused"),
        )
        if status != scaled.get("status"):
            patch = {"status": status}
            self._store.patch("scaledobjects", metadata["name"], patch, metadata["namespace"], part="status")

    def _scale(self, scaled: dict[str, Any], replicas: int | None) -> bool:
        """Whether there is something to scale; None leaves it as it is."""
        target, namespace = scaled["spec"]["scaleTargetRef"], scaled["metadata"]["namespace"]
        kind = next((k for k in self._store.kinds if k.kind == target.get("kind", "Deployment") and k.scale), None)
        found = self._store.list(kind, namespace, fields=f"metadata.name={target['name']}") if kind else []
        if not found or kind is None or kind.scale is None:
            return False
        path = kind.scale.replicas
        if replicas is not None and dig(found[0], path) != replicas:
            put(found[0], path, replicas)
            self._store.update(kind, found[0], namespace, part="spec")
        return True


def _wanted(spec: dict[str, Any], annotations: dict[str, str]) -> int | None:
    if PAUSED_REPLICAS in annotations:
        return int(annotations[PAUSED_REPLICAS])
    if annotations.get(PAUSED) == "true":
        return None
    asked = [int(trigger["metadata"].get("desiredReplicas", 0)) for trigger in spec.get("triggers") or []]
    least, most = int(spec.get("minReplicaCount", 0)), int(spec.get("maxReplicaCount", 100))
    return min(most, max(least, *asked, 0))
