"""A snapshot of a cluster as people read it, and as gauges for whoever draws curves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from airflow_provider_soperator.slurm.stats import PENDING, Load, SlurmStats

#: A gauge: its name, its value, and what tells it from others of that name.
Gauge = tuple[str, float, dict[str, str]]


def gauges(stats: SlurmStats) -> Iterator[Gauge]:
    """All figures that have a curve. What is zero is said, too: a gauge keeps its last value."""
    for partition, states in stats.queue.items():
        for state, load in states.items():
            for what, value in asdict(load).items():
                yield f"queue.{what}", value, {"partition": partition, "state": state}
    for name in ("median", "p90", "longest"):
        yield f"queue.wait_seconds.{name}", getattr(stats.waits, name), {}
    for state, nodes in stats.nodes.items():
        yield "nodes", nodes, {"state": state}
    for state, gpus in asdict(stats.gpus).items():
        yield "gpus", gpus, {"state": state}
    for partition, found in stats.gpus_by_partition.items():
        for state, gpus in asdict(found).items():
            yield "partition.gpus", gpus, {"partition": partition, "state": state}


def table(stats: SlurmStats) -> str:
    """All of it in lines.

    >>> from datetime import datetime, timezone
    >>> from airflow_provider_soperator.slurm.stats import snapshot
    >>> print(table(snapshot([], [], None, datetime(2026, 11, 22, tzinfo=timezone.utc))))
    2026-11-22 00:00:00+00:00
    Queue: empty
    GPUs: none
    Nodes: none
    Fair shares: nobody counts them
    """
    return "\n".join(
        [
            str(stats.at.replace(microsecond=0)),
            *_queue(stats),
            *_gpus(stats),
            f"Nodes: {_counts(stats.nodes.items())}",
            *_users(stats),
            *_shares(stats),
        ]
    )


def _queue(stats: SlurmStats) -> list[str]:
    rows = [
        [partition, state, str(load.jobs), str(load.nodes), str(load.gpus)]
        for partition, states in stats.queue.items()
        for state, load in states.items()
        if load.jobs
    ]
    if not rows:
        return ["Queue: empty"]
    lines = ["Queue", *_aligned(["partition", "state", "jobs", "nodes", "GPUs"], rows)]
    if stats.reasons:
        lines.append(f"  waiting for: {_counts(stats.reasons.items())}")
    if stats.waits.jobs:
        waits = stats.waits
        spans = ", ".join(
            f"{name} {_span(value)}"
            for name, value in (("median", waits.median), ("nine of ten", waits.p90), ("longest", waits.longest))
        )
        lines.append(f"  for so long: {spans} ({waits.jobs} jobs that could start)")
    return lines


def _gpus(stats: SlurmStats) -> list[str]:
    if not stats.gpus.total:
        return ["GPUs: none"]
    all_of_them = [("all", stats.gpus), *stats.gpus_by_partition.items()]
    # Of one type they are the same once more.
    all_of_them += stats.gpus_by_type.items() if len(stats.gpus_by_type) > 1 else []
    rows = [[name, str(one.on), *map(str, asdict(one).values())] for name, one in all_of_them if one.total]
    return ["GPUs", *_aligned(["", "on", *asdict(stats.gpus)], rows)]


def _users(stats: SlurmStats) -> list[str]:
    if not stats.users:
        return []
    rows = [[one.user, _said(one.has), _said(one.waits_for)] for one in stats.users]
    return ["Users", *_aligned(["user", "has", f"{PENDING.lower()}"], rows)]


def _said(load: Load) -> str:
    return f"{load.gpus} GPUs, {load.jobs} jobs" if load.jobs else "-"


def _shares(stats: SlurmStats) -> list[str]:
    if stats.shares is None:
        return ["Fair shares: nobody counts them"]
    rows = [
        [
            *(share.user, share.account, "of parent" if share.shares is None else str(share.shares)),
            *(_part(share.normal_usage), _part(share.fair_share), _part(share.level)),
        ]
        for share in stats.shares
    ]
    return ["Fair shares", *_aligned(["user", "account", "shares", "used", "fair share", "level"], rows)]


def _part(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _counts(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts if count) or "none"


def _span(seconds: float) -> str:
    """A time as people say it.

    >>> _span(42), _span(90), _span(7200), _span(200000)
    ('42 s', '1.5 min', '2 h', '2.3 d')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"


def _aligned(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    numeric = [all(row[place].isdecimal() for row in rows) for place in range(len(head))]
    return [
        ("  " + "  ".join(
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(row, widths, numeric, strict=True)
        )).rstrip()
        for row in (head, *rows)
    ]  # fmt: skip
