"""One way to wait for many jobs, from the first task that is triggered to the end of the last."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_soperator.slurm.submission_keys import strip_key
from benchmarks.tasks.meter import Meter, Reading
from benchmarks.tasks.shape import TASKS_PER_RUN
from sandbox.airflow.api import AirflowApi, DagRun
from sandbox.lifecycle import Sandbox

#: Seconds for which all wait; the longest that `sbatch --wait` pauses is 32.
HELD = 45.0
#: Seconds without progress after which no more of it is expected.
STALLED = 120.0


@dataclass(frozen=True)
class Outcome:
    """What a way has come to."""

    tasks: int
    #: Tasks that waited for their jobs at once, at the most.
    carried: int
    #: Seconds from the end of each job to the end of its task, where that has succeeded.
    delays: list[float]
    #: From the first trigger until all wait; while they do; and from when the jobs are let go until all have ended.
    starting: Reading
    held: Reading
    ending: Reading
    #: Bytes of the triggerer, at the most.
    memory: int


class Way:
    """Tasks of one DAG, which differ from those of others in how they wait."""

    def __init__(self, sandbox: Sandbox, api: AirflowApi, dag_id: str) -> None:
        self._sandbox, self._api, self._dag_id = sandbox, api, dag_id
        self._meter = Meter(sandbox)
        self._memory = self._submitted_before = 0

    def run(self, tasks: int, at_once: int) -> Outcome:
        """Trigger so many tasks, of which some can wait at once; their jobs are let go when these do."""
        self._warm_up()
        self._partition("down")
        self._submitted_before = self._meter.submitted()
        begin = self._meter.read()
        runs = [self._trigger() for _ in range(tasks // TASKS_PER_RUN)]
        carried = self._follow(self._waiting, at_once)
        all_wait = self._meter.read()
        time.sleep(HELD)
        let_go = self._meter.read()
        self._partition("up")
        # And the one before.
        self._follow(self._ended, len(runs) + 1)
        end = self._meter.read()
        return Outcome(
            tasks,
            carried,
            self._delays(runs),
            starting=all_wait - begin,
            held=let_go - all_wait,
            ending=end - let_go,
            memory=self._memory,
        )

    def run_without_jobs(self, tasks: int) -> Outcome:
        """Trigger so many tasks that have none, and wait until all have ended."""
        begin = self._meter.read()
        runs = [self._trigger() for _ in range(tasks // TASKS_PER_RUN)]
        ended = self._follow(self._ended, len(runs))
        end = self._meter.read()
        return Outcome(tasks, ended * TASKS_PER_RUN, [], end - begin, end - end, end - end, self._memory)

    def _warm_up(self) -> None:
        """What processes do once in their lives is in no figure."""
        self._partition("up")
        self._trigger()
        self._follow(self._ended, 1)
        self._memory = 0

    def _trigger(self) -> DagRun:
        return DagRun(self._api, self._dag_id, self._api.trigger(self._dag_id, {}))

    def _partition(self, state: str) -> None:
        self._slurm("scontrol", "update", "partitionname=main", f"state={state}")

    def _slurm(self, *words: str) -> str:
        said = self._sandbox.init.run("slurmctld", list(words))
        assert said.returncode == 0, said.stderr
        return said.stdout

    def _follow(self, count: Callable[[], int], target: int) -> int:
        """Wait until there are as many, or until there come no more; how many there are."""
        reached, changed = count(), time.monotonic()
        while reached < target and time.monotonic() < changed + STALLED:
            time.sleep(1)
            self._memory = max(self._memory, self._meter.triggerer_memory())
            if (now := count()) != reached:
                reached, changed = now, time.monotonic()
        return reached

    def _waiting(self) -> int:
        """Tasks that wait, and whose jobs are there."""
        path = f"/dags/{self._dag_id}/dagRuns/~/taskInstances"
        return min(self._count(path, "running", "deferred"), self._meter.submitted() - self._submitted_before)

    def _ended(self) -> int:
        return self._count(f"/dags/{self._dag_id}/dagRuns", "success", "failed")

    def _count(self, path: str, *states: str) -> int:
        return int(self._api.call("GET", path, params={"state": states, "limit": 1})["total_entries"])

    def _delays(self, runs: Sequence[DagRun]) -> list[float]:
        tasks = {
            f"{task['task_id']}.{run.run_id}": datetime.fromisoformat(task["end_date"].replace("Z", "+00:00"))
            for run in runs
            for task in run.tasks()
            if task["state"] == "success"
        }
        # Accounting hears of an end later than the queue.
        self._follow(lambda: len(tasks.keys() & self._ends_of_jobs().keys()), len(tasks))
        jobs = self._ends_of_jobs()
        return [end.timestamp() - jobs[name] for name, end in tasks.items()]

    def _ends_of_jobs(self) -> dict[str, float]:
        """When each job has ended, by its name; accounting has it in whole seconds."""
        said = self._slurm(
            *("env", "SLURM_TIME_FORMAT=%s", "sacct", "--allusers", "--allocations", "--noheader", "--parsable2"),
            *("--starttime=now-1hours", "--state=COMPLETED", "--endtime=now", "--format=JobName,End"),
        )
        rows = (line.rpartition("|") for line in said.splitlines())
        return {strip_key(name): float(end) for name, _, end in rows}
