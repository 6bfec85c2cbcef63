"""Table answers: how the API server lays out objects for ``kubectl get``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sandbox.kube.kinds import Column, Kind
from sandbox.kube.objects import Object, age, dig


def table(kind: Kind, objects: list[Object], now: datetime, resource_version: str, include: str = "Metadata") -> Object:
    """A meta.k8s.io/v1 Table with a row for each object; ``include`` is None, Metadata or Object."""
    columns = [
        {
            "name": column.name,
            # Dates are shown as ages, which are text.
            "type": "string" if column.type == "date" else column.type,
            "format": "name" if column.name == "Name" else "",
            "description": "",
            "priority": column.priority,
        }
        for column in _columns(kind)
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": resource_version},
        "columnDefinitions": columns,
        "rows": [_row(kind, thing, now, include) for thing in objects],
    }


def _columns(kind: Kind) -> tuple[Column, ...]:
    if any(column.name == "Name" for column in kind.columns):
        return kind.columns
    return (Column("Name", "metadata.name"), *kind.columns)


def _row(kind: Kind, thing: Object, now: datetime, include: str) -> Object:
    row: Object = {"cells": [_cell(column, thing, now) for column in _columns(kind)]}
    if include == "Object":
        row["object"] = thing
    elif include != "None":
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": thing["metadata"],
        }
    return row


def _cell(column: Column, thing: Object, now: datetime) -> Any:
    if callable(column.value):
        return column.value(thing, now)
    value = dig(thing, column.value)
    if column.type == "date":
        return age(value, now)
    if value is None:
        return None
    return value if column.type in ("integer", "boolean") else str(value)
