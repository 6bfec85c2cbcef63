"""Small helpers over plain JSON objects, as the API exchanges them."""

from __future__ import annotations

import marshal
from datetime import datetime, timezone
from typing import Any

Object = dict[str, Any]


def clone(value: Any) -> Any:
    """A deep copy of JSON data. Controllers make many a second, and this is the fastest that Python has."""
    return unpacked(packed(value))


def packed(value: Any) -> bytes:
    """The first half of a copy, of what many copies are made of."""
    return marshal.dumps(value)


def unpacked(value: bytes) -> Any:
    return marshal.loads(value)


def dig(value: Any, path: str) -> Any:
    """What lies at a dotted path, or None.

    ``conditions[Ready].status`` picks the list item whose ``type`` (or ``name``) is ``Ready``.
    """
    for part in path.lstrip(".").split("."):
        key, _, pick = part.partition("[")
        if not isinstance(value, dict):
            return None
        value = value.get(key)
        if pick:
            wanted = pick.rstrip("]")
            items = value if isinstance(value, list) else []
            value = next((i for i in items if wanted in (i.get("type"), i.get("name"))), None)
    return value


def put(value: Object, path: str, new: Any) -> None:
    """Set what lies at a dotted path, making the objects on the way."""
    *parents, last = path.lstrip(".").split(".")
    for key in parents:
        value = value.setdefault(key, {})
    value[last] = new


def timestamp(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None


def age(since: Any, until: datetime) -> str:
    """The time between, as kubectl words it: ``42s``, ``5m10s``, ``3h``, ``12d``."""
    start = parse_timestamp(since) if isinstance(since, str) else None
    if start is None:
        return "<unknown>"
    seconds = max(0, int((until - start).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d"
