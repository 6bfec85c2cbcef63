"""Stories of jobs and of shifts on a virtual clock, with no sandbox: as many as fit into a round."""

from __future__ import annotations

from tests.simulation import shifts
from tests.simulation.world import World
from tests.soak.rounds import Round

STORIES = 2000
#: Seeds of different rounds must not meet.
SEEDS = 2**40

HELD = "stories in which all rules held"


def play(round_: Round) -> None:
    dice = round_.dice("stories")
    for number in range(STORIES):
        seed = dice.randrange(SEEDS)
        world = shifts.World(seed) if number % 2 else World(seed)
        world.play()
        round_.checked[HELD] += 1
        round_.counts += world.counts
