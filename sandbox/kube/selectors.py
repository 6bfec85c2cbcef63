"""Label and field selectors, as clients write them in a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from sandbox.kube.errors import bad_request
from sandbox.kube.objects import Object, dig

Match = Callable[[Object], bool]

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"[-A-Za-z0-9_.]*"
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")
# A comma separates requirements, but not the values inside of ``in (a, b)``.
_COMMA = re.compile(r",(?![^(]*\))")

#: Fields a selector may name; the API server refuses all others.
FIELDS = re.compile(
    r"metadata\.(name|namespace)|involvedObject\.\w+|spec\.(nodeName|restartPolicy|unschedulable)|status\.phase"
    r"|type|reason|reportingComponent|source|status\.successful"
)


@lru_cache
def label_selector(text: str) -> Match:
    """A test for objects whose labels meet every requirement in ``text``.

    >>> label_selector("app=vllm,tier in (a, b),!old")({"metadata": {"labels": {"app": "vllm", "tier": "a"}}})
    True
    """
    tests = [_label_requirement(part.strip()) for part in _COMMA.split(text)] if text.strip() else []
    return lambda thing: all(test(dig(thing, "metadata.labels") or {}) for test in tests)


def _label_requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _EQUALITY.fullmatch(text):
        key, operator, value = found.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _SET.fullmatch(text):
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "notin":
            return lambda labels: labels.get(key) not in values
        return lambda labels: labels.get(key) in values
    if found := _EXISTS.fullmatch(text):
        absent, key = found.groups()
        return lambda labels: (key in labels) != bool(absent)
    raise bad_request(f"unable to parse requirement: {text!r}")


@lru_cache
def field_selector(text: str) -> Match:
    """A test for objects whose fields have the values in ``text``; a field that is not there is empty."""
    tests = [_field_requirement(part.strip()) for part in text.split(",") if part.strip()]
    return lambda thing: all(test(thing) for test in tests)


def _field_requirement(text: str) -> Match:
    found = re.fullmatch(r"([\w.]+)\s*(==|=|!=)\s*(.*)", text)
    if found is None:
        raise bad_request(f"invalid selector: {text!r}; can't understand it")
    path, operator, value = found.groups()
    if not FIELDS.fullmatch(path):
        raise bad_request(f"field label not supported: {path}")
    return lambda thing: (_field(thing, path) == value) == (operator != "!=")


def _field(thing: Object, path: str) -> str:
    value: Any = dig(thing, path)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def selector_text(selector: Any) -> str:
    """A LabelSelector object as the text a query takes."""
    if not isinstance(selector, dict):
        return str(selector or "")
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for rule in selector.get("matchExpressions") or []:
        key, operator, values = rule["key"], rule["operator"], ",".join(rule.get("values") or [])
        parts.append(
            {"Exists": key, "DoesNotExist": f"!{key}", "In": f"{key} in ({values})"}.get(operator)
            or f"{key} notin ({values})"
        )
    return ",".join(parts)
