"""Stories from the first seeds: whatever happens to jobs, the rules of ``world`` hold."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from airflow_provider_soperator.client import job_tracker
from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.slurm.requests import ListJobs
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from tests.simulation.airflow import Airflow, Instance, Spec
from tests.simulation.clock import Process, virtual_time
from tests.simulation.mends import MENDS, PROVIDER, ROOT
from tests.simulation.slurm import Fate, Habits
from tests.simulation.story import Violated, play, played
from tests.simulation.world import World

#: Seeds of a run of the suite, and those of one test; `make soak` plays thousands.
SEEDS, AT_ONCE = 100, 50
#: Later ones, whose stories tell of one of ``mends`` that is taken out, and of a job that is not known by its name.
TELLING = (108, 116, 234, 267)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_the_rules_hold(first: int) -> None:
    play(World, range(first, first + AT_ONCE))


def test_the_rules_hold_in_stories_that_have_told_of_faults() -> None:
    play(World, TELLING)


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
        play(World, [*TELLING, *range(500)])


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


class _Marked(World):
    """A task in an Airflow worker is marked as failed while its job runs."""

    is_away = True
    is_cleared_later = False

    def _habits(self) -> Habits:
        return Habits()

    def fate_of(self, name: str) -> Fate:
        return Fate(0.0, 3000.0)

    def _runs(self) -> list[list[Instance]]:
        self.airflows.append(airflow := Airflow("A", random.Random(1), self))
        return [[Instance(airflow, Spec(mode="worker"), "dag", "run")]]

    async def _event(self) -> None: ...

    async def _begin(self, run: list[Instance], pause: float) -> None:
        await super()._begin(run, pause)
        [one] = run
        await asyncio.sleep(40)
        self.cluster.is_reachable = not self.is_away
        one.airflow.mark(one, "failed")
        self._watch_jobs_of(one)
        await asyncio.sleep(30)
        self.cluster.is_reachable = True
        if self.is_cleared_later:
            one.airflow.clear(one)
            self._watch_jobs_of(one)


def test_a_job_is_left_when_the_worker_that_was_to_end_it_could_not_log_in_before_it_was_killed() -> None:
    world = _Marked(1)
    world.play()
    assert not world.cluster.jobs[0].is_finished


def test_such_a_job_goes_once_its_task_is_cleared() -> None:
    world = _Marked(1)
    world.is_cleared_later = True
    world.play()
    assert [job.is_cancelled for job in world.cluster.jobs] == [True, False]


def test_a_job_is_not_left_by_a_worker_that_could_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _Marked(1)
    world.is_away = False
    world.play()
    assert world.cluster.jobs[0].is_finished

    async def hangs(run: JobRun) -> None:
        await asyncio.sleep(1000)

    monkeypatch.setattr(JobRun, "cancel", hangs)
    world = _Marked(1)
    world.is_away = False
    with pytest.raises(Violated, match="a task that was ended leaves no job"):
        world.play()


def test_each_mend_can_be_taken_out() -> None:
    for mend in MENDS:
        text = (ROOT / PROVIDER / mend.module).read_text()
        assert all(now in text for now, _ in mend.pairs), mend.what
