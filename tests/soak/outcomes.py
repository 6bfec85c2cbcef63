"""The proof over a run of a DAG: each task has exactly one job that succeeded, and nothing else goes on running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of, key_of_try
from sandbox.airflow.api import ENDS
from tests.airflow.stack import Run
from tests.integration.cluster import Cluster
from tests.soak.rounds import Round

#: Where each job that ends well leaves its id, in a file of its task's.
MARKS = "/root/soak"
#: States of jobs that tasks leave behind.
OVER = {"COMPLETED", "FAILED", "CANCELLED"}

ONE = "tasks that succeeded with exactly one job that did, whose id is their XCom"
MARKED = "tasks that were marked as failed, and have no second job that succeeded"
KEYS = "keys of tries that have one job at the most"
REST = "runs that left nothing in the queue, and no job that is no task's"


@dataclass(frozen=True)
class Submitted:
    """A job, or an element of an array, as the cluster has it."""

    key: SubmissionKey
    state: str
    #: Its SLURM_JOB_ID, which the elements of an array have each of their own.
    number: str


def command(seconds: float | str, before: str = "") -> str:
    """What a job runs: it takes its time, and leaves a mark; TASK in its environment names the task."""
    return f"mkdir -p {MARKS}; sleep {seconds}; {before} echo $SLURM_JOB_ID >>{MARKS}/$TASK"


def check(round_: Round, cluster: Cluster, run: Run, marked: Collection[tuple[str, int]]) -> None:
    """Once all tasks have ended; ``marked`` are those that others have ended."""
    cluster.wait("nothing is left in the queue", lambda: not cluster.active_jobs())
    jobs = _jobs(cluster, run.dag_id)
    cluster.wait("accounting knows that all have ended", lambda: jobs.update(_jobs(cluster, run.dag_id)) or _over(jobs))
    marks, tasks, begun = _marks(cluster), run.tasks(), run.begun()
    owned: set[str] = set()
    for task in tasks:
        is_marked = (task["task_id"], task["map_index"]) in marked
        owned |= _check_task(round_, run, task, jobs, marks, begun=begun, is_marked=is_marked)
    strays = {job: said for job, said in jobs.items() if job not in owned}
    assert not strays, f"jobs of no task: {strays}"
    round_.checked[REST] += 1
    round_.counts["tasks"] += len(tasks)
    round_.counts["tries"] += sum(task["try_number"] for task in tasks)
    round_.counts["jobs"] += len(jobs)


def _check_task(
    round_: Round,
    run: Run,
    task: dict[str, Any],
    jobs: dict[str, Submitted],
    marks: dict[str, list[str]],
    *,
    begun: datetime,
    is_marked: bool,
) -> set[str]:
    """The ids of the task's jobs."""
    task_id, index = task["task_id"], task["map_index"]
    tries = range(1, task["try_number"] + 1)
    ti = SimpleNamespace(dag_id=run.dag_id, run_id=run.run_id, task_id=task_id, map_index=index)
    keys = {key_of_try(ti, begun, number) for number in tries}
    mine = {job: one for job, one in jobs.items() if one.key in keys}
    states = {job: one.state for job, one in mine.items()}
    where = f"{task_id}[{index}]: {states}"
    doubled = {key for key, times in Counter(one.key for one in mine.values()).items() if times > 1}
    assert not doubled, f"{where}: two jobs of one key"
    round_.checked[KEYS] += len(mine)
    completed = [job for job, state in states.items() if state == "COMPLETED"]
    # A controller that ends before it has saved that a job runs may start the same job again.
    assert set(marks.get(_name(task_id, index), ())) == {mine[job].number for job in completed}, where
    if is_marked and task["state"] == "failed":
        assert len(completed) <= 1, where
        round_.checked[MARKED] += 1
        return set(mine)
    assert task["state"] == "success", f"{where}: {task['state']}\n{run.log(task_id, index)}"
    assert len(completed) == 1, f"{where}\n{run.log(task_id, index)}"
    assert run.xcom(task_id, index)["job_id"] == completed[0], where
    round_.checked[ONE] += 1
    return set(mine)


def wait_all(run: Run, timeout: float = 900) -> None:
    """Until all tasks have come to rest, mapped ones too."""
    run.stack.wait(f"all tasks of {run.dag_id} have ended", lambda: _rest(run), timeout)


def _rest(run: Run) -> bool:
    # A task that is mapped is there once, without a state, before it is there for each of its indices.
    return all(task["state"] in ENDS for task in run.tasks()) and run.state() in ("success", "failed")


def _name(task_id: str, index: int) -> str:
    return task_id if index < 0 else f"{task_id}-{index}"


def _over(jobs: dict[str, Submitted]) -> bool:
    return all(one.state in OVER for one in jobs.values())


def _jobs(cluster: Cluster, dag_id: str) -> dict[str, Submitted]:
    """Each job of a DAG's, and each element of its arrays, by their ids.

    The queue forgets none while a round lasts, unless its controller was ended at the wrong moment; accounting has all.
    """
    rows = "--noheader", "--parsable2", "--duplicates", "--allocations", "--format=jobid,jobidraw,state,jobname"
    said = cluster.run("sacct", *rows, "--starttime=now-4hours")
    said += cluster.run("squeue", "--noheader", "--all", "--array", "--states=all", "--format=%i|%A|%T|%j")
    found: dict[str, Submitted] = {}
    for job, number, state, name in (line.split("|", 3) for line in said.splitlines()):
        key = key_of(name, JobId.parse(job))
        if f".{dag_id}." in name and key:
            found[job] = Submitted(key, state.partition(" ")[0], number)
    return found


def _marks(cluster: Cluster) -> dict[str, list[str]]:
    """What is in the file of each task."""
    said = cluster.run("sh", "-c", f"cd {MARKS} && grep -rH . . || true")
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        name, _, job = line.removeprefix("./").partition(":")
        found.setdefault(name, []).append(job)
    return found
