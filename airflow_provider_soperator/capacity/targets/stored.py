"""Targets as JSON, in which a task hands them to a triggerer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from airflow_provider_soperator.capacity.errors import CapacityMistake
from airflow_provider_soperator.capacity.targets.base import Target

#: Marks a dict that is a target, also where it is the field of another one.
_CLASS = "__target__"
_PLAIN = (str, int, float, bool, type(None))


def write(target: Target) -> dict[str, Any]:
    """The target's class and its fields; all who run tasks must be able to import the class.

    >>> from airflow_provider_soperator.capacity.targets.kubernetes import KubernetesScaleTarget
    >>> written = write(KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8))
    >>> written["__target__"], written["resource"]
    ('airflow_provider_soperator.capacity.targets.kubernetes:KubernetesScaleTarget', 'vllm')
    """
    if not _is_target(type(target)):
        raise CapacityMistake(f"{target!r} is no target", "make it a frozen dataclass, as those of this package are")
    path = f"{type(target).__module__}:{type(target).__qualname__}"
    if _find(path) is not type(target):
        raise CapacityMistake(
            f"only this process knows {type(target).__name__}, and others are to use it", "put it into a module"
        )
    fields = {field.name: getattr(target, field.name) for field in dataclasses.fields(target) if field.init}  # type: ignore[arg-type]
    return {_CLASS: path, **{name: _write(value, f"{path}.{name}") for name, value in fields.items()}}


def read(written: Mapping[str, Any]) -> Target:
    """The target that was written; no other class is ever made an object of."""
    found = _find(str(written[_CLASS]))
    if found is None or not _is_target(found):
        raise CapacityMistake(
            f"{written[_CLASS]} is no target", "install in all of Airflow's processes what the DAG was made with"
        )
    made: Target = found(**{name: _read(value) for name, value in written.items() if name != _CLASS})
    return made


def _write(value: Any, where: str) -> Any:
    if _is_target(type(value)):
        return write(value)
    # A subclass, such as an enumeration, would come back as something else.
    if type(value) in _PLAIN:
        return value
    if type(value) in (tuple, list):
        return [_write(one, where) for one in value]
    if type(value) is dict and all(type(key) is str and key != _CLASS for key in value):
        return {key: _write(one, where) for key, one in value.items()}
    raise CapacityMistake(f"{where} is {value!r}, which JSON cannot carry", "use texts, numbers, lists and dicts")


def _read(value: Any) -> Any:
    if isinstance(value, list):
        # A frozen target has no lists that could be added to.
        return tuple(map(_read, value))
    if isinstance(value, dict):
        return read(value) if _CLASS in value else {key: _read(one) for key, one in value.items()}
    return value


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found


def _is_target(kind: Any) -> bool:
    """Whether a class is one of targets, which can be told before there is an object of it."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and callable(getattr(kind, "open", None))):
        return False
    has = {field.name for field in dataclasses.fields(kind)} | set(dir(kind))
    return kind.__dataclass_params__.frozen and {"name", "gpus_per_unit", "units"} <= has  # type: ignore[attr-defined]
