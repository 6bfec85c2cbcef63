"""Stories from the first seeds: whatever happens to jobs, the rules of ``world`` hold."""

from __future__ import annotations

import asyncio
import time

import pytest

from airflow_provider_soperator.client import job_tracker
from airflow_provider_soperator.slurm.job_ids import SubmissionKey
from airflow_provider_soperator.slurm.requests import ListJobs
from tests.simulation.clock import Process, virtual_time
from tests.simulation.story import Violated, play, played
from tests.simulation.world import World

#: Seeds of a run of the suite, and those of one test.
SEEDS, AT_ONCE = 300, 50


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_the_rules_hold(first: int) -> None:
    play(World, range(first, first + AT_ONCE))


def test_a_seed_tells_the_same_story_each_time() -> None:
    assert played(World(11)) == played(World(11))


def test_a_broken_rule_is_told_with_its_story_and_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    # All tries of all tasks have one key.
    monkeypatch.setattr(SubmissionKey, "derive", classmethod(lambda cls, *parts, **more: cls("a" * 12)))
    with pytest.raises(Violated, match=r"a key belongs to one task of one run\n(.*\n)*repeat: .* --seed [0-9]+"):
        play(World, range(20))


def test_a_job_is_known_by_its_name_or_the_stories_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that stories have what rules need to be broken."""
    monkeypatch.setattr(job_tracker.TrackedJob, "_is_named", lambda job, name: True)
    with pytest.raises(Violated, match=r"of the task's own job"):
        play(World, range(500))


@pytest.mark.parametrize(("clears", "most"), [([], 30), ([0.0], 30), ([0.0, 40.0], 60), ([-90.0, 40.0], 30)])
def test_a_process_looks_for_jobs_by_what_is_cleared_together_and_not_by_tasks(clears: list[float], most: int) -> None:
    world, process = World(1), Process("triggerer", None)

    async def look() -> None:
        begun = time.monotonic()
        world._all_cleared = [begun + pause for pause in clears]
        await asyncio.sleep(45)
        for _ in range(most):
            world.asked(ListJobs(mine=True), process, 1)
        assert world.broken is None
        world.asked(ListJobs(mine=True), process, 1)

    with virtual_time() as run:
        run(look())
    assert world.broken == ("there is one question for all", f"triggerer: {most + 1} lookups in a minute")
