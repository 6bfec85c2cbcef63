"""``python -m tests.simulation``: stories of jobs, shifts, demand or an executor; ``--seed N`` tells that one."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.soak.__main__ import airflow_home


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="this story alone, and all of it")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first of the seeds (0)")
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (1000)")
    parser.add_argument("--promise", action="append", default=[], metavar="NAME", help="one of NOT_YET, or all")
    parser.add_argument("--shifts", action="store_true", help="stories of shifts, and not of jobs")
    parser.add_argument("--demand", action="store_true", help="stories of shifts that demand wishes for")
    parser.add_argument("--executor", action="store_true", help="stories of an executor, and not of operators")
    parser.add_argument("--keep-going", action="store_true", help="go on after a story has failed")
    given = parser.parse_args(words)
    with airflow_home():
        return play(given)


def play(given: argparse.Namespace) -> int:
    from tests.simulation import demand, executors, shifts
    from tests.simulation.story import Violated
    from tests.simulation.world import NOT_YET, World

    not_yet = NOT_YET - (NOT_YET if given.promise == ["all"] else {*given.promise})
    seeds = range(given.first, given.first + given.seeds) if given.seed is None else [given.seed]
    begun, failed, counts = time.process_time(), Counter[str](), Counter[str]()
    for seed in seeds:
        world = (
            shifts.World(seed) if given.shifts
            else demand.World(seed) if given.demand
            else executors.World(seed) if given.executor
            else World(seed, not_yet)
        )  # fmt: skip
        try:
            world.play()
        except Violated as violated:
            failed[violated.rule] += 1
            print(f"seed {seed}: {violated.rule}" if given.keep_going else violated)
            if not given.keep_going:
                break
        else:
            if given.seed is not None:
                print("\n".join(world.told()))
        counts += world.counts
    spent = time.process_time() - begun
    print(f"{len(seeds)} seeds, {spent:.1f} s of CPU, {dict(counts)}; failed: {dict(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
