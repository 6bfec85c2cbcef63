"""Conditions of Kubernetes objects: type, status, time and reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

#: A Kubernetes object as JSON.
Object = dict[str, Any]


@dataclass(frozen=True)
class Condition:
    """One condition of an object."""

    type: str
    #: ``True``, ``False`` or ``Unknown``.
    status: str
    reason: str = ""
    message: str = ""
    #: The time of the last change of the status.
    since: datetime | None = None

    @classmethod
    def read(cls, said: Object) -> Condition:
        type_, status, reason, message = (str(said.get(name) or "") for name in ("type", "status", "reason", "message"))
        return cls(type_, status, reason, message, parse_time(said.get("lastTransitionTime")))

    @property
    def is_true(self) -> bool:
        return self.status == "True"

    @property
    def is_false(self) -> bool:
        return self.status == "False"

    @property
    def why(self) -> str:
        return ": ".join(filter(None, (self.reason, self.message)))


def conditions_of(thing: Object) -> dict[str, Condition]:
    found = map(Condition.read, (thing.get("status") or {}).get("conditions") or ())
    return {one.type: one for one in found}


def parse_time(said: str | None) -> datetime | None:
    """A time in Kubernetes' notation.

    >>> parse_time("2026-11-22T02:00:00Z")
    datetime.datetime(2026, 11, 22, 2, 0, tzinfo=datetime.timezone.utc)
    """
    if not said:
        return None
    # Python 3.10 parses neither the Z nor fractions that do not have three or six digits.
    whole = said.partition(".")[0].rstrip("Z")
    return datetime.fromisoformat(whole).replace(tzinfo=timezone.utc)


def last_changed(thing: Object) -> datetime | None:
    """Time of the last change of the object, except its status; None if it is unchanged since its creation."""
    metadata = thing["metadata"]
    if int(metadata.get("generation") or 1) <= 1:
        return None
    written = [one for one in metadata.get("managedFields") or () if one.get("subresource") != "status"]
    return newest(parse_time(one.get("time")) for one in written)


def newest(times: Iterable[datetime | None]) -> datetime | None:
    return max(filter(None, times), default=None)
