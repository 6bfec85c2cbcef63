"""Sets of fields, as ``managedFields`` writes them: which parts of an object somebody has set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sandbox.kube.kinds import Kind
from sandbox.kube.objects import Object

#: The way to one field: ``f:`` and a key, ``k:`` and the keys of a list's item, ``v:`` and the item itself.
Path = tuple[str, ...]

#: Lists of objects that are joined item by item, and the keys that tell items apart.
MERGE_KEYS = {
    "addresses": ("type",),
    "conditions": ("type",),
    "containerPorts": ("containerPort",),
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "ports": ("containerPort", "port"),
    "topologySpreadConstraints": ("topologyKey",),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
#: Those that custom resources have as well; all other lists of theirs are one value each.
_ANYWHERE = ("conditions", "ownerReferences")
#: Lists of plain values in which each value stands for itself.
_SETS = ("finalizers", "activeNodes")
#: What belongs to the server, or says which object it is.
_UNMANAGED = {
    "apiVersion",
    "kind",
    "metadata.creationTimestamp",
    "metadata.deletionGracePeriodSeconds",
    "metadata.deletionTimestamp",
    "metadata.generateName",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.name",
    "metadata.namespace",
    "metadata.resourceVersion",
    "metadata.selfLink",
    "metadata.uid",
}


def item_key(kind: Kind, field: str, items: list[Any]) -> str | None:
    """The key that tells the items of a list apart; None for a list that is one value."""
    keys = MERGE_KEYS.get(field, ()) if not kind.custom or field in _ANYWHERE else ()
    return next((key for key in keys if all(isinstance(item, dict) and key in item for item in items)), None)


def is_set(field: str) -> bool:
    return field in _SETS


def leaves(kind: Kind, thing: Object, part: str = "spec") -> dict[Path, Any]:
    """Every field of an object with its value: those of its status, or all others."""
    found: dict[Path, Any] = {}
    for key, value in thing.items():
        if kind.has_status and (key == "status") != (part == "status"):
            continue
        _collect(kind, value, key, (f"f:{key}",), key, found)
    return found


def _collect(kind: Kind, value: Any, field: str, path: Path, dotted: str, found: dict[Path, Any]) -> None:
    if dotted in _UNMANAGED:
        return
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            _collect(kind, inner, key, (*path, f"f:{key}"), f"{dotted}.{key}", found)
    elif isinstance(value, list) and value and is_set(field):
        found.update({(*path, f"v:{json.dumps(item)}"): item for item in value})
    elif isinstance(value, list) and value and (key := item_key(kind, field, value)):
        for item in value:
            at = (*path, f"k:{json.dumps({key: item[key]}, separators=(',', ':'))}")
            found[at] = None
            for name, inner in item.items():
                _collect(kind, inner, name, (*at, f"f:{name}"), "", found)
    elif dotted != "metadata":
        found[path] = value


def encoded(paths: Iterable[Path]) -> Object:
    """A set of fields as FieldsV1 has it.

    >>> encoded([("f:spec", "f:replicas")])
    {'f:spec': {'f:replicas': {}}}
    """
    chosen = set(paths)
    tree: Object = {}
    for path in sorted(chosen):
        inside = tree
        for step in path:
            inside = inside.setdefault(step, {})
        if any(other[: len(path)] == path and len(other) > len(path) for other in chosen):
            inside["."] = {}
    return tree


def decoded(tree: Object) -> set[Path]:
    """The set of fields that a FieldsV1 stands for."""
    return set(_walk(tree, ()))


def _walk(tree: Object, path: Path) -> Iterator[Path]:
    for step, inner in tree.items():
        if step == ".":
            yield path
        elif inner:
            yield from _walk(inner, (*path, step))
        else:
            yield (*path, step)


def shown(path: Path) -> str:
    """A field as error messages name it.

    >>> shown(("f:spec", "f:containers", 'k:{"name":"a"}', "f:image"))
    '.spec.containers[name="a"].image'
    """
    said = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            said += f".{rest}"
        elif kind == "k":
            said += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(rest).items()) + "]"
        else:
            said += f"[={rest}]"
    return said
