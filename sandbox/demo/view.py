"""Shows a run as it goes on: a table that changes in a terminal, a line for each change anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sandbox.demo.watched import Seen, TaskSeen

#: Seconds between two looks.
_PAUSE = 0.5
_STYLES = {
    "success": "green",
    "COMPLETED": "green",
    "running": "cyan",
    "deferred": "cyan",
    "RUNNING": "cyan",
    "allocated": "cyan",
    "mixed": "cyan",
    "failed": "red",
    "upstream_failed": "red",
    "up_for_retry": "yellow",
    "CONFIGURING": "yellow",
    "powering up": "yellow",
    "powering down": "yellow",
    "off": "dim",
}


def follow(look: Callable[[], Seen], console: Console, timeout: float) -> Seen:
    """Show what is seen until the run has ended, or the time is over; the last that was seen."""
    show = _in_place if console.is_terminal else _by_lines
    return show(look, console, time.monotonic() + timeout)


def _in_place(look: Callable[[], Seen], console: Console, deadline: float) -> Seen:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            seen = look()
            live.update(_table(seen), refresh=True)
            if _is_over(seen, deadline):
                return seen
            time.sleep(_PAUSE)


def _by_lines(look: Callable[[], Seen], console: Console, deadline: float) -> Seen:
    started = time.monotonic()
    shown: dict[str, str] = {}
    while True:
        seen = look()
        lines = {task.name: _line(task) for task in seen.tasks if task.state}
        lines["nodes"] = ", ".join(f"{names} {state}" for state, names in seen.nodes.items())
        for name, text in lines.items():
            if shown.get(name) != text:
                console.print(f"{time.monotonic() - started:5.1f} s  {name:<18} {text}", markup=False)
        shown = lines
        if _is_over(seen, deadline):
            return seen
        time.sleep(_PAUSE)


def _is_over(seen: Seen, deadline: float) -> bool:
    return seen.state in ("success", "failed") or time.monotonic() > deadline


def _table(seen: Seen) -> Group:
    table = Table("task", "in Airflow", "job", "in Slurm", "on", "last line", expand=True)
    # What is long is the last line; the others are not to be broken for it.
    for column in table.columns[:-1]:
        column.no_wrap = True
    table.columns[-1].ratio = 1
    table.columns[-1].no_wrap = True
    for task in seen.tasks:
        table.add_row(task.name, _styled(task.state), task.job, _styled(task.slurm), task.nodes, Text(task.said))
    under = Table.grid(padding=(0, 2))
    for number, (state, names) in enumerate(seen.nodes.items()):
        under.add_row("" if number else " nodes", names, _styled(state))
    under.add_row(" capacity block", seen.block)
    return Group(table, under, "")


def _styled(state: str) -> Text:
    # Of several states the first word that has a colour.
    style = next((style for word, style in _STYLES.items() if word in state), "")
    return Text(state, style=style)


def _line(task: TaskSeen) -> str:
    parts = [task.state, f"job {task.job}" if task.job else "", task.slurm, task.nodes, task.said]
    return "  ".join(part for part in parts if part)
