"""Schedulers of Airflow, each with an executor: the executor is the provider's own, and the loop as in Airflow 3.3."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock
from uuid import UUID

from airflow.executors.executor_utils import ExecutorName
from airflow.executors.workloads import ExecuteTask
from airflow.models.taskinstancekey import TaskInstanceKey
from async_timeout import timeout
from sqlalchemy.util.concurrency import await_only, greenlet_spawn

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.executors import slurm as executor_module
from airflow_provider_soperator.executors.job_keeper import JobKeeper
from airflow_provider_soperator.executors.options import ExecutorOptions
from airflow_provider_soperator.executors.slurm import SlurmExecutor
from tests.simulation.clock import PROCESS, Process
from tests.simulation.slurm import Way

if TYPE_CHECKING:
    from tests.simulation.executors import World

ADOPTABLE = ("queued", "running", "restarting")
#: Seconds after which Airflow takes a scheduler for dead, looks for tasks of such, and misses heartbeats of a task.
HEALTH, ORPHANS, HEARTBEAT = 30.0, 60.0, 300.0


@dataclass(eq=False)
class Instance:
    """A row of Airflow's table of task instances."""

    index: int
    retries: int
    #: How often it is rescheduled, or deferred, before it ends.
    legs: int
    id: UUID | None = None
    try_number: int = 0
    state: str | None = None
    leg: str = ""
    owner: Scheduler | None = None
    #: When a heartbeat was last seen, and from when on it can be queued.
    heard: float = 0.0
    ready: float = 0.0
    #: When another scheduler has taken it on.
    adopted: float = 0.0
    is_starting: bool = True

    @property
    def key(self) -> TaskInstanceKey:
        return TaskInstanceKey("dag", f"t{self.index % 3}", "run", self.try_number, self.index)

    def __str__(self) -> str:
        return f"task {self.index} ({self.state}, try {self.try_number}, {self.leg})"


class Scheduler:
    """A process of Airflow's with an executor, and the loop around it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.process = world, Process(name, None)
        self.seen = self.adopted_at = time.monotonic()
        self.hangs_until = 0.0
        self.executor = executor = SlurmExecutor()
        executor.name = ExecutorName("airflow_provider_soperator.executors.SlurmExecutor", "SlurmExecutor")
        log: Any = StoryLog(world)
        # What it signs is read by nobody.
        signing = SimpleNamespace(generate=lambda *_, **__: "token")
        vars(executor).update(_log=log, jwt_generator=signing, _token_life=1.0)
        client = AsyncSlurmClient(Way(world.cluster, self.process))

        @contextlib.asynccontextmanager
        async def lend(_: str) -> AsyncIterator[AsyncSlurmClient]:
            yield client

        options = ExecutorOptions(python="/venv/bin/python")
        executor._keeper = JobKeeper(options, {}, executor._news.put, log, lend)  # type: ignore[arg-type]
        self.life = self.process.start(self._live())

    async def _live(self) -> None:
        await self._adopt()
        while True:
            await self._pause(0.5, 3)
            self.seen = time.monotonic()
            self._queue()
            await greenlet_spawn(self.executor.heartbeat)
            await self._pause(0, 0.5)
            self._take_events()
            self._miss_heartbeats()
            if time.monotonic() - self.adopted_at > ORPHANS:
                await self._adopt()

    async def _pause(self, least: float, most: float) -> None:
        await asyncio.sleep(max(self.world.dice.uniform(least, most), self.hangs_until - time.monotonic()))

    def _queue(self) -> None:
        """Take up what is due, or leave it to another scheduler."""
        now = time.monotonic()
        due = [one for one in self.world.tasks if one.state in (None, "scheduled") and one.ready <= now]
        for one in due if self.world.dice.random() < 0.7 else ():
            if one.state is None:
                one.id, one.try_number = self.world.uuid(), one.try_number + 1
            one.leg, one.state, one.owner = str(self.world.uuid()), "queued", self
            ti = one.key._asdict() | {
                **{"id": one.id, "dag_version_id": one.id, "external_executor_id": one.leg},
                **{"executor_config": self.world.config, "pool_slots": 1, "queue": "default", "priority_weight": 1},
            }
            said = {"token": "t", "ti": ti, "dag_rel_path": "d", "bundle_info": {"name": "b"}, "log_path": None}
            self.executor.queue_workload(ExecuteTask.model_validate(said), session=None)  # type: ignore[arg-type]

    def _take_events(self) -> None:
        for key, (state, said) in self.executor.get_event_buffer().items():
            for one in self.world.tasks:
                is_due = one.key == key and one.state in (*ADOPTABLE, "scheduled") and one.owner is self
                known: Any = one
                if is_due and not self.executor.has_task(known):
                    self.world.ended_by_executor(one, state, str(said))

    def _miss_heartbeats(self) -> None:
        for one in self.world.tasks:
            is_silent = one not in self.world.active and time.monotonic() - one.heard > HEARTBEAT
            if is_silent and one.owner is self and one.state in ("running", "restarting"):
                self.world.missed(one)

    async def _adopt(self) -> None:
        self.adopted_at = time.monotonic()
        is_dead = {
            one.owner: not one.owner.process.is_alive or one.owner.seen < time.monotonic() - HEALTH
            for one in self.world.tasks
            if one.owner
        }
        orphans = [
            one
            for one in self.world.tasks
            if one.state in ADOPTABLE and one.owner is not self and is_dead[one.owner] and one not in self.world.locked
        ]
        # Others lock some of the rows, which it skips: the API server for a task that starts, or who clears one.
        orphans = [one for one in orphans if self.world.dice.random() < 0.8]
        if not orphans:
            return
        # Airflow locks these rows meanwhile.
        self.world.locked += orphans
        try:
            tis = [SimpleNamespace(id=one.id, key=one.key, external_executor_id=one.leg) for one in orphans]
            rejected = await greenlet_spawn(self.executor.try_adopt_task_instances, tis)  # type: ignore[arg-type]
        finally:
            self.world.locked = [one for one in self.world.locked if one not in orphans]
        if not self.process.is_alive:
            return
        # What is not adopted is a new try, though it may have a job.
        assert not rejected
        for one in orphans:
            self.world.counts["adopted"] += 1
            one.owner, one.adopted = self, self.adopted_at


class Begun:
    """What is begun in the loop of a scheduler, for its main thread."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.cancel = task.cancel

    def result(self, seconds: float) -> Any:
        async def result() -> Any:
            async with timeout(seconds):
                return await asyncio.shield(self._task)

        return await_only(result())


class StoryLog:
    """The log of a scheduler, as a part of the story."""

    def __init__(self, world: World) -> None:
        self._world = world

    def info(self, text: str, *values: object, **_: object) -> None:
        self._world.note(f"    {text}", *values)

    warning = error = info

    def debug(self, *_: object) -> None: ...

    def exception(self, text: str, *values: object) -> None:
        import traceback

        self._world._break("nothing is raised", f"{text % values}\n{traceback.format_exc()}")


@contextlib.contextmanager
def in_one_loop(world: World) -> Iterator[None]:
    """Let threads be tasks of the story, and its world be Airflow's database."""

    async def inline(function: Callable[..., Any], *words: Any) -> Any:
        await asyncio.sleep(0.02)
        return function(*words)

    def begin(work: Coroutine[Any, Any, Any]) -> Begun:
        process = PROCESS.get()
        assert process
        return Begun(process.start(work))

    with (
        mock.patch.object(SlurmExecutor, "_loop", SimpleNamespace(begin=begin)),
        mock.patch.object(executor_module, "_states", world.states),
        mock.patch.object(executor_module, "_schedule_again", world.schedule_again),
        mock.patch.object(asyncio, "to_thread", inline),
        mock.patch.object(time, "sleep", lambda seconds: await_only(asyncio.sleep(seconds))),
    ):
        yield
