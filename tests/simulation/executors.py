"""Stories of an executor: schedulers, nodes, slurmctld and jobs die; each try runs once, and ends truly."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from sqlalchemy.util.concurrency import await_only, greenlet_spawn

from airflow_provider_soperator.executors import runner
from airflow_provider_soperator.executors.environment import PrepareFolder
from airflow_provider_soperator.executors.options import ExecutorOptions
from airflow_provider_soperator.executors.task_jobs import ExecutorFolder
from airflow_provider_soperator.slurm.files import ReadPieces, RemoveFiles, UnpackFiles, WorkingFolder
from airflow_provider_soperator.slurm.requests import Request
from tests.shared_files import carried_out
from tests.simulation.clock import Process, outside
from tests.simulation.schedulers import ADOPTABLE, Instance, Scheduler, in_one_loop
from tests.simulation.slurm import OURS, THEIRS, Cluster, Fate, Habits, Part, SlurmJob
from tests.simulation.story import Story

HOME = PurePosixPath("/shared")
ROOT = str(HOME / ExecutorOptions().root)
ENDS = ("success", "failed")
#: How jobs end that do not end by themselves. One that an administrator requeues begins again.
DEATHS = ("CANCELLED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT", "REQUEUED")
TOO_LONG = 6 * 3600.0


class Nodes(Cluster):
    """A cluster with a shared folder, whose jobs run tasks."""

    def __init__(self, habits: Habits, dice: random.Random, world: World) -> None:
        super().__init__(habits, dice, world)
        self.world = world
        self.files: dict[str, bytes] = {}

    async def _run(self, request: Request[Any], process: Process) -> Any:
        if isinstance(request, PrepareFolder):
            await asyncio.sleep(self._dice.choice((1.0, 1.0, 100.0)))
            return ExecutorFolder(ROOT, "/venv/bin/python")
        if isinstance(request, WorkingFolder):
            return HOME
        if isinstance(request, (ReadPieces, RemoveFiles, UnpackFiles)):
            answer = carried_out(request, self.files)
            self.world.learn_legs(self.files)
            return answer
        return await super()._run(request, process)

    async def _live(self, job: SlurmJob) -> None:
        [part] = job.parts
        await asyncio.sleep(job.fate.wait)
        if job.user != OURS:
            return await super()._live(job)
        while part.state == "PENDING" and not job.is_forgotten:
            if not self.is_up:
                await asyncio.sleep(5)
                continue
            part.state, part.reason, part.started = "RUNNING", "", time.monotonic()
            self._tell_accounting(part, self.habits.start_lag)
            end, part.code = await self.world.run(job, part)
            await self._controller()
            if part.state == "RUNNING" and end != "REQUEUED":
                self._end(job, part, end)
            elif part.state == "RUNNING":
                part.state, part.reason, job.fate = "PENDING", "BeginTime", Fate(0.0, job.fate.seconds)
                self._tell_accounting(part, self.habits.start_lag)
                await asyncio.sleep(20)


@dataclass
class World(Story):
    """A story that is under way, and its rules."""

    kind = "--executor "
    seed: int
    story: list[tuple[float, str, tuple[object, ...]]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self._fates = random.Random(f"{self.seed}/fates")
        self.tasks = [
            Instance(index, self._fates.choice((0, 0, 1, 2)), self._fates.choice((1, 1, 1, 2, 3)))
            for index in range(self.dice.choice((2, 4, 8)))
        ]
        self.config = {"share": 3} if self.dice.random() < 0.3 else {}
        #: Tasks that run on a node, and rows that a scheduler has locked.
        self.active: list[Instance] = []
        self.locked: list[Instance] = []
        #: The legs of each key, and the tasks of those.
        self.legs: dict[str, list[str]] = {}
        self.owners: dict[str, UUID] = {}
        #: Tries whose heartbeats may be missed: their jobs were requeued, or slurmctld has forgotten them.
        self.excused: set[UUID] = set()
        #: Legs of schedulers that have died since: they may not have removed the files.
        self.orphaned: set[str] = set()
        self.schedulers: list[Scheduler] = []
        self.well_since = 0.0

    def uuid(self) -> UUID:
        return UUID(int=self.dice.getrandbits(128), version=4)

    # ----------------------------------------------------------------------------------------------------- the story

    def note(self, text: str, *values: object) -> None:
        said = tuple(value if isinstance(value, (str, int, float)) else str(value) for value in values)
        self.story.append((time.monotonic() - 1000, text, said))

    def told(self) -> list[str]:
        return [f"{when:9.1f}  {text % values if values else text}" for when, text, values in self.story]

    def _patched(self) -> AbstractContextManager[None]:
        return in_one_loop(self)

    async def _play(self) -> None:
        self.cluster = Nodes(self._habits(), random.Random(f"{self.seed}/slurm"), self)
        self.note("%s", self.cluster.habits)
        for _ in range(self.dice.choice((1, 1, 2))):
            self._start()
        events = [outside(self._event()) for _ in range(self.dice.choice((4, 8, 12)))]
        await asyncio.wait(events)
        for task in events:
            if error := task.exception():
                raise error
        while any(one.state not in ENDS for one in self.tasks) and not self.broken:
            await asyncio.sleep(10)
            for scheduler in self.schedulers:
                if scheduler.life.done() and scheduler.process.is_alive:
                    await scheduler.life
            if time.monotonic() > TOO_LONG:
                waiting = [str(one) for one in self.tasks if one.state not in ENDS]
                self._break("everything comes to an end", ", ".join(waiting))
        # slurmctld may have forgotten a job that accounting has.
        await asyncio.sleep(500)
        self._check_rest()
        for scheduler in self.schedulers:
            scheduler.process.die()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    def _start(self) -> None:
        self.schedulers.append(made := Scheduler(self, f"scheduler {len(self.schedulers) + 1}"))
        self.note("%s begins", made.process.name)

    def _habits(self) -> Habits:
        pick = self.dice.choice
        return Habits(
            min_job_age=pick((30.0, 300.0)),
            start_lag=self.dice.uniform(0.1, 5),
            end_lag=pick((1.0, 5.0, 60.0)),
            skew=self.dice.uniform(-3000, 3000) if self.dice.random() < 0.3 else 0.0,
            cuts=pick((0.0, 0.0, 0.02, 0.1)),
            late_replies=pick((0.0, 0.0, 0.2)),
            slowness=pick((0.2, 0.2, 2.0)),
        )

    def fate_of(self, name: str) -> Fate:
        pick = self._fates.choice
        end = pick(DEATHS) if self._fates.random() < 0.4 else "COMPLETED"
        return Fate(pick((0.0, 2.0, 40.0, 200.0)), pick((1.0, 1.0, 20.0, 90.0)), end)

    async def _event(self) -> None:
        await asyncio.sleep(self.dice.choice((self.dice.uniform(0, 30), self.dice.uniform(0, 300))))
        events = (self._scheduler_dies, self._scheduler_dies, self._scheduler_dies, self._scheduler_hangs)
        others = (self._controller_killed, self._controller_killed, self._away, self._cleared, self._marked)
        happens = self.dice.choice((*events, *others))
        self.counts[happens.__name__.strip("_")] += 1
        await happens()

    async def _scheduler_dies(self) -> None:
        """In the middle of whatever it does, or as it is told to; and another one begins."""
        alive = [one for one in self.schedulers if one.process.is_alive]
        if not alive:
            return
        scheduler = self.dice.choice(alive)
        self.note("%s ends", scheduler.process.name)
        self.orphaned |= scheduler.executor._books._open.keys() | {*scheduler.executor.keeper.ended}
        self.orphaned |= {one.leg for one in self.tasks if one.owner is scheduler}
        if self.dice.random() < 0.2:
            scheduler.life.cancel()
            await asyncio.wait({scheduler.process.start(greenlet_spawn(scheduler.executor.end))})
        scheduler.process.die()
        await asyncio.sleep(self.dice.uniform(0, 60))
        self._start()

    async def _scheduler_hangs(self) -> None:
        """A database that does not answer stops it for a while, and others take it for dead."""
        alive = [one for one in self.schedulers if one.process.is_alive]
        if not alive:
            return
        scheduler = self.dice.choice(alive)
        self.note("%s hangs", scheduler.process.name)
        # Its tasks in the loop go on.
        scheduler.hangs_until = time.monotonic() + self.dice.uniform(10, 120)
        if len(alive) == 1:
            self._start()

    async def _controller_killed(self) -> None:
        if not self.cluster.is_up:
            return
        self.note("slurmctld is killed")
        self.cluster.kill_controller()
        for job in self.cluster.jobs:
            if job.is_forgotten and job.key:
                self.excused |= {self.owners[leg] for leg in self.legs.get(job.key.text, ())}
        await asyncio.sleep(self.dice.uniform(1, self.dice.choice((5.0, 60.0, 400.0))))
        self.cluster.is_up, self.well_since = True, time.monotonic()
        self.note("slurmctld is back")
        for _ in range(self.dice.randrange(4)):
            # Others submit, too, under any name, and get the numbers that were given out before.
            self.cluster.submit(self.dice.choice(["other", *(job.name for job in self.cluster.jobs)]), THEIRS)

    async def _away(self) -> None:
        what = self.dice.choice(("is_up", "is_reachable", "is_accounting_up"))
        if not getattr(self.cluster, what):
            return
        setattr(self.cluster, what, False)
        self.note("%s is False", what)
        await asyncio.sleep(self.dice.uniform(1, self.dice.choice((5.0, 60.0, 400.0))))
        setattr(self.cluster, what, True)
        self.well_since = time.monotonic()
        self.note("%s is True", what)

    async def _cleared(self) -> None:
        one = self.dice.choice(self.tasks)
        if one in self.locked:
            return
        self.note("%s is cleared", one)
        if one.state == "running":
            one.state = "restarting"
        elif one.state != "restarting":
            one.state, one.leg, one.id, one.ready = None, "", self.uuid(), time.monotonic() + 2

    async def _marked(self) -> None:
        one = self.dice.choice(self.tasks)
        if one not in self.locked:
            self.note("%s is marked as failed", one)
            one.state = "failed"

    # ---------------------------------------------------------------------------------------------- tasks on nodes

    def learn_legs(self, files: Mapping[str, bytes]) -> None:
        """Note the legs of keys, and their tasks, which are known when the files are gone, too."""
        for path, data in files.items():
            if not data:
                # It has no more than a name.
                continue
            leg, said = path.rpartition("/")[2], json.loads(data)
            legs = self.legs.setdefault(said["key"], [])
            legs += [leg] if leg not in legs else []
            self.owners[leg] = UUID(said["workload"]["ti"]["id"])

    async def run(self, job: SlurmJob, part: Part) -> tuple[str, int]:
        """What becomes of a job on its node: its state and exit code."""
        assert job.key
        runs = [outside(self._run_task(leg, job)) for leg in self.legs[job.key.text]]
        dies = None if job.fate.end == "COMPLETED" else time.monotonic() + self.dice.uniform(0, job.fate.seconds + 8)
        while not all(one.done() for one in runs) and part.state == "RUNNING" and not job.is_forgotten:
            if dies and time.monotonic() > dies:
                break
            await asyncio.sleep(0.5)
        is_through = all(one.done() for one in runs)
        for one in runs:
            one.cancel()
        await asyncio.wait(runs)
        if is_through and not (dies and self.dice.random() < 0.3):
            codes = [one.result() for one in runs]
            wrong = [code for code in codes if code not in (0, runner.NOT_WANTED)]
            code = wrong[0] if wrong else runner.NOT_WANTED if {*codes} == {runner.NOT_WANTED} else 0
            return ("FAILED" if code else "COMPLETED"), code
        if dies:
            self.counts[job.fate.end] += 1
            self.note("  %s is %s", job, job.fate.end)
        if job.fate.end == "REQUEUED":
            self.excused |= {self.owners[leg] for leg in self.legs[job.key.text]}
        if job.fate.end == "NODE_FAIL":
            # slurmctld misses a node after a while.
            await asyncio.sleep(self.dice.uniform(5, 40))
        return job.fate.end, 1

    async def _run_task(self, leg: str, job: SlurmJob) -> int:
        """The runner, and the supervisor of a task."""
        await asyncio.sleep(self.dice.uniform(0.5, 5))
        if f"{ROOT}/tasks/{leg}" not in self.cluster.files:
            if any(one.leg == leg and one.state == "queued" for one in self.tasks):
                self._break("what starts a task is there as long as the task is wanted", leg)
            return runner.GONE
        while any(one.id == self.owners[leg] for one in self.locked):
            await asyncio.sleep(0.5)
        if f"{ROOT}/tasks/{leg}{runner.WITHDRAWN}" in self.cluster.files:
            return runner.NOT_WANTED
        found = [one for one in self.tasks if one.id == self.owners[leg]]
        if not found or found[0].state not in ("queued", "restarting"):
            return runner.NOT_WANTED
        [one] = found
        if one in self.active:
            self._break("a try runs once", f"{one} in {job}")
        # A job that an administrator requeues may begin with an earlier leg again.
        if one.leg != leg and one.id not in self.excused:
            self._break("a job starts the leg that it was submitted for", f"{one} in {job}")
        self.counts["started"] += 1
        self.note("  %s begins in %s", one, job)
        one.state, one.heard = "running", time.monotonic()
        begun = one.id
        self.active.append(one)
        try:
            until = time.monotonic() + job.fate.seconds
            while time.monotonic() < until and one.state == "running" and one.id == begun:
                await asyncio.sleep(1)
                one.heard = time.monotonic()
        finally:
            self.active.remove(one)
        if one.state == "running" and one.id == begun:
            self._tell_state(one)
        # Its log is uploaded.
        await asyncio.sleep(self.dice.uniform(0, 3))
        return 0

    def _tell_state(self, one: Instance) -> None:
        one.ready = time.monotonic() + self.dice.uniform(0, 10)
        if one.legs > 1:
            # It is rescheduled, or deferred, and goes on in the same try.
            one.legs -= 1
            one.state = "scheduled"
        elif self.dice.random() < 0.2:
            self.fail(one)
        else:
            one.state = "success"
        self.note("  %s has told its state", one)

    def fail(self, one: Instance) -> None:
        is_retried = one.state == "restarting" or one.try_number <= one.retries
        one.state, one.ready = None if is_retried else "failed", time.monotonic() + self.dice.uniform(1, 20)

    # ----------------------------------------------------------------------------------------------------- the rules

    def states(self, legs: Collection[str]) -> dict[str, str]:
        return {one.leg: one.state for one in self.tasks if one.leg in legs and one.state in ADOPTABLE}  # type: ignore[misc]

    def _jobs_of(self, leg: str) -> list[SlurmJob]:
        keys = [key for key, legs in self.legs.items() if leg in legs]
        return [job for job in self.cluster.jobs if job.user == OURS and job.key and job.key.text in keys]

    def schedule_again(self, legs: Collection[str]) -> None:
        while any(one.leg in legs for one in self.locked):
            await_only(asyncio.sleep(0.5))
        for one in self.tasks:
            if one.leg in legs and one.state == "queued":
                self.note("  %s is put back", one)
                self.counts["put_back"] += 1
                # A scheduler that hangs may submit it afterwards: that job does not start it.
                for job in self._jobs_of(one.leg):
                    is_there = not job.is_forgotten and job.submitted < one.adopted
                    if is_there and job.key and not self.cluster.is_withdrawn(job.key):
                        self._break("what has a job is not run again", f"{one}: {job}")
                one.state, one.leg, one.owner = "scheduled", "", None

    def ended_by_executor(self, one: Instance, state: str, said: str) -> None:
        self.note("  %s is %s: %s", one, state, said)
        self.counts[str(state)] += 1
        jobs = [job for job in self._jobs_of(one.leg) if not job.is_forgotten]
        if one.state == "scheduled":
            self._break("no end is that of another leg", f"{one}: {said}")
        if one in self.active:
            self._break("no end is false", f"{one} runs: {said}")
        if not self._jobs_of(one.leg):
            self._break("what had no job has not failed", f"{one}: {said}")
        if any(not job.is_finished for job in jobs):
            self._break("no end is false", f"{one}: {', '.join(map(str, jobs))}: {said}")
        for job in jobs:
            if not any(part.state in said for part in job.parts):
                self._break("an end is told by Slurm's name", f"{one}: {job}: {said}")
        if (state == "success") != (one.state == "restarting"):
            self._break("what was cleared has not failed, and all else has", f"{one}: {state}")
        self.fail(one)

    def missed(self, one: Instance) -> None:
        self.note("  no heartbeats of %s", one)
        if one.id not in self.excused and self.cluster.is_well and self.well_since < one.heard:
            self._break("no end is missed", str(one))
        self.fail(one)

    def asked(self, request: Request[Any], process: Process, alike: int) -> None: ...

    def answered(self, request: Request[Any], process: Process, answer: Any) -> None: ...

    def submitted(self, job: SlurmJob) -> None:
        self.counts["jobs"] += 1
        others = [one for one in self.cluster.jobs if one.key == job.key and one.user == OURS and not one.is_forgotten]
        if others != [job]:
            self._break("a key has one job", ", ".join(map(str, others)))

    def cancelled(self, job: SlurmJob, process: Process) -> None:
        legs = self.legs[job.key.text] if job.key else []
        # What an adoption has not found is run again, or has failed: a dead scheduler may have begun to submit it.
        wanted = {leg for leg in self.states(legs) if not any(one.leg == leg for one in self.locked)}
        if wanted and time.monotonic() - job.submitted > 10:
            self._break("nobody cancels what is wanted", f"{process.name}: {job}: {wanted}")

    def _check_rest(self) -> None:
        for job in self.cluster.jobs:
            if job.user == OURS and not job.is_finished and job.key and not self.cluster.is_withdrawn(job.key):
                self._break("no job is left", str(job))
        left = {path.rpartition("/")[2] for path, data in self.cluster.files.items() if data} - self.orphaned
        if left and not self.cluster.habits.cuts:
            self._break("no token is left", ", ".join(sorted(left)))
