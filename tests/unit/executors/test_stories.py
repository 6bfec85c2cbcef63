"""Stories from a seed: schedulers, nodes and replies die while tasks run; each try has one job and one true end."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.executors import runner
from airflow_provider_soperator.executors.books import Books, Phase
from airflow_provider_soperator.executors.job_keeper import NewsKind
from airflow_provider_soperator.executors.task_jobs import QueuedTask
from airflow_provider_soperator.slurm.job_ids import Keys, SubmissionKey, key_of
from airflow_provider_soperator.slurm.requests import Request
from tests.unit.client.tracking import run_without_waiting
from tests.unit.executors.cluster import ROOT, ClusterOfTasks, Keeper

#: Stories of a test, and kills of schedulers in each.
STORIES, KILLS = 60, 6
TASKS = 8


class ReplyLost(ClusterError):
    retryable = unsettled = True


class UnreliableCluster(ClusterOfTasks):
    """A cluster that loses requests and replies."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice, self.losses = dice, 0.0

    async def ask(self, request: Request[Any]) -> Any:
        await asyncio.sleep(self.dice.random() / 5)
        if self.dice.random() < self.losses:
            raise ReplyLost("not sent")
        answer = await super().ask(request)
        await asyncio.sleep(self.dice.random() / 5)
        if self.dice.random() < self.losses:
            raise ReplyLost("no reply")
        return answer


@dataclass
class TaskInstance:
    """What Airflow's database has of a task."""

    name: str
    index: int
    leg: str = ""
    state: str = ""
    legs: list[str] = field(default_factory=list)


class Story:
    """Airflow's side, with one scheduler at a time."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.slurm = UnreliableCluster(self.dice)
        self.tasks = [TaskInstance(f"t{number % 3}", number) for number in range(TASKS)]
        self.share = self.dice.choice((1, 1, 3))
        self.kills = 0
        self.known: dict[str, SubmissionKey] = {}
        self._start()

    def _start(self) -> None:
        self.keeper, self.books = Keeper(self.slurm), Books()
        self.taken = 0
        self.work: set[asyncio.Task[Any]] = set()

    def of(self, leg: str) -> TaskInstance | None:
        """The task of which this is the present leg."""
        return next((task for task in self.tasks if task.leg == leg), None)

    def queue(self, *tasks: TaskInstance) -> None:
        for task in tasks:
            task.leg, task.state = f"{task.name}-{task.index}-{len(task.legs)}", "queued"
            task.legs.append(task.leg)
            self.books.accept(task.leg, task.index)
        asked = {"share": self.share} if self.share > 1 else {}
        queued = [QueuedTask(task.leg, "dag", "run", task.name, task.index, asked=asked) for task in tasks]
        self.work.add(asyncio.ensure_future(self.keeper.keeper.submit(queued)))

    async def kill_scheduler(self) -> None:
        """At whatever it does just now; the next one adopts what it finds."""
        self.kills += 1
        for task in (*self.work, *self.keeper.keeper._tasks):
            task.cancel()
        await asyncio.sleep(self.dice.random() * 20)
        self._start()
        orphans = [task for task in self.tasks if task.state in ("queued", "running")]
        had_jobs = {leg for leg in (task.leg for task in orphans) if self.jobs_of(leg)}
        while True:
            try:
                found = await self.keeper.keeper.adopt([task.leg for task in orphans])
                break
            except ClusterError:
                await asyncio.sleep(1)
        assert had_jobs <= found, "what has a job is not run again"
        for task in orphans:
            if task.leg in found:
                self.books.accept(task.leg, task.index, Phase.SUBMITTED)
        if reset := [task for task in orphans if task.leg not in found]:
            assert all(task.state == "queued" for task in reset), "what runs has a job"
            self.queue(*reset)

    def jobs_of(self, leg: str) -> list[Any]:
        keys = self.keys()
        wanted = Keys([keys[leg]]) if leg in keys else Keys([])
        return [job for job in self.slurm.queue if any(wanted.of(job.name, job.id))]

    def keys(self) -> dict[str, SubmissionKey]:
        """The keys of all legs, as their files had them."""
        for path, data in self.slurm.files.items():
            self.known[path.removeprefix(f"{ROOT}/tasks/")] = SubmissionKey(json.loads(data)["key"])
        return self.known

    def move_job(self) -> None:
        """A job starts or ends."""
        keys = self.keys()
        jobs = self.slurm.jobs()
        states = {job.id: str(job.state) for job in self.slurm.queue}
        names = {job.id: job.name for job in self.slurm.queue}
        moving = [job for job in jobs if states[job] in ("PENDING", "RUNNING")]
        if not moving:
            return
        job = self.dice.choice(moving)
        key = key_of(names[job], job)
        tasks = [task for leg, known in keys.items() if known == key and (task := self.of(leg))]
        wanted = [task for task in tasks if task.state in ("queued", "running")]
        if states[job] == "PENDING":
            if not wanted and self.dice.random() < 0.9:
                self.slurm.end(job, "FAILED", runner.NOT_WANTED)
                return
            for task in wanted:
                assert task.state == "queued", "each try starts once"
                task.state = "running"
            self.slurm.end(job, "RUNNING")
        elif self.dice.random() < 0.6:
            for task in wanted:
                task.state = "success"
            self.slurm.end(job, "COMPLETED")
        else:
            self.slurm.end(job, self.dice.choice(("NODE_FAIL", "TIMEOUT", "CANCELLED")))

    def sync(self) -> None:
        """What the scheduler makes of the news."""
        news = self.keeper.news[self.taken :]
        self.taken = len(self.keeper.news)
        for one in news:
            if one.kind in (NewsKind.SUBMITTED, NewsKind.WAITING, NewsKind.STARTED):
                continue
            if self.books.end(one.leg) is None:
                continue
            task = self.of(one.leg)
            assert task is not None
            if one.kind is NewsKind.SUCCEEDED:
                assert task.state == "success", "no false success"
            elif one.kind is NewsKind.FAILED:
                assert all(str(job.state) not in ("PENDING", "RUNNING") for job in self.jobs_of(one.leg)), one.text
                assert task.state in ("queued", "running"), one.text
                task.state = "failed"

    async def play(self) -> None:
        self.queue(*self.tasks[: TASKS // 2])
        self.queue(*self.tasks[TASKS // 2 :])
        self.slurm.losses = self.dice.choice((0.0, 0.05, 0.2))
        moments = sorted(self.dice.sample(range(80), KILLS))
        for moment in range(80):
            await asyncio.sleep(self.dice.random() * 4)
            self.sync()
            if moment in moments:
                await self.kill_scheduler()
            elif moment > 10:
                self.move_job()
        self.slurm.losses = 0.0
        for _ in range(400):
            if all(task.state in ("success", "failed") for task in self.tasks):
                break
            self.move_job()
            await asyncio.sleep(5)
            self.sync()
        assert {task.leg: task.state for task in self.tasks if task.state not in ("success", "failed")} == {}
        # One job for each key: an array counts by its elements.
        ids = Counter(
            str(key) for job in self.slurm.jobs() for key in [key_of(self._name_of(job), job)] if key is not None
        )
        assert {key: count for key, count in ids.items() if count > 1} == {}
        for task in (*self.work, *self.keeper.keeper._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _name_of(self, job: Any) -> str:
        return next(one.name for one in self.slurm.queue if one.id == job)


async def played(seed: int) -> int:
    story = Story(seed)
    await story.play()
    return story.kills


@pytest.mark.parametrize("first", range(0, STORIES, 10))
def test_each_try_has_one_job_and_one_true_end(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, first + 10):
        try:
            assert run_without_waiting(played(seed), monkeypatch) == KILLS
        except BaseException as error:
            raise AssertionError(f"story {seed}: {error!r}") from error
