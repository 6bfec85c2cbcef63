"""Kubernetes conditions: set one by its type, and leave its transition time alone while it stays what it was."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any


def timestamp() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(type_: str, status: bool | None, reason: str, message: str = "") -> dict[str, Any]:
    """None is Kubernetes' third truth, Unknown."""
    return {
        "type": type_,
        "status": "Unknown" if status is None else str(status),
        "reason": reason,
        "message": message,
    }


def with_conditions(status: dict[str, Any], *wanted: dict[str, Any]) -> dict[str, Any]:
    """The status with these conditions in the place of those of the same types."""
    old = {entry["type"]: entry for entry in status.get("conditions") or []}
    for entry in wanted:
        was = old.get(entry["type"])
        since = was["lastTransitionTime"] if was and was["status"] == entry["status"] else timestamp()
        old[entry["type"]] = {**entry, "lastTransitionTime": since}
    return {**status, "conditions": list(old.values())}
