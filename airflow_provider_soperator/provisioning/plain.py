"""Descriptions as plain data: what Airflow renders templates in, and what files hold."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from operator import or_
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from airflow_provider_soperator.provisioning.errors import SpecMistake, near
from airflow_provider_soperator.values import is_template

T = TypeVar("T")

#: Numbers and switches may be templates, whose results are texts.
Number = int | str
Switch = bool | str
_ON, _OFF = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


def write(described: Any) -> Any:
    """As plain data, without what was left unsaid."""
    if is_dataclass(described) and not isinstance(described, type):
        said = {one.name: (getattr(described, one.name), one.default) for one in fields(described)}
        return {name: write(value) for name, (value, default) in said.items() if value not in (default, {})}
    if isinstance(described, Mapping):
        return {name: write(value) for name, value in described.items()}
    if isinstance(described, (list, tuple)):
        return [write(one) for one in described]
    return described


def read(kind: type[T], said: Any, where: str) -> T:
    """What was written, or what a file says; ``SpecMistake`` names the place of what is wrong with it."""
    if not isinstance(said, Mapping):
        raise SpecMistake(f"{where} is {said!r}, where names with values were expected")
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    for name in said:
        if name not in hints:
            raise SpecMistake(f"{where} has no {name!r}{near(name, hints)}")
    try:
        return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in said.items()})
    except TypeError as error:
        raise SpecMistake(f"{where} is not complete: {error}") from None


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, said: Any, where: str) -> Any:
    if hint == Number:
        return number(said, where)
    if hint == Switch:
        return switch(said, where)
    if get_origin(hint) in (Union, types.UnionType):
        if said is None or is_unsaid(said):
            return None
        words = [word for one in get_args(hint) if get_origin(one) is Literal for word in get_args(one)]
        if said in words:
            return said
        # X | None, where X may itself be a union.
        rest = tuple(one for one in get_args(hint) if one is not type(None) and get_origin(one) is not Literal)
        return _value(reduce(or_, rest), said, where)
    if get_origin(hint) is tuple:
        if isinstance(said, (str, Mapping)) or not hasattr(said, "__iter__"):
            raise SpecMistake(f"{where} is {said!r}, where a list was expected")
        return tuple(_value(get_args(hint)[0], one, f"{where}[{place}]") for place, one in enumerate(said))
    if hint is str and not isinstance(said, str):
        # YAML takes 1.32 for a number.
        raise SpecMistake(f"{where} is {said!r}, where a text was expected: put it into quotes")
    if isinstance(hint, type) and is_dataclass(hint):
        return said if isinstance(said, hint) else read(hint, said, where)
    return said


def is_unsaid(said: object) -> bool:
    """Whether a template has come to nothing.

    >>> is_unsaid("None"), is_unsaid(""), is_unsaid("none of it")
    (True, True, False)
    """
    return said in ("", "None")


def number(said: Any, where: str) -> Number:
    """A whole number, also one that a template has made."""
    if is_template(said):
        return str(said)
    try:
        if isinstance(said, (bool, float)):
            raise ValueError
        return int(said)
    except (TypeError, ValueError):
        raise SpecMistake(f"{where} is {said!r}, where a whole number was expected") from None


def switch(said: Any, where: str) -> Switch:
    """On or off, also if a template has said so."""
    if isinstance(said, bool) or is_template(said):
        return said  # type: ignore[no-any-return]
    word = str(said).lower()
    if word not in _ON | _OFF:
        raise SpecMistake(f"{where} is {said!r}, where true or false was expected")
    return word in _ON
