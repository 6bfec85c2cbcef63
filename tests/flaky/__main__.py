"""``make flaky``: run the tests that a change touches again and again, in other orders and under load."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.flaky.imports import changed, touched
from tests.flaky.load import KINDS, load
from tests.flaky.runs import SIDE_BY_SIDE, Run, table

ROOT = Path(__file__).parents[2]


def kinds(text: str) -> list[str]:
    found = [] if text == "none" else text.split(",")
    if unknown := set(found) - KINDS.keys():
        raise argparse.ArgumentTypeError(f"no such load: {', '.join(unknown)}; there are {', '.join(KINDS)}, none")
    return found


def read_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make flaky", description=__doc__)
    add = parser.add_argument
    add("tests", nargs="*", metavar="TEST", help="what pytest is to run; by default what a change touches")
    add("--since", metavar="REF", help="the commit it began with; by default that of the upstream branch, or HEAD~1")
    add("--distance", type=int, default=1, metavar="N", help="how many imports a test may be away from the change (1)")
    add("--runs", type=int, default=5, metavar="N", help="how often, each time in another order (5)")
    add("--seed", type=int, metavar="N", help="of the first order; the runs after it have the next ones")
    add("--load", type=kinds, default=[*KINDS], metavar="KINDS", help=f"{','.join(KINDS)} or none; by default all")
    add("--no-quiet", action="store_true", help="leave out the run before them, in the usual order and without load")
    add("--processes", type=int, default=0, metavar="N", help="side by side, as `make test` has 3; by default one")
    add("--pytest", type=shlex.split, default=[], metavar="OPTIONS", help='more for pytest, as --pytest="-k NAME"')
    add("--list", action="store_true", help="say what a change touches, and run nothing")
    return parser.parse_args(words)


def choose(since: str | None, distance: int) -> list[str]:
    """The test modules that a change touches, up to a distance; says which, and what is left out."""
    commit, files = changed(ROOT, since)
    modules = touched(ROOT, files)
    others = [file for file in files if not file.endswith(".py")]
    print(f"{len(files)} files differ from {commit}; of {len(others)} that are no Python nothing is known")
    chosen = [module for module, away in modules.items() if away <= distance]
    for module in chosen:
        print(f"  {modules[module]}  {module}")
    further = Counter(away for away in modules.values() if away > distance)
    for away, count in sorted(further.items()):
        print(f"  {away}  {count} more, with --distance {away}")
    return chosen


def runs_of(given: argparse.Namespace, tests: list[str], seed: int, folder: Path) -> list[tuple[Run, list[str], bool]]:
    """Each run, with the arguments of its pytest, and whether it is under load."""
    common = ["-p", "no:cacheprovider", *given.pytest, *tests]
    same = ""
    if given.processes:
        common += [f"--numprocesses={given.processes}", *SIDE_BY_SIDE]
        same += f" --processes {given.processes}"
    if given.pytest:
        same += f" --pytest={shlex.quote(shlex.join(given.pytest))}"

    def again(words: str) -> str:
        return f"make flaky ARGS={shlex.quote(f'{shlex.join(tests)} {words}{same}')}"

    quiet = [] if given.no_quiet else [(Run("quiet", again("--runs 0"), folder / "quiet.log"), common, False)]
    under = f"--load {','.join(given.load) or 'none'}"
    return quiet + [
        (
            Run(f"seed {each}", again(f"--seed {each} --runs 1 --no-quiet {under}"), folder / f"{each}.log"),
            [*common, "--shuffle", str(each)],
            True,
        )
        for each in range(seed, seed + given.runs)
    ]


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    given = read_arguments()
    # Any of them stops what was started; and started in the background, a program would not heed the first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        tests = given.tests or choose(given.since, given.distance)
    except ValueError as error:
        print(f"flaky: {error}", file=sys.stderr)
        return 2
    if not tests or given.list:
        return 0
    os.chdir(ROOT)
    seed = random.randrange(100_000) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="flaky-"))
    done: list[Run] = []
    interrupted = False
    try:
        for run, arguments, loaded in runs_of(given, tests, seed, folder):
            began = time.monotonic()
            done.append(run)
            with load(given.load if loaded else []):
                run.perform(arguments)
            print(f"{run.name}: {run.summary()}, in {time.monotonic() - began:.0f} s", flush=True)
    except KeyboardInterrupt:
        interrupted = True
    print("\n".join(table(done)))
    if interrupted:
        return 130
    if any(run.failed for run in done):
        return 1
    shutil.rmtree(folder)
    print("each test has passed each time, or cannot run here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
