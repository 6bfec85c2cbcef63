"""One story: what a seed makes of tasks, their cluster and its faults, and the rules that hold whatever happens."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.slurm.job_failures import JobError
from airflow_provider_soperator.slurm.requests import Accounting, CancelJobs, ListJobs, Request
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce
from airflow_provider_soperator.slurm.submission_keys import strip_key
from tests.simulation.airflow import (
    ENDS,
    HEARTBEAT_TIMEOUT,
    Airflow,
    Instance,
    Spec,
    WorkerDied,
    pipeline_run,
    provider_on,
)
from tests.simulation.clock import Process, outside
from tests.simulation.slurm import OURS, STRICT, THEIRS, Bucket, Cluster, Fate, Habits, SlurmJob
from tests.simulation.story import Story

#: What the provider does not promise yet: stories leave it out, or excuse what comes of it. Each name that is taken
#: out of here is held against the rules from then on.
NOT_YET = frozenset(
    {
        # What Airflow tells of clears: no Airflow here has a state of tasks.
        "cleared in a worker",
        "retries that change",
        # Lives of submissions.
        "no triggerer",
        "no worker",
        "cleared while it submits",
        "marked before its turn",
    }
)

#: Virtual seconds within which the job of a task that was ended is gone, once the cluster is well.
GONE_WITHIN = 180.0
#: Seconds within which a triggerer hears that a task was ended.
HEARD_WITHIN = 5.0
#: Virtual seconds after which a story is not about waiting any more.
TOO_LONG = 12 * 3600.0
#: Requests of one process in a minute: polls are a second apart at least, and of lookups one is under way at a time as
#: long as tasks that were cleared together end and begin again, however many they are.
MOST_POLLS = 70
MOST_LOOKUPS = 30
#: Virtual seconds within which they all have begun again.
BEGUN_WITHIN = 10.0


@dataclass
class World(Story):
    """A story that is under way, and its rules."""

    seed: int
    not_yet: frozenset[str] = NOT_YET
    story: list[tuple[float, str, tuple[object, ...]]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self._fates = random.Random(f"{self.seed}/fates")
        #: Which task a submission key belongs to, and how often that had been cleared.
        self.keys: dict[str, tuple[Instance, int]] = {}
        #: Keys of submissions whose answer has reached a process, and when.
        self._answered: dict[str, float] = {}
        self._gaps: dict[Instance, set[str]] = {}
        #: Tasks that were marked, and when, whose workers were killed before they could log in to end their jobs.
        self._unheard: set[tuple[Instance, float]] = set()
        #: When a process last submitted or polled while the cluster was well.
        self._reached = 0.0
        #: Since when one can log in, and since when one could not the last time.
        self._reachable_since = self._unreachable_since = 0.0
        #: When something of the cluster was away, and when a process of Airflow's was.
        self._away: list[tuple[float, float]] = []
        self._unwatched: list[tuple[float, float]] = []
        self._asked: dict[tuple[Process, str], deque[float]] = {}
        #: When all tasks were cleared at once.
        self._all_cleared: list[float] = []
        self.airflows: list[Airflow] = []

    # ----------------------------------------------------------------------------------------------------- the story

    def note(self, text: str, *values: object) -> None:
        # Things change, so that they are told as they are now.
        said = tuple(value if isinstance(value, (str, int, float)) else str(value) for value in values)
        self.story.append((time.monotonic() - 1000, text, said))

    def told(self) -> list[str]:
        return [f"{when:9.1f}  {text % values if values else text}" for when, text, values in self.story]

    async def _play(self) -> None:
        self.cluster = Cluster(self._habits(), random.Random(f"{self.seed}/slurm"), self)
        self.note("%s", self.cluster.habits)
        with provider_on(self.cluster, self):
            begun = [outside(self._begin(run, self.dice.uniform(0, 20))) for run in self._runs()]
            events = [outside(self._event()) for _ in range(self.dice.choice((0, 1, 1, 2, 3, 4, 6)))]
            await asyncio.wait([*begun, *events])
            while lives := [one.life for one in self._all() if one.life and not one.life.done()]:
                await asyncio.wait(lives, timeout=600)
                if self.broken or time.monotonic() > TOO_LONG:
                    break
            for one in self._all():
                if one.state not in ENDS:
                    self._break("everything comes to an end", f"{one} is still {one.state}")
            if not self.broken:
                await asyncio.sleep(2 * GONE_WITHIN)
                self._check_rest()
            for task in begun + events:
                if task.done() and task.exception():
                    raise task.exception()  # type: ignore[misc]
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)

    def _all(self) -> list[Instance]:
        return [one for airflow in self.airflows for one in airflow.instances]

    async def _begin(self, run: list[Instance], pause: float) -> None:
        await asyncio.sleep(pause)
        for one in run:
            one.airflow.add(one)

    # -------------------------------------------------------------------------------------------------- what is drawn

    def _habits(self) -> Habits:
        roll, pick = self.dice.random, self.dice.choice
        has_accounting = roll() < 0.8
        return Habits(
            min_job_age=pick((5.0, 30.0, 300.0)) if has_accounting else 300.0,
            has_accounting=has_accounting,
            start_lag=self.dice.uniform(0.1, 5),
            end_lag=pick((1.0, 5.0, 60.0, 200.0)),
            skew=self.dice.uniform(-3000, 3000) if roll() < 0.3 else 0.0,
            # Under a limit that is as strict nobody polls as often as a cluster without accounting forgets.
            rate_limit=pick((*[None] * 8, STRICT, Bucket(20, STRICT.period / 60, 60))) if has_accounting else None,
            is_root=roll() < 0.3,
            cuts=pick((0.0, 0.0, 0.0, 0.02, 0.1)),
            late_replies=pick((0.0, 0.0, 0.0, 0.2)),
            odd_rows=roll() < 0.2,
            slowness=pick((0.2, 0.2, 0.2, 2.0, 10.0)),
        )

    def _runs(self) -> list[list[Instance]]:
        pick = self.dice.choice
        made: list[list[Instance]] = []
        is_equal = self.dice.random() < 0.5
        for number in range(pick((1, 1, 2))):
            airflow = Airflow("AB"[number], random.Random(f"{self.seed}/airflow {number}"), self)
            self.airflows.append(airflow)
            for place in range(pick((1, 2, 2, 3))):
                spec = Spec(
                    mode=pick(("worker", "deferred", "resumed", "triggerer")),
                    retries=pick((0, 0, 1, 2)),
                    array=pick((None, None, None, "0-3")),
                    poll_interval=pick((10.0, 30.0, 60.0, 900.0)),
                    name=pick((None, None, None, "données 1")),
                )
                width = 12 if self.dice.random() < 0.15 else 1
                dag = f"dag{place}" if is_equal else f"dag{place}{airflow.name}"
                made += [[Instance(airflow, spec, dag, "run", index if width > 1 else -1)] for index in range(width)]
            if self.dice.random() < 0.1:
                made.append(pipeline_run(airflow, f"pipe{airflow.name}", "run", self.dice.random() < 0.5))
        return made

    def fate_of(self, name: str) -> Fate:
        pick = self._fates.choice
        end = pick(("COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "NODE_FAIL"))
        return Fate(pick((0.0, 0.0, 2.0, 40.0)), pick((1.0, 1.0, 20.0, 20.0, 90.0, 90.0, 400.0, 400.0, 1500.0)), end)

    async def _event(self) -> None:
        """Something happens: early, when jobs are submitted, or later."""
        await asyncio.sleep(self.dice.choice((self.dice.uniform(0, 40), self.dice.uniform(0, 500))))
        happens = self.dice.choice(
            (
                *(self._controller_killed, self._controller_killed, self._controller_away, self._login_node_away),
                *(self._accounting_away, self._triggerer_ends, self._triggerer_ends, self._worker_dies),
                *(self._marked, self._marked, self._cleared, self._cleared, self._stranger, self._made_again),
            )
        )
        self.counts[happens.__name__] += 1
        await happens()

    async def _controller_killed(self) -> None:
        if self.cluster.is_up:
            self.note("slurmctld is killed")
            self.cluster.kill_controller()
            await self._back("is_up", "slurmctld", self.dice.choice((5.0, 60.0, 400.0)))
            forgotten = [job.name for job in self.cluster.jobs if job.is_forgotten]
            for _ in range(self.dice.randrange(4)):
                # Others submit, too, under any name, and get the numbers that were given out before.
                self.cluster.submit(self.dice.choice(["other", *forgotten]), THEIRS)

    async def _controller_away(self) -> None:
        self.cluster.is_up = False
        self.note("slurmctld is away")
        await self._back("is_up", "slurmctld", self.dice.choice((5.0, 60.0, 600.0)))

    async def _login_node_away(self) -> None:
        self.cluster.is_reachable = False
        self._unreachable_since = time.monotonic()
        self.note("the login node is away")
        await self._back("is_reachable", "the login node", self.dice.choice((2.0, 60.0, 600.0)))
        self._reachable_since = time.monotonic()

    async def _accounting_away(self) -> None:
        self.cluster.is_accounting_up = False
        self.note("slurmdbd is away")
        await self._back("is_accounting_up", "slurmdbd", self.dice.choice((5.0, 60.0, 600.0)))

    async def _back(self, what: str, name: str, longest: float) -> None:
        since = time.monotonic()
        self._away.append((since, float("inf")))
        await asyncio.sleep(self.dice.uniform(1, longest))
        setattr(self.cluster, what, True)
        self._away.remove((since, float("inf")))
        self._away.append((since, time.monotonic()))
        self.note("%s is back", name)

    async def _triggerer_ends(self) -> None:
        airflow = self.dice.choice(self.airflows)
        if airflow.triggerer.is_alive:
            pause = self.dice.uniform(0.5, self.dice.choice((2, 60, 400)))
            self._unwatched.append((time.monotonic(), time.monotonic() + pause + 30))
            ending = outside(airflow.restart_triggerer(pause))
            if self.dice.random() < 0.3:
                await self._marked()
            await ending

    async def _worker_dies(self) -> None:
        if one := self._any(lambda one: one.worker):
            self._unwatched.append((time.monotonic(), time.monotonic() + HEARTBEAT_TIMEOUT + 120))
            one.airflow.kill_worker(one)

    async def _marked(self) -> None:
        # Often one that has just begun.
        begun_since = time.monotonic() - self.dice.choice((5, 15, TOO_LONG))
        if one := self._any(lambda one: one.state not in ENDS and one.try_since > begun_since):
            waits = one.state is None or any(other.state not in ENDS for other in one.upstream)
            if one.task and (one is one.siblings[0] or waits):
                self.gap("marked before its turn", one)
            one.airflow.mark(one, self.dice.choice(("failed", "failed", "success")))
            self._watch_jobs_of(one)

    async def _cleared(self) -> None:
        is_wide = self.dice.random() < 0.2
        if is_wide:
            self._all_cleared.append(time.monotonic())
        for one in self._all() if is_wide else filter(None, [self._any(lambda one: True)]):
            may = one.state in ENDS or one.state in ("running", "deferred")
            is_running = any(other.state == "running" for other in one.downstream)
            if may and not (is_running and "cleared in a worker" in self.not_yet):
                # One that has not begun has nobody to end its job until its turn comes, unless all are submitted anew.
                ended = [each for each in one.downstream if each.state is not None or one is one.siblings[0]]
                one.airflow.clear(one)
                for cleared in ended:
                    self._watch_jobs_of(cleared)
                if "retries that change" not in self.not_yet:
                    # A new version of the DAG comes before the task begins again.
                    one.retries += 1

    async def _stranger(self) -> None:
        """Names, with their keys, are there for everybody to see and to use."""
        if self.cluster.is_up and self.cluster.jobs:
            self.cluster.submit(self.dice.choice(self.cluster.jobs).name, THEIRS)

    async def _made_again(self) -> None:
        """A run is deleted and made again."""
        one = self._any(lambda one: one.state in ENDS and one.task is None)
        if one is None:
            return
        if self.dice.random() < 0.5:
            self.note("the run of %s is deleted, and made again", one)
            one.airflow.add(Instance(one.airflow, one.spec, one.dag_id, one.run_id, one.map_index))

    def _any(self, fits: Any) -> Instance | None:
        some = [one for one in self._all() if fits(one)]
        return self.dice.choice(some) if some else None

    # ----------------------------------------------------------------------------------------------------- the rules

    def gap(self, name: str, one: Instance) -> None:
        self._gaps.setdefault(one, set()).add(name)

    def _is_excused(self, one: Instance) -> bool:
        return any(self._gaps.get(other, set()) & self.not_yet for other in one.siblings)

    def escalated(self, one: Instance) -> None:
        """Its worker is killed before it has done what it was told: without a login there is no withdrawal."""
        could_not = not self.cluster.is_reachable or self._reachable_since > one.ordered_at
        if one.state in ENDS and could_not:
            self._unheard.add((one, one.ordered_at))

    def triggerer_ended(self, one: Instance) -> None:
        """As of a worker, if nobody could log in since its task was ended; it hears of that within seconds."""
        is_away = not self.cluster.is_reachable and self._unreachable_since <= one.ordered_at + HEARD_WITHIN
        if one.state in ENDS and is_away:
            self._unheard.add((one, one.ordered_at))

    def _is_left(self, job: SlurmJob, one: Instance, ordered_at: float) -> bool:
        """As the docs say: none was left that knew that it was to end, or none has come since the cluster is back."""
        if job.key is not None and self.cluster.is_withdrawn(job.key):
            return self._reached < max((back for _, back in self._away), default=0.0)
        return (one, ordered_at) in self._unheard

    def _is_hasty(self, one: Instance) -> bool:
        """Somebody has marked a task of its pipeline whose turn had not come: the others go past it."""
        hasty = {"marked before its turn"} & self.not_yet
        return any(self._gaps.get(other, set()) & hasty for other in one.siblings)

    @property
    def _is_shaky(self) -> bool:
        habits = self.cluster.habits
        return bool(habits.cuts or habits.late_replies or habits.rate_limit)

    def _was_away(self, since: float, until: float) -> bool:
        return self._is_shaky or any(begun <= until and ended >= since for begun, ended in self._away)

    def _jobs_of(self, one: Instance, epoch: int | None = None) -> list[SlurmJob]:
        return [job for job in self.cluster.jobs if self._owner(job) == (one, one.epoch if epoch is None else epoch)]

    def _owner(self, job: SlurmJob) -> tuple[Instance, int] | None:
        return self.keys.get(job.key.text) if job.key and job.user == OURS else None

    def key_used(self, key: str, instance: Instance, epoch: int) -> None:
        owner = self.keys.setdefault(key, (instance, epoch))
        if owner[0] is not instance:
            self._break("a key belongs to one task of one run", f"{key} of {instance} is that of {owner[0]}, too")

    def asked(self, request: Request[Any], process: Process, alike: int) -> None:
        is_poll = isinstance(request, ListJobs) and bool(request.ids and not request.names)
        if (is_poll or isinstance(request, SubmitOnce)) and self.cluster.is_well:
            self._reached = time.monotonic()
        if isinstance(request, SubmitOnce):
            if alike > 1:
                self._break("one submission is under way at a time", process.name)
            names = tuple(job.name or "" for job in request.jobs)
            is_bounded = request.fresh or bool(Accounting(names=names).safe_names())
        elif isinstance(request, Accounting):
            is_bounded = request.ids is not None or bool(request.safe_names())
        else:
            is_bounded = True
        if isinstance(request, SubmitOnce) and request.together:
            for key, name in zip(request.submission_keys(), names, strict=True):
                stage = next(one for one in self._all() if one.name == strip_key(name))
                self.keys.setdefault(key.text, (stage, stage.epoch))
        if not is_bounded:
            self._break("nobody reads all of accounting", str(request)[:300])
        if is_poll:
            self._count(process, "polls", MOST_POLLS)
        elif isinstance(request, (ListJobs, CancelJobs)):
            clears = sum(when > time.monotonic() - 60 - BEGUN_WITHIN for when in self._all_cleared)
            self._count(process, "lookups", MOST_LOOKUPS * max(1, clears))

    def _count(self, process: Process, what: str, most: int) -> None:
        times = self._asked.setdefault((process, what), deque())
        now = time.monotonic()
        times.append(now)
        while times[0] < now - 60:
            times.popleft()
        if len(times) > most:
            self._break("there is one question for all", f"{process.name}: {len(times)} {what} in a minute")

    def answered(self, request: Request[Any], process: Process, answer: Any) -> None:
        if isinstance(request, SubmitOnce) and process.is_alive:
            keys = request.submission_keys()
            self._answered.update((key.text, time.monotonic()) for key, one in zip(keys, answer, strict=True) if one.id)

    def submitted(self, job: SlurmJob) -> None:
        self.counts["jobs"] += 1
        owner = self._owner(job)
        if owner is None:
            self._break("each job is a task's", str(job))
            return
        if self._is_hasty(owner[0]):
            return
        for other in self._jobs_of(*owner):
            if other is job or other.is_forgotten or self._is_out_of_sight(other):
                continue
            if other.key == job.key or other.has_succeeded:
                self._break("a try has one job at most", f"{job} beside {other}")
            if not other.is_finished and not other.is_cancelled:
                self._break("a try goes on with the job that is there", f"{job} beside {other}")

    def _is_out_of_sight(self, job: SlurmJob) -> bool:
        """Without accounting nobody finds what has left the queue, as the docs say."""
        habits = self.cluster.habits
        return not habits.has_accounting and job.is_finished and time.monotonic() - job.ended > habits.min_job_age - 30

    def cancelled(self, job: SlurmJob, process: Process) -> None:
        self.counts["cancelled"] += 1
        owner = self._owner(job)
        if owner is None:
            return self._break("nobody cancels what is another's", f"{process.name} cancels {job}")
        one, epoch = owner
        # In a pipeline those that can never run go with one that has failed.
        is_doomed = len(one.siblings) > 1 and any(other.state in ENDS - {"success"} for other in one.siblings)
        is_ended = epoch != one.epoch or one.ordered_at >= one.try_since
        if not is_ended and not is_doomed and not self._is_hasty(one):
            self._break("nobody cancels what is another's", f"{process.name} cancels {job}, which {one} waits for")

    def try_ended(self, one: Instance, report: Any, error: BaseException | None) -> None:
        jobs = self._jobs_of(one)
        if error is None:
            self.counts["succeeded"] += 1
            if not one.is_job:
                return
            mine = [job for job in jobs if str(job.id) == report["job_id"]]
            if not any(all(part.state == "COMPLETED" for part in job.parts) for job in mine):
                self._break("a success is that of the task's own job", f"{one}: {report}")
            return
        self.counts["failed"] += 1
        self.note("    %s: %s", type(error).__name__, str(error))
        why = error if isinstance(error, JobError) else error.__cause__
        if isinstance(why, JobError):
            self._check_failure(one, jobs, why)
        elif not isinstance(error, WorkerDied):
            self._check_given_up(one, jobs, error)

    def _check_failure(self, one: Instance, jobs: list[SlurmJob], why: JobError) -> None:
        mine = [job for job in jobs if job.id == why.status.id]
        if why.status.lost:
            away = self._away + self._unwatched
            # Before this try, or while something was away.
            away.append((0.0, one.try_since))
            missed = not self.cluster.habits.has_accounting and any(
                part.ended and begun <= part.ended + self.cluster.habits.min_job_age and ended >= part.ended
                for job in mine
                for part in job.parts
                for begun, ended in away
            )
            if not missed and not any(job.is_forgotten for job in mine):
                self._break("only what Slurm has forgotten is lost", f"{one}: {why}")
        elif not any(part.state in ENDS_BADLY for job in mine for part in job.parts):
            self._break("a failure is that of the task's own job", f"{one}: {why}")

    def _check_given_up(self, one: Instance, jobs: list[SlurmJob], error: BaseException) -> None:
        mine = {job.key.text for job in jobs if not job.is_forgotten and job.key}
        if "job_id" in one.xcoms:
            self._break("no wait is given up", f"{one}: {error}")
        elif any(key in mine and when > one.try_since for key, when in self._answered.items()):
            self._break("an answer reaches its task", f"{one}: {error}")
        elif isinstance(error, AirflowFailException):
            self._break("only what Slurm refuses fails for good", f"{one}: {error}")
        elif not self._was_away(one.try_since, time.monotonic()):
            self._break("a cluster that is well is used", f"{one}: {error}")
        elif not self._is_excused(one):
            self._break("no submission is given up", f"{one}: {error}")

    def _watch_jobs_of(self, one: Instance) -> None:
        """Somebody has ended the task: the jobs that it has had so far must go."""
        epoch = one.epoch - (one.state not in ENDS)
        outside(self._check_gone(one, epoch, one.ordered_at))

    async def _check_gone(self, one: Instance, epoch: int, ordered_at: float) -> None:
        # A site's limit of calls, or a shaky connection, makes all take longer.
        await asyncio.sleep(GONE_WITHIN * (10 if self._is_shaky else 1))
        # Whoever waits for a cluster looks ever more rarely.
        while not (self.cluster.is_well and one.airflow.triggerer.is_alive) or any(
            ended > time.monotonic() - GONE_WITHIN for _, ended in self._away
        ):
            await asyncio.sleep(GONE_WITHIN)
        for job in self._jobs_of(one, epoch):
            if not (job.is_finished or self._is_excused(one) or self._is_left(job, one, ordered_at)):
                self._break("a task that was ended leaves no job", f"{one}: {job}")

    def _check_rest(self) -> None:
        for job in self.cluster.jobs:
            owner = self._owner(job)
            if owner and not job.is_finished and not self._is_excused(owner[0]):
                one, epoch = owner
                # As the docs say of a worker that dies without retries, too.
                is_left = one.is_orphaned or self._is_left(job, one, one.ordered_at)
                if epoch == one.epoch and not is_left:
                    self._break("a task leaves no job behind", f"{one} is {one.state}: {job}")


ENDS_BADLY = frozenset({"FAILED", "CANCELLED", "NODE_FAIL"})
