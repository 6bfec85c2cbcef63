"""Who has set which fields of an object, and server-side apply, which goes by that."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandbox.kube import errors
from sandbox.kube.fields import Path, decoded, encoded, is_set, item_key, leaves, shown
from sandbox.kube.kinds import Kind
from sandbox.kube.objects import Object, clone, timestamp


@dataclass(frozen=True)
class Manager:
    """Somebody who writes objects: by what name, how, and which version and part of them."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    @property
    def part(self) -> str:
        return "status" if self.subresource == "status" else "spec"

    def said(self, time: str) -> str:
        """As a conflict names it."""
        name = json.dumps(self.name) + (f' with subresource "{self.subresource}"' if self.subresource else "")
        if self.operation == "Apply":
            return name
        return f"{name} using {self.api_version}" + (f" at {time}" if time else "")


@dataclass
class _Record:
    """One entry of ``managedFields``."""

    manager: Manager
    fields: set[Path]
    time: str = ""

    @classmethod
    def read(cls, entry: Object) -> _Record:
        words = ("manager", "operation", "apiVersion", "subresource")
        return cls(
            Manager(*(str(entry.get(word, "")) for word in words)),
            decoded(entry.get("fieldsV1") or {}),
            entry.get("time", ""),
        )

    def written(self) -> Object:
        entry = {
            "manager": self.manager.name,
            "operation": self.manager.operation,
            "apiVersion": self.manager.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": encoded(self.fields),
        }
        return entry | ({"subresource": self.manager.subresource} if self.manager.subresource else {})


def note_update(kind: Kind, old: Object, new: Object, manager: Manager, now: datetime) -> None:
    """Record in ``new`` that it is the manager who has set what is otherwise than in ``old``."""
    records = _records(old)
    before, after = leaves(kind, old, manager.part), leaves(kind, new, manager.part)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    for record in records:
        record.fields -= before.keys() - after.keys()
        if record.manager != manager:
            record.fields -= changed
    if changed:
        mine = _of(records, manager)
        mine.fields |= changed
        mine.time = timestamp(now)
    _keep(new, records)


def apply(kind: Kind, old: Object, applied: Object, manager: Manager, now: datetime, *, force: bool = False) -> Object:
    """What the manager names is set; what it has named before, and nobody names now, is removed.

    A field that another manager has set to something else is a conflict, unless ``force`` takes it over.
    """
    if (applied.get("metadata") or {}).get("managedFields"):
        raise errors.bad_request("metadata.managedFields must be nil")
    records = _records(old)
    wanted, present = leaves(kind, applied, manager.part), leaves(kind, old, manager.part)
    contested = {
        path for path, value in wanted.items() if path in present and present[path] != value and path[-1][0] == "f"
    }
    others = [record for record in records if record.manager != manager]
    conflicts = [(record, path) for record in others for path in sorted(record.fields & contested)]
    if conflicts and not force:
        name = str((old.get("metadata") or {}).get("name", ""))
        raise errors.apply_conflict(
            kind.resource, name, [(record.manager.said(record.time), shown(path)) for record, path in conflicts]
        )
    for record, path in conflicts:
        record.fields.discard(path)
    mine = _of(records, manager)
    result: Object = clone(old)
    dropped = mine.fields - wanted.keys()
    # From the outside in: a list's item is found by a field of its own.
    for path in sorted(dropped.difference(*(record.fields for record in others)), key=len):
        _remove(kind, result, path)
    for key, value in applied.items():
        if not kind.has_status or (key == "status") == (manager.part == "status"):
            result[key] = _joined(kind, key, result.get(key), value)
    if mine.fields != wanted.keys():
        mine.fields, mine.time = set(wanted), timestamp(now)
    _keep(result, records)
    return result


def _records(thing: Object) -> list[_Record]:
    return [_Record.read(entry) for entry in (thing.get("metadata") or {}).get("managedFields") or []]


def _of(records: list[_Record], manager: Manager) -> _Record:
    """The record of a manager, which is among the others afterwards."""
    found = next((record for record in records if record.manager == manager), None)
    if found is None:
        found = _Record(manager, set())
        records.append(found)
    return found


def _keep(thing: Object, records: Iterable[_Record]) -> None:
    written = [record.written() for record in records if record.fields]
    metadata = thing.setdefault("metadata", {})
    metadata.pop("managedFields", None)
    if written:
        metadata["managedFields"] = written


def _joined(kind: Kind, field: str, old: Any, new: Any) -> Any:
    if isinstance(new, dict):
        joined = dict(old) if isinstance(old, dict) else {}
        return joined | {key: _joined(kind, key, joined.get(key), value) for key, value in new.items()}
    if not isinstance(new, list) or not isinstance(old, list):
        return clone(new)
    if is_set(field):
        return old + [item for item in new if item not in old]
    key = item_key(kind, field, old + new)
    if key is None:
        return clone(new)
    items = {item[key]: item for item in old}
    return list((items | {item[key]: _joined(kind, "", items.get(item[key]), item) for item in new}).values())


def _remove(kind: Kind, thing: Object, path: Path) -> None:
    """Take out a field, and the objects around it that are empty without it."""
    *way, last = path
    parents: list[tuple[Any, Any]] = []
    inside: Any = thing
    for step in way:
        at = _place(inside, step)
        if at is None:
            return
        parents.append((inside, at))
        inside = inside[at]
    at = _place(inside, last)
    if at is not None:
        del inside[at]
    for outer, key in reversed(parents):
        if outer[key] not in ({}, []):
            return
        del outer[key]


def _place(inside: Any, step: str) -> Any:
    """The key or the index of what a step leads to; None if there is no such thing."""
    how, _, said = step.partition(":")
    if how == "f":
        return said if isinstance(inside, dict) and said in inside else None
    if not isinstance(inside, list):
        return None
    wanted = json.loads(said)
    if how == "v":
        return next((n for n, item in enumerate(inside) if item == wanted), None)
    return next((n for n, item in enumerate(inside) if wanted.items() <= item.items()), None)
