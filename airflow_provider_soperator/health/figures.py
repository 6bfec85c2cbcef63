"""Figures that checks print: read, kept over time, and compared with a node's own past and with its neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from math import isfinite
from operator import itemgetter
from statistics import median

from airflow_provider_soperator import values
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.health.findings import Finding, FindingKind

#: Figures by node, and by their names.
Figures = Mapping[str, Mapping[str, float]]
#: What is known of each node: seconds since 1970, and the figures of the run of that time; the newest last.
Kept = Mapping[str, list[tuple[int, dict[str, float]]]]

#: The beginning of the keys of the Airflow Variables that keep them; a check follows.
VARIABLES = "soperator_figures_"
#: What nccl-tests print at their end, in GB/s.
PATTERNS = {"busbw": r"Avg bus bandwidth\s*:\s*([0-9.]+)"}
#: Runs of a node that are kept: together, those of a thousand nodes fit into a Variable.
_MOST_RUNS = 30
#: Fewer values have no median worth the name.
_LEAST = 3
#: Figures of time, of which less is better; of all others more is.
_TIMES = ("_seconds", "_ms", "_us", "_ns")


class FiguresMistake(ClusterError):
    """What is kept of a check has no figures. Watchers ask again until that is mended."""


def figures_in(printed: str, patterns: Mapping[str, str]) -> dict[str, float]:
    """The figures in what a job has printed, by expressions with one group; of several matches the last counts.

    >>> figures_in("# Avg bus bandwidth    : 481.2", PATTERNS)
    {'busbw': 481.2}
    """
    found: dict[str, float] = {}
    for name, pattern in patterns.items():
        for text in re.findall(pattern, printed):
            with suppress(ValueError):
                found[name] = float(text)
    return {name: value for name, value in found.items() if isfinite(value)}


def check_patterns(patterns: Mapping[str, str]) -> None:
    """Raise for what is no expression with one group."""
    for name, pattern in patterns.items():
        if re.compile(pattern).groups != 1:
            raise ValueError(f"figures: {name}={pattern!r} needs one group, around the number")


def with_run(kept: Kept, at: datetime, run: Figures) -> Kept:
    """What is known, with a new run; one that is known already is not kept twice, and the oldest are forgotten."""
    second, grown = int(at.timestamp()), {**kept}
    for node, found in run.items():
        new = (second, {name: float(f"{value:.6g}") for name, value in found.items()})
        before = [(begun, figures) for begun, figures in kept.get(node, ())]
        if found and new not in before:
            # A run that is kept late, such as by a retry, is not the newest by that.
            grown[node] = sorted([*before, new], key=itemgetter(0))[-_MOST_RUNS:]
    return grown


def kept_figures(check: str) -> Kept:
    """What is known of a check, from an Airflow Variable, which Airflow workers and the triggerer can read."""
    from pydantic import TypeAdapter

    try:
        read: Kept = values.kept(_key(check), {})
        TypeAdapter(Kept).validate_python(read)
    except ValueError:
        raise FiguresMistake(f"the Airflow Variable {_key(check)} was edited, and has no figures: delete it") from None
    # One whose runs a person has deleted is one that is not known.
    return {node: runs for node, runs in read.items() if runs}


def keep_figures(check: str, run: Figures, tolerance: float = 0.1, at: datetime | None = None) -> dict[str, str]:
    """Keep the figures of a run of a check, or of any job that measures nodes; returns the slow ones among them.

        keep_figures("all-reduce", {"worker-0": {"busbw": 481.2}, "worker-1": {"busbw": 312.0}})

    A run that was kept already, ``at`` the same time with the same figures, is not kept twice: so a retry may keep it
    again. Two runs of one check must not be kept at the same time.
    """
    known = with_run(kept_figures(check), at or datetime.now(timezone.utc), run)
    values.keep(_key(check), known)
    slow: dict[str, str] = {}
    for one in slower(check, {node: runs for node, runs in known.items() if run.get(node)}, tolerance):
        slow[one.node] = "; ".join(filter(None, (slow.get(one.node), one.what)))
    return slow


def _key(check: str) -> str:
    return VARIABLES + check


def slower(check: str, kept: Kept, tolerance: float) -> Iterator[Finding]:
    """Nodes that in their newest run were slower, by more than a share, than before or than their neighbours.

    Neighbours are the nodes of the same NodeSet in the same run.
    """
    beside: dict[tuple[str, int, str], list[float]] = {}
    for node, runs in kept.items():
        second, newest = runs[-1]
        for figure, value in newest.items():
            beside.setdefault((_set(node), second, figure), []).append(value)
    for node, runs in kept.items():
        second, newest = runs[-1]
        for figure, value in newest.items():
            past = [found[figure] for _, found in runs[:-1] if figure in found]
            others = beside[_set(node), second, figure]
            usual = {f"in its {len(past)} runs before": past} if len(past) >= _LEAST else {}
            # Its own value among them moves a median little.
            usual |= {f"of {len(others)} nodes in this run": others} if len(others) > _LEAST else {}
            losses = (_loss(figure, value, median(found), where, tolerance) for where, found in usual.items())
            if said := ", ".join(filter(None, losses)):
                since = datetime.fromtimestamp(second, timezone.utc)
                what = f"{figure} of {check} was {value:g}: {said}"
                yield Finding(node, FindingKind.SLOW, what, "checks", since)


def _loss(figure: str, value: float, usual: float, where: str, tolerance: float) -> str:
    """By how much a figure is worse than usual; empty if it is not, or within a share."""
    loss = value - usual if figure.endswith(_TIMES) else usual - value
    # Nothing is worse or better than what is no number.
    if not loss > tolerance * abs(usual):
        return ""
    change = f"{abs(value / usual - 1):.0%} " if usual else ""
    return f"{change}{'more' if value > usual else 'less'} than {usual:g}, the median {where}"


def _set(node: str) -> str:
    return node.rpartition("-")[0]
