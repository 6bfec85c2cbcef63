"""Stories of jobs, shifts, demand and an executor on a virtual clock, without a sandbox: what fits in a round."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation import demand, executors, shifts
from tests.simulation.world import World
from tests.soak.rounds import Round

STORIES = 2000
#: Seeds of different rounds must not meet.
SEEDS = 2**40
#: Stories that a process is given at a time: few enough to end soon after Ctrl-C.
_AT_A_TIME = 20

HELD = "stories in which all rules held"


def play(round_: Round) -> None:
    dice = round_.dice("stories")
    seeds = [dice.randrange(SEEDS) for _ in range(STORIES)]
    cores = ProcessPoolExecutor()
    try:
        for counts in cores.map(_counts, range(STORIES), seeds, chunksize=_AT_A_TIME):
            round_.checked[HELD] += 1
            round_.counts += counts
    finally:
        cores.shutdown(cancel_futures=True)


def _counts(number: int, seed: int) -> Counter[str]:
    """What has happened in a story, all of whose rules held."""
    world = (World, shifts.World, demand.World, executors.World)[number % 4](seed)
    world.play()
    return world.counts
