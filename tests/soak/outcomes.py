"""The proof over a run of a DAG: each task has exactly one job that succeeded, and nothing else goes on running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import Any

from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of
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
    jobs: dict[str, tuple[str, str]],
    marks: dict[str, list[str]],
    *,
    begun: datetime,
    is_marked: bool,
) -> set[str]:
    """The ids of the task's jobs."""
    task_id, index = task["task_id"], task["map_index"]
    tries = range(1, task["try_number"] + 1)
    keys = {SubmissionKey.derive(run.dag_id, run.run_id, task_id, index, number, begun=begun).text for number in tries}
    mine = {job: said for job, said in jobs.items() if said[0] in keys}
    states = {job: state for job, (_, state) in mine.items()}
    where = f"{task_id}[{index}]: {states}"
    doubled = {key for key, times in Counter(key for key, _ in mine.values()).items() if times > 1}
    assert not doubled, f"{where}: two jobs of one key"
    round_.checked[KEYS] += len(mine)
    completed = [job for job, state in states.items() if state == "COMPLETED"]
    # A controller that ends before it has saved that a job runs may start the same job again.
    assert set(marks.get(_name(task_id, index), ())) == set(completed), where
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


def _over(jobs: dict[str, tuple[str, str]]) -> bool:
    return all(state in OVER for _, state in jobs.values())


def _jobs(cluster: Cluster, dag_id: str) -> dict[str, tuple[str, str]]:
    """Key and state of each job of a DAG's, by their ids.

    The queue forgets none while a round lasts, unless its controller was ended at the wrong moment; accounting has all.
    """
    rows = "--noheader", "--parsable2", "--duplicates", "--allocations", "--format=jobid,state,jobname"
    said = cluster.run("sacct", *rows, "--starttime=now-4hours")
    said += cluster.run("squeue", "--noheader", "--all", "--states=all", "--format=%F|%T|%j")
    found: dict[str, tuple[str, str]] = {}
    for job, state, name in (line.split("|", 2) for line in said.splitlines()):
        key = key_of(name)
        if f".{dag_id}." in name and key:
            found[job] = (key.text, state.partition(" ")[0])
    return found


def _marks(cluster: Cluster) -> dict[str, list[str]]:
    """What is in the file of each task."""
    said = cluster.run("sh", "-c", f"cd {MARKS} && grep -rH . . || true")
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        name, _, job = line.removeprefix("./").partition(":")
        found.setdefault(name, []).append(job)
    return found
