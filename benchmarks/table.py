"""The one shape of a result: what was measured, the figure, and what it is held against."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One line of the table; ``met`` is None where nothing was promised."""

    benchmark: str
    what: str
    figure: str
    against: str = ""
    met: bool | None = None


def spread(seconds: Sequence[float]) -> str:
    """Minimum, median and maximum: one figure of a shared machine says little."""
    return f"{min(seconds):.2f} / {statistics.median(seconds):.2f} / {max(seconds):.2f} s"


def show(rows: Sequence[Row]) -> None:
    table = Table(
        "benchmark", "what", "figure", "held against", "met", title="min / median / max where three are given"
    )
    for row in rows:
        met = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[row.met]
        table.add_row(row.benchmark, row.what, row.figure, row.against, met)
    Console().print(table)
