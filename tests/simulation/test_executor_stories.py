"""Stories of an executor from the first seeds: whatever dies, each try runs once, none is lost, and no end is false."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_soperator.executors.job_keeper import JobKeeper
from tests.simulation.executors import DEATHS, World
from tests.simulation.story import Violated, play_until_broken, played

#: Seeds of a run of the suite, and those of one test; `make soak` plays thousands.
SEEDS, AT_ONCE = 140, 70


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_the_rules_hold(first: int) -> None:
    counts = Counter[str]()
    for seed in range(first, first + AT_ONCE):
        world = World(seed)
        world.play()
        counts += world.counts
    assert counts["scheduler_dies"] >= 150
    assert counts["controller_killed"] + sum(counts[death] for death in DEATHS) >= 150
    assert all(counts[what] for what in (*DEATHS, "adopted", "put_back", "success", "scheduler_hangs"))


def test_a_seed_tells_the_same_story_each_time() -> None:
    assert played(World(11)) == played(World(11))


async def _find_none(keeper: JobKeeper, legs: object) -> set[str]:
    return set()


@pytest.mark.parametrize(
    ("owner", "name", "before", "rule"),
    [
        (World, "states", lambda world, legs: dict.fromkeys(legs, "running"), "no end is that of another leg"),
        (JobKeeper, "adopt", _find_none, "what has a job is not run again"),
        (World, "schedule_again", lambda world, legs: None, "what had no job has not failed"),
    ],
)
def test_without_what_holds_them_the_rules_are_broken(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, before: Callable[..., Any], rule: str
) -> None:
    """The proof that stories have what rules need to be broken."""
    monkeypatch.setattr(owner, name, before)
    with pytest.raises(Violated, match=rf"{rule}\n(.*\n)*repeat: .* --executor --seed [0-9]+"):
        play_until_broken(World, rule, range(200))
