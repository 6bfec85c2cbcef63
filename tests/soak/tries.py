"""The proof over tasks on nodes: each try has one job that began it, and an end that is true or explained by a blow."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from airflow_provider_soperator.slurm.submission_keys import key_of
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster
from tests.soak.rounds import Round

#: Where tasks note on nodes that they begin and end, a line for each: what, the four parts of a try, and the job.
MARKS = "/root/marks"
#: Where the executor has a file for each task.
TASKS = "/root/airflow/executor/tasks"
#: What a task notes that is to fail.
FAILING = "is to fail"
#: The jobs of a try, one after the other, where it is not one.
LEGS = {"rescheduled": 2, "deferred": 2}
#: Seconds in which the absence of something ends a try: until heartbeats are missed, and that is seen.
FELT = 60.0
#: Seconds in which a scheduler learns that a job has ended, removes its files, and adopts jobs of one that has died.
LEARNT, REMOVED, ADOPTED = 30.0, 90.0, 90.0
#: The exit code of a job whose tasks were not wanted any more.
NOT_WANTED = "79:0"
_TOLD = re.compile(r"Job (\S+) is ([A-Z_]+)")
_LOST = re.compile(r"Job (\S+) is lost")

ONE = "tries that have one job for each leg, and no other that began them"
WHOLE = "tries that succeeded, and came to their end on a node"
CAUSES = "tries that failed, each by a blow"
NAMED = "ends by Slurm that have failed their try by Slurm's name"
KEYS = "keys that have one job, which has ended"
REST = "rounds that left nothing in the queue, and no file of a task but what a dead scheduler could not remove"
CALM = "tries of a run after all blows, each of which succeeded or was to fail"


@dataclass(frozen=True)
class Away:
    """Something that was away for a while: a daemon, a process of Airflow's, a node, which comes back by itself."""

    name: str
    since: float
    until: float

    def has_ended(self, one: Try) -> bool:
        """Whether a try may have ended for it."""
        return self.since <= one.end <= self.until + FELT


class Name(NamedTuple):
    """What tells a try from others."""

    run_id: str
    task_id: str
    map_index: int
    number: int


@dataclass(frozen=True)
class Try:
    """A try as Airflow has it at the end."""

    name: Name
    state: str
    leg: str
    node: str
    end: float

    @property
    def has_succeeded(self) -> bool:
        return self.state == "success"


@dataclass(frozen=True)
class Job:
    """A job, or an element of an array, as accounting has it."""

    id: str
    raw: str
    name: str
    state: str
    node: str
    code: str


class Tries:
    """All of a round, once each has ended."""

    def __init__(
        self, round_: Round, stack: Stack, cluster: Cluster, away: Sequence[Away], cancelled: Collection[str]
    ) -> None:
        self._round, self._stack, self._cluster = round_, stack, cluster
        self._away, self._cancelled = away, cancelled

    def check(self, calm: Run) -> None:
        """Prove what is promised; in the ``calm`` run nothing was away any more."""
        if self._forgets:
            self._end_forgotten()
        self._cluster.wait("nothing is left in the queue", lambda: not self._cluster.active_jobs())
        self._cluster.wait("accounting knows that all have ended", self._has_all_ends)
        for one in self._tries:
            self._check_try(one)
            if one.name.run_id == calm.run_id:
                assert one.has_succeeded or self._marks[one.name][FAILING], self._about(one)
                self._round.checked[CALM] += 1
        self._check_jobs()
        with suppress(AssertionError):
            self._cluster.wait("no file of a task is left", lambda: not self._left(calm), REMOVED)
        left = self._left(calm)
        assert not left, f"files of {left}"
        self._round.checked[REST] += 1

    def _end_forgotten(self) -> None:
        """Cancel jobs whose end a killed slurmctld has forgotten: it has them as running until it asks their nodes."""
        with suppress(AssertionError):
            self._cluster.wait("nothing is left in the queue", lambda: not self._cluster.active_jobs(), LEARNT)
        ended = {job for marks in self._marks.values() for job in marks["ended"]}
        rows = self._cluster.run("squeue", "--noheader", "--array", "--format=%i|%A").splitlines()
        forgotten = [job for job, _, raw in (row.partition("|") for row in rows) if raw in ended]
        if forgotten:
            self._cluster.run("scancel", *forgotten)
        self._round.counts["jobs whose end slurmctld has forgotten"] += len(forgotten)

    def _check_try(self, one: Try) -> None:
        marks, legs = self._marks[one.name], LEGS.get(one.name.task_id, 1)
        began = marks["began"]
        assert len(began) == len({*began}), f"begun twice by a job: {self._about(one)}"
        assert len(began) <= legs, f"begun by another job: {self._about(one)}"
        self._round.checked[ONE] += 1
        if one.has_succeeded:
            assert (len(began), len(marks["ended"])) == (legs, 1), f"not through: {self._about(one)}"
            self._round.checked[WHOLE] += 1
            return
        cause = self._cause(one)
        assert cause, f"no blow has ended it: {self._about(one)}"
        self._round.counts[f"tries that failed: {cause}"] += 1
        self._round.checked[CAUSES] += 1
        self._check_told(one)

    def _cause(self, one: Try) -> str:
        if self._marks[one.name][FAILING]:
            return "as they should"
        jobs = self._jobs_of(one)
        if any(job.id in self._cancelled for job in jobs):
            return "their job was cancelled"
        nodes = {one.node, *(job.node for job in jobs)}
        for name in (*sorted(nodes), "api-server", "slurmctld"):
            if any(away.name == name and away.has_ended(one) for away in self._away):
                return f"{'their node' if name in nodes else name} was away"
        # Which is told after minutes.
        is_lost = self._forgets and any(map(_LOST.search, self._told[one.name]))
        return "slurmctld has forgotten their job" if is_lost else ""

    @property
    def _forgets(self) -> bool:
        """Whether slurmctld was killed."""
        return any(away.name == "slurmctld" for away in self._away)

    def _check_told(self, one: Try) -> None:
        """That the audit log has the end of a job by Slurm's name, if a scheduler lived that could learn it."""
        ended = [job for job in self._jobs_of(one) if job.state in ("CANCELLED", "NODE_FAIL")]
        if not ended or self._marks[one.name]["ended"]:
            return
        told = {state for text in self._told[one.name] for _, state in _TOLD.findall(text)}
        if told & {job.state for job in ended}:
            self._round.checked[NAMED] += 1
            return
        names = ("scheduler", "slurmctld")
        is_excused = any(
            away.since - LEARNT <= one.end <= away.until + LEARNT for away in self._away if away.name in names
        )
        assert is_excused, f"its end is not told: {self._about(one)}"
        self._round.counts["ends that no scheduler could tell"] += 1

    def _check_jobs(self) -> None:
        keyed = defaultdict[str, set[str]](set)
        begun = {job for marks in self._marks.values() for job in marks["began"]}
        for job in self._jobs:
            keyed[job.name].add(job.id.partition("_")[0])
            # One that ends well has told the state of its tasks.
            assert job.state != "COMPLETED" or job.raw in begun, f"it began nothing: {job}"
            self._round.counts["jobs"] += 1
            self._round.counts["jobs whose tasks were not wanted any more"] += job.code == NOT_WANTED
        for name, ids in keyed.items():
            assert len(ids) == 1 or self._forgets, f"{name} has the jobs {sorted(ids)}"
            self._round.checked[KEYS] += 1

    def _left(self, calm: Run) -> list[str]:
        """Files that a scheduler should have removed, as it has followed their jobs to the end.

        What has ended before it was adopted leaves its file, with a token that is no use any more, until files are old.
        """
        last = max((away.until + ADOPTED for away in self._away if away.name == "scheduler"), default=0.0)
        # Of a try with several jobs the last one.
        legs = {one.leg for one in self._tries if one.end > last}
        said = self._cluster.run(
            "sh", "-c", f"cd {TASKS} && find . -type f -size +0 -exec grep -Ho '\"run_id.*' {{}} + || true"
        )
        left = [line.removeprefix("./").partition(":") for line in said.splitlines()]
        return [leg for leg, _, rest in left if leg in legs or calm.run_id in rest]

    def _about(self, one: Try) -> str:
        """What is known of a try, for those who read why a round failed."""
        said = [f"{one}", f"marks: {dict(self._marks[one.name])}", f"away: {[*map(str, self._away)]}"]
        said += [str(job) for job in self._jobs_of(one)]
        return "\n".join([*said, *self._told[one.name], self._log_of(one)])

    def _log_of(self, one: Try) -> str:
        run = Run(self._stack.api, "executor", one.name.run_id, self._stack)
        return run.log(one.name.task_id, one.name.map_index, one.name.number)

    # What Airflow, the nodes and Slurm know

    @cached_property
    def _tries(self) -> list[Try]:
        columns = "run_id, task_id, map_index, try_number, state, external_executor_id, hostname, end_date"
        asked = f"SELECT {columns} FROM task_instance UNION SELECT {columns} FROM task_instance_history"
        made = [
            Try(Name(*row[:4]), row[4] or "", row[5] or "", (row[6] or "").partition(".")[0], row[7].timestamp())
            for row in self._stack.ask(asked)
        ]
        known = {one.name for one in made}
        assert len(known) == len(made), "a try that is there twice"
        # Airflow keeps no record of a try that has failed before it began, but for its audit log.
        unbegun = {Name(*name[:3], number) for name in known for number in range(1, name.number)} - known
        made += [Try(name, "failed", "", "", self._failed[name]) for name in sorted(unbegun)]
        self._round.counts["tasks"] += len({name[:3] for name in known})
        self._round.counts["tries"] += len(made)
        return made

    @cached_property
    def _marks(self) -> Mapping[Name, Mapping[str, list[str]]]:
        """The jobs that have noted something of a try."""
        found = defaultdict[Name, dict[str, list[str]]](lambda: defaultdict(list))
        for line in self._cluster.run("cat", MARKS).splitlines():
            what, run_id, task_id, index, number, job = line.split("|")
            found[Name(run_id, task_id, int(index), int(number))][what].append(job)
        return found

    @cached_property
    def _told(self) -> Mapping[Name, list[str]]:
        """What the audit log has of each try."""
        found = defaultdict[Name, list[str]](list)
        for *name, event, extra, _ in self._audit_log:
            found[Name(*name)].append(f"{event}: {extra}")
        return found

    @cached_property
    def _failed(self) -> Mapping[Name, float]:
        """When tries have failed by what the audit log has of their jobs."""
        return {Name(*name): at.timestamp() for *name, event, _, at in self._audit_log if event == "slurm job failed"}

    @cached_property
    def _audit_log(self) -> Sequence[Any]:
        columns = "run_id, task_id, map_index, try_number, event, extra, dttm"
        return self._stack.ask(f"SELECT {columns} FROM log WHERE try_number IS NOT NULL ORDER BY dttm")

    @cached_property
    def _jobs(self) -> list[Job]:
        return self._read_jobs()

    def _has_all_ends(self) -> bool:
        begun = {job for marks in self._marks.values() for job in marks["began"]}
        unfinished = [job for job in self._read_jobs() if job.state in ("PENDING", "RUNNING", "REQUEUED")]
        # Accounting has a job for ever as it was when slurmctld forgot it.
        return all(self._forgets and (job.id in self._lost or job.raw not in begun) for job in unfinished)

    @cached_property
    def _lost(self) -> set[str]:
        """Jobs that the audit log calls lost."""
        return {job for told in self._told.values() for text in told for job in _LOST.findall(text)}

    def _read_jobs(self) -> list[Job]:
        columns = "--format=jobid,jobidraw,jobname,state,nodelist,exitcode"
        rows = "--noheader", "--parsable2", "--duplicates", "--allocations", columns
        said = self._cluster.run("sacct", *rows, "--starttime=now-4hours")
        made = [Job(*line.split("|")) for line in said.splitlines()]
        # Who has cancelled it is told with its state.
        return [
            Job(job.id, job.raw, job.name, job.state.partition(" ")[0], job.node, job.code)
            for job in made
            if key_of(job.name)
        ]

    def _jobs_of(self, one: Try) -> list[Job]:
        """Those that began it, or that the audit log tells of."""
        began = {*self._marks[one.name]["began"]}
        told = {job for text in self._told[one.name] for job in re.findall(r"Job (\S+)", text)}
        return [job for job in self._jobs if job.raw in began or job.id in told]
