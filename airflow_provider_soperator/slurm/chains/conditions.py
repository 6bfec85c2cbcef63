"""Tests on values that are known, as `[ ... ]` makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from airflow_provider_soperator.slurm.chains import texts

_TEXTS: Mapping[str, Callable[[str, str], bool]] = {
    "=": lambda one, other: one == other,
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
}
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda one, other: one == other,
    "-ne": lambda one, other: one != other,
    "-lt": lambda one, other: one < other,
    "-le": lambda one, other: one <= other,
    "-gt": lambda one, other: one > other,
    "-ge": lambda one, other: one >= other,
}


def holds(words: Sequence[str]) -> bool | None:
    """Whether a test holds; None for what depends on the cluster, as ids of jobs and files do.

    >>> holds(["-z", ""]), holds(["2", "-gt", "1"]), holds(["-f", "x"])
    (True, True, None)
    """
    match words:
        case ["!", *rest]:
            outcome = holds(rest)
            return None if outcome is None else not outcome
        case []:
            return False
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case [one, operator, other] if not texts.jobs_in(one + other):
            if operator in _TEXTS and not set("*?[") & set(other):  # in [[ ]] these make it a pattern
                return _TEXTS[operator](one, other)
            if operator in _NUMBERS and one.lstrip("-").isdecimal() and other.lstrip("-").isdecimal():
                return _NUMBERS[operator](int(one), int(other))
    return None
