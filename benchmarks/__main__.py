"""``python -m benchmarks [NAME …]``: run some or all benchmarks and print their table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

from benchmarks import parsing, sandbox_cycles, sandbox_root, transports, watching
from benchmarks.chains import gaps, submitting
from benchmarks.table import Row, show
from benchmarks.tasks import run as tasks

BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    "root": sandbox_root.run,
    "parsing": parsing.run,
    "cycles": sandbox_cycles.run,
    "transports": transports.run,
    "watching": watching.run,
    "tasks": tasks.run,
    "chains": lambda: [*submitting.run(), *gaps.run()],
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument(
        "--tasks", type=int, default=tasks.TASKS, metavar="N", help=f"how many wait at once in `tasks` ({tasks.TASKS})"
    )
    given = parser.parse_args()
    names = given.names or list(BENCHMARKS)
    if unknown := set(names) - BENCHMARKS.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    benchmarks = BENCHMARKS | {"tasks": partial(tasks.run, given.tasks)}
    rows = [row for name in names for row in benchmarks[name]()]
    show(rows)
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
