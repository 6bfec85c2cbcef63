"""``python -m benchmarks [NAME …]``: run some or all benchmarks and print their table.

A run that was cut off is gone on with by the next one of the same code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

from benchmarks import fan_outs, nodes, parsing, sandbox_cycles, sandbox_root, transports, watching
from benchmarks.capacity import run as capacity
from benchmarks.chains import gaps, submitting
from benchmarks.executor import run as executor
from benchmarks.kept import Kept
from benchmarks.table import Row, show
from benchmarks.tasks import run as tasks
from benchmarks.trace import run as trace

BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    "root": sandbox_root.run,
    "parsing": parsing.run,
    "cycles": sandbox_cycles.run,
    "transports": transports.run,
    "watching": watching.run,
    "nodes": nodes.run,
    "fan_outs": fan_outs.run,
    "tasks": tasks.run,
    "executor": executor.run,
    "chains": lambda: [*submitting.run(), *gaps.run()],
    "capacity": capacity.run,
    "trace": trace.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument(
        "--tasks", type=int, default=tasks.TASKS, metavar="N", help=f"how many wait at once in `tasks` ({tasks.TASKS})"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="all ways in `capacity`, under longer jobs, and with slow boots: 35 minutes; `trace` under other loads: 7",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the month in `trace` (1)")
    given = parser.parse_args()
    names = given.names or list(BENCHMARKS)
    if unknown := set(names) - BENCHMARKS.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    benchmarks = BENCHMARKS | {
        "tasks": partial(tasks.run, given.tasks),
        "capacity": partial(capacity.run, quick=not given.full),
        "trace": partial(trace.run, given.seed, full=given.full),
    }
    kept = Kept([str(given.tasks), str(given.full), str(given.seed)])
    rows = []
    for name in names:
        found = kept.get(name)
        if found is None:
            found = benchmarks[name]()
            kept.add(name, found)
        rows += found
    kept.clear()
    show(rows)
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
