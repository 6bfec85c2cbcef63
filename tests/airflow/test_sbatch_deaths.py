"""Processes of Airflow's die while tasks wait: each job goes on, is found again, and is there once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from tests.airflow.jobs import HELD, Jobs
from tests.airflow.processes import Component, parent, wait_dead
from tests.airflow.stack import HAS_REGIONS, Run, Stack
from tests.integration.cluster import Cluster

COMMON = f"script='{HELD}', poll_interval=1, retry_delay=timedelta(seconds=1)"
TASKS = f"""
SbatchOperator(task_id="killed", retries=2, {COMMON})
SbatchOperator(task_id="killed_whole", retries=2, {COMMON})
SbatchOperator(task_id="no_retry", {COMMON})
SbatchOperator(task_id="deferred", deferrable=True, {COMMON})
SbatchOperator(task_id="deferred_retry", deferrable=True, retries=2, {COMMON})
SbatchOperator(task_id="no_worker", start_from_trigger=True, end_from_trigger=True, {COMMON})
"""

#: What the log of a trigger says that another triggerer has taken over.
REASSIGNED = (
    "Trigger reassigned to another triggerer, dropping it without on_kill"
    if HAS_REGIONS
    else "Another triggerer goes on with this: nothing is cancelled"
)

# The last test lets the jobs go.
pytestmark = pytest.mark.in_order

GONE_ON = "was submitted by an earlier try: going on with it"


@pytest.fixture(scope="module")
def run(stack: Stack, slurm: Cluster) -> Iterator[Run]:
    """One run for all that follows, as the last test lets its jobs go."""
    run = stack.add_dag("deaths", TASKS).trigger()
    stack.wait("the run has its tasks", run.tasks)
    for task in run.tasks():
        Jobs(slurm, run, task["task_id"]).wait("RUNNING")
        run.wait_log(task["task_id"], "begun")
    yield run
    stack.start_all()
    for task in run.tasks():
        Jobs(slurm, run, task["task_id"]).let_go()


@contextmanager
def taken_over(run: Run, *task_ids: str) -> Iterator[None]:
    """Something that has another triggerer go on with these tasks, whose jobs notice nothing."""

    def how_often(task_id: str) -> int:
        return run.log(task_id).count(GONE_ON)

    before = {task_id: how_often(task_id) for task_id in task_ids}
    yield
    for task_id in task_ids:
        was_taken_over = partial(lambda one: how_often(one) > before[one], task_id)
        run.stack.wait(f"another triggerer goes on with {task_id}", was_taken_over)
        assert run.task(task_id)["state"] == "deferred"


def test_a_job_outlives_a_scheduler_with_its_workers_also_without_retries(stack: Stack, slurm: Cluster) -> None:
    """The first, as the workers of all other tasks would end, too."""
    run = stack.add_dag("scheduler_dies", f"SbatchOperator(task_id='orphaned', {COMMON})").trigger()
    jobs = Jobs(slurm, run, "orphaned")
    jobs.wait("RUNNING")
    run.wait_log("orphaned", "begun")
    worker = run.task("orphaned")["pid"]
    stack.end("scheduler", signal.SIGKILL)
    # It may have noticed that its supervisor is gone.
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
    wait_dead(worker)
    stack.start_all()
    run.wait("orphaned", "running", least_try=2)
    run.wait_log("orphaned", GONE_ON)
    jobs.let_go()
    run.wait("orphaned", "success", least_try=2)
    jobs.wait("COMPLETED")


def test_a_triggerer_that_was_taken_for_dead_cancels_nothing(run: Run, stack: Stack, slurm: Cluster) -> None:
    first = stack.components["triggerer"]
    # One that is stopped may hold its row of the database, so that nothing could be changed in it.
    soon = {"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15"}
    second = Component("triggerer", {**stack.environment, **soon}, stack.folder)
    os.killpg(first.pid, signal.SIGSTOP)
    try:
        with taken_over(run, "deferred"):
            second.start()
    finally:
        os.killpg(first.pid, signal.SIGCONT)
    # Up to 3.3 Airflow tells the first one to end its triggers as if the user had wished it.
    try:
        run.wait_log("deferred", REASSIGNED)
        Jobs(slurm, run, "deferred").wait("RUNNING")
    finally:
        second.end(signal.SIGKILL)
        stack.miss("triggerer")


def test_jobs_survive_the_processes_that_wait_for_them(run: Run, stack: Stack, slurm: Cluster) -> None:
    """The last, as it lets the jobs go."""
    jobs = {task["task_id"]: Jobs(slurm, run, task["task_id"]) for task in run.tasks()}

    # The process of a task, and that of one together with its supervisor.
    os.kill(run.task("killed")["pid"], signal.SIGKILL)
    os.kill(run.task("no_retry")["pid"], signal.SIGKILL)
    whole = run.task("killed_whole")["pid"]
    supervisor = parent(whole)
    os.kill(supervisor, signal.SIGKILL)
    os.kill(whole, signal.SIGKILL)
    wait_dead(supervisor)
    # The triggerer is told to end, as by a deploy: it cancels its triggers then, which one that is killed cannot.
    with taken_over(run, "deferred", "deferred_retry", "no_worker"):
        stack.end("triggerer", with_children=False)
        stack.components["triggerer"].start()

    run.miss("killed_whole")
    for task_id in ("killed", "killed_whole"):
        run.wait(task_id, "running", least_try=2)
        run.wait_log(task_id, GONE_ON)
    # Nobody is left who could end the job of a task that has no other try.
    run.wait("no_retry", "failed")
    for task_id in jobs:
        assert list(jobs[task_id].states().values()) == ["RUNNING"], task_id
        jobs[task_id].let_go()
    for task_id in jobs.keys() - {"no_retry"}:
        run.wait(task_id, "success")
        jobs[task_id].wait("COMPLETED")
