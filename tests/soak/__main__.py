"""``python -m tests.soak``: rounds of what is a matter of luck or of many, until the minutes are over.

A round depends on the seed, the name of its scenario and its number; ``--seed S --only NAME --round N`` runs it again.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests import keeper
from tests.soak.rounds import SCENARIOS, VERSIONS, Soak, flushed


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="a round that was begun by then is finished (20)")
    parser.add_argument("--seed", type=int, help="of all dice; by default a random one, which is printed")
    parser.add_argument("--only", default=",".join(SCENARIOS), metavar="NAME[,NAME]", help="some of the scenarios")
    parser.add_argument("--round", type=int, metavar="N", help="this round of each scenario, and no other")
    parser.add_argument("--slurm", choices=VERSIONS, default="", help="by default rounds alternate")
    parser.add_argument("--width", type=int, default=200, metavar="N", help="mapped tasks of a fan-out (200)")
    parser.add_argument("--keep-going", action="store_true", help="go on with further rounds after one has failed")
    given = parser.parse_args(words)
    given.only = given.only.split(",")
    if unknown := set(given.only) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    if given.round is not None and given.seed is None:
        parser.error("--round means nothing without the --seed that it belongs to")
    if not 1 <= given.width <= 1000:
        parser.error(f"--width {given.width} is out of range: use 1 to 1000")
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        parser.error("sandboxes need root on Debian")
    return given


@contextmanager
def airflow_home() -> Iterator[None]:
    """A home for the Airflow that hooks read their connections from; it is read once, when Airflow is imported."""
    folder = tempfile.mkdtemp(prefix=f"airflow-home-{os.getpid()}-")
    # Connections that are made and cut are no news here.
    os.environ |= {
        "AIRFLOW_HOME": folder,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "CRITICAL",
    }
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(words: Sequence[str] | None = None) -> int:
    given = parse(words)
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    flushed(f"seed {seed}")
    # Told to end, it takes its sandboxes down, as it does after Ctrl-C, which a shell's background would have ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    soak = Soak(
        seed,
        given.minutes,
        scenarios=given.only,
        slurm=given.slurm,
        width=given.width,
        keep_going=given.keep_going,
        say=flushed,
    )
    keeper.start()
    with airflow_home():
        return soak.run(given.round)


if __name__ == "__main__":
    sys.exit(main())
