"""Stories of demand from the first seeds: whatever happens to a block, its loads and its metrics, the rules hold."""

from __future__ import annotations

import pytest

from tests.simulation.demand import World
from tests.simulation.story import play, played

#: Seeds of a run of the suite, and those of one test; `make soak` plays thousands.
SEEDS, AT_ONCE = 200, 50


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_the_rules_hold(first: int) -> None:
    play(World, range(first, first + AT_ONCE))


def test_a_seed_tells_the_same_story_each_time() -> None:
    assert played(World(11)) == played(World(11))
