"""The structure that a kind prescribes: what an object lacks, what it has too much, and what has the wrong type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from sandbox.kube import errors
from sandbox.kube.kinds import Kind
from sandbox.kube.objects import Object

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "integer or string": (int, str),
}
#: The type, field and words of something that is wrong.
Problem = tuple[str, str, str]


@dataclass(frozen=True)
class Shape:
    """What may be at one place of an object."""

    type: str
    #: None: an object with any fields.
    fields: dict[str, Shape] | None = None
    required: tuple[str, ...] = ()
    items: Shape | None = None
    #: The only values that a text may have.
    values: tuple[str, ...] = field(default=())


def shape(text: str) -> Shape:
    """The shape that is written down as YAML: types by field, ``*`` after those that are required, ``a|b`` as a choice.

    >>> shape("name*: string").required
    ('name',)
    """
    return _shape(yaml.safe_load(text))


def _shape(said: Any) -> Shape:
    if isinstance(said, dict):
        fields = {name.rstrip("*"): _shape(inner) for name, inner in said.items()}
        return Shape("object", fields, tuple(sorted(name[:-1] for name in said if name.endswith("*"))))
    if isinstance(said, list):
        return Shape("array", items=_shape(said[0]))
    if said in _TYPES:
        return Shape(said)
    return Shape("string", values=tuple(said.split("|")))


def check(kind: Kind, thing: Object, wanted: Shape) -> None:
    """Refuse a specification that is not of its shape, as the API server words it."""
    if problems := list(_problems(thing.get("spec") or {}, wanted, "spec")):
        name = str((thing.get("metadata") or {}).get("name", ""))
        raise errors.invalid_all(f"{kind.kind}.{kind.group}", name, problems)


def _problems(value: Any, wanted: Shape, path: str) -> Iterator[Problem]:
    allowed = _TYPES[wanted.type]
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        found = _type_of(value)
        yield (
            "FieldValueTypeInvalid",
            path,
            f'Invalid value: "{found}": {path} in body must be of type {wanted.type}: "{found}"',
        )
    elif wanted.values and value not in wanted.values:
        supported = ", ".join(f'"{one}"' for one in wanted.values)
        yield "FieldValueNotSupported", path, f"Unsupported value: {json.dumps(value)}: supported values: {supported}"
    elif isinstance(value, dict) and wanted.fields is not None:
        for name in wanted.required:
            if value.get(name) is None:
                yield "FieldValueRequired", f"{path}.{name}", "Required value"
        for name, inner in value.items():
            if name in wanted.fields and inner is not None:
                yield from _problems(inner, wanted.fields[name], f"{path}.{name}")
    elif isinstance(value, list) and wanted.items:
        for number, item in enumerate(value):
            yield from _problems(item, wanted.items, f"{path}[{number}]")


def _type_of(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")


def unknown(thing: Object, wanted: Shape) -> list[str]:
    """The fields of a specification that its shape does not have."""
    return list(_unknown(thing.get("spec"), wanted, "spec"))


def _unknown(value: Any, wanted: Shape, path: str) -> Iterator[str]:
    if isinstance(value, dict) and wanted.fields is not None:
        for name, inner in value.items():
            if name in wanted.fields:
                yield from _unknown(inner, wanted.fields[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(value, list) and wanted.items:
        for number, item in enumerate(value):
            yield from _unknown(item, wanted.items, f"{path}[{number}]")


def pruned(thing: Object, wanted: Shape) -> Object:
    """The object without the fields of its specification that its shape does not have."""
    return {**thing, "spec": _pruned(thing["spec"], wanted)} if "spec" in thing else thing


def _pruned(value: Any, wanted: Shape) -> Any:
    if isinstance(value, dict) and wanted.fields is not None:
        return {name: _pruned(inner, wanted.fields[name]) for name, inner in value.items() if name in wanted.fields}
    if isinstance(value, list) and wanted.items:
        return [_pruned(item, wanted.items) for item in value]
    return value
