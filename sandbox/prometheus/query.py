"""As much of Prometheus' query language as selects series, compares them with a number and sums them up."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Labels = dict[str, str]


class QueryError(ValueError):
    """A query that is none, or that is beyond the double."""


@dataclass(frozen=True)
class Sample:
    """The present value of one series; its name is the label ``__name__``."""

    labels: Labels
    value: float


_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SELECTOR = rf"(?P<name>{_NAME})?\s*(?:\{{(?P<matchers>(?:[^\"}}]|\"(?:[^\"\\]|\\.)*\")*)\}})?"
_AGGREGATE = re.compile(
    r"(?P<function>max|min|sum|avg|count)\s*(?:by\s*\((?P<by>[^)]*)\)\s*)?\((?P<inner>.*?)\)\s*"
    r"(?:by\s*\((?P<by_after>[^)]*)\))?",
    re.DOTALL,
)
_COMPARISON = re.compile(r"(?P<inner>.*\S)\s*(?P<sign>==|!=|>=|<=|>|<)\s*(?P<number>-?[0-9.]+(?:e[+-]?[0-9]+)?)", re.S)
_MATCHER = re.compile(rf"\s*({_NAME})\s*(=~|!~|!=|=)\s*\"((?:[^\"\\]|\\.)*)\"\s*(?:,|$)")
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_FUNCTIONS: dict[str, Callable[[list[float]], float]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "avg": lambda values: sum(values) / len(values),
    "count": len,
}


def evaluate(query: str, samples: Iterable[Sample]) -> list[Sample]:
    """The samples that a query stands for.

    >>> samples = [Sample({"__name__": "up", "node": "a"}, 1), Sample({"__name__": "up", "node": "b"}, 0)]
    >>> evaluate('up{node=~"a|b"} == 0', samples)
    [Sample(labels={'__name__': 'up', 'node': 'b'}, value=0)]
    >>> evaluate("max by (node) (up)", samples)[0]
    Sample(labels={'node': 'a'}, value=1)
    """
    query = query.strip()
    if found := _COMPARISON.fullmatch(query):
        holds, number = _SIGNS[found["sign"]], float(found["number"])
        return [sample for sample in evaluate(found["inner"], samples) if holds(sample.value, number)]
    if found := _AGGREGATE.fullmatch(query):
        kept = [label.strip() for label in (found["by"] or found["by_after"] or "").split(",") if label.strip()]
        return _aggregate(found["function"], kept, evaluate(found["inner"], samples))
    if query.startswith("(") and query.endswith(")"):
        return evaluate(query[1:-1], samples)
    return _select(query, samples)


def _aggregate(function: str, kept: list[str], samples: list[Sample]) -> list[Sample]:
    groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for sample in samples:
        of = tuple((label, sample.labels[label]) for label in kept if label in sample.labels)
        groups.setdefault(of, []).append(sample.value)
    return [Sample(dict(of), _FUNCTIONS[function](values)) for of, values in groups.items()]


def _select(query: str, samples: Iterable[Sample]) -> list[Sample]:
    found = re.fullmatch(_SELECTOR, query)
    if not query or found is None:
        raise QueryError(f"this double knows only selectors, comparisons with a number, and aggregates: {query}")
    wanted = _matchers(found["matchers"] or "")
    if found["name"]:
        wanted.append(("__name__", "=", found["name"]))
    return [sample for sample in samples if all(_holds(sample.labels, *matcher) for matcher in wanted)]


def _matchers(text: str) -> list[tuple[str, str, str]]:
    found, at = [], 0
    while text[at:].strip():
        match = _MATCHER.match(text, at)
        if match is None:
            raise QueryError(f"no label matcher: {text[at:]}")
        label, sign, value = match.groups()
        found.append((label, sign, re.sub(r"\\(.)", r"\1", value)))
        at = match.end()
    return found


def _holds(labels: Labels, label: str, sign: str, value: str) -> bool:
    present = labels.get(label, "")
    if sign in ("=", "!="):
        return (present == value) == (sign == "=")
    try:
        return (re.fullmatch(value, present) is not None) == (sign == "=~")
    except re.error as problem:
        raise QueryError(f"no regular expression: {value} ({problem})") from None
