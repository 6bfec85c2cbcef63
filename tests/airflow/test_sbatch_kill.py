"""Whoever ends a task ends its job: by marking, by clearing, by a time limit of Airflow's, or by a signal."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import pytest

from tests.airflow.jobs import HELD, Jobs
from tests.airflow.stack import Run, Stack
from tests.airflow.stories import Stories
from tests.integration.cluster import Cluster

TASK = f"SbatchOperator(task_id='fit', script='{HELD}', poll_interval=1, {{}}, {{}})"

#: Who waits for the job: a worker, the triggerer, or the triggerer alone from first to last.
MODES = {
    "worker": "deferrable=False",
    "deferred": "deferrable=True",
    "triggerer": "start_from_trigger=True, end_from_trigger=True",
}

#: Seconds that a task may take at the most.
LIMITS = (30, 120, 480)


@dataclass
class Killing:
    """A task that waits for a job, to be ended by one of the functions below."""

    stack: Stack
    cluster: Cluster
    name: str
    mode: str

    def start(self, options: str = "", dag_options: str = "", *, is_seen: bool = True) -> tuple[Run, Jobs]:
        """The run and its job, once that runs; not where it may have ended by then."""
        dag_id = f"kill_{self.name}_{self.mode}"
        body = TASK.format(MODES[self.mode], options)
        run = self.stack.add_dag(dag_id, body, dag_options=dag_options).trigger()
        jobs = Jobs(self.cluster, run, "fit")
        if is_seen:
            jobs.wait("RUNNING")
        return run, jobs

    def settle(self, run: Run, number: int = 1) -> None:
        """Wait until the task's newest try follows its job."""
        run.wait("fit", "running" if self.mode == "worker" else "deferred", least_try=number)
        run.wait_log("fit", "begun", number=number)

    def wait_over(self, run: Run) -> None:
        """What is cleared while the scheduler finds the run to be over is not run again."""
        self.stack.wait("the run is over", lambda: run.state() in ("success", "failed"))


def marked_failed(killing: Killing) -> None:
    run, jobs = killing.start()
    killing.settle(run)
    run.mark("fit", "failed")
    jobs.wait("CANCELLED")
    assert run.task("fit")["state"] == "failed"


def cleared_without_retries(killing: Killing) -> None:
    _cleared(killing, 0)


def cleared_with_retries(killing: Killing) -> None:
    _cleared(killing, 2)


def _cleared(killing: Killing, retries: int) -> None:
    """It begins anew each time, with a job of its own, whether it runs or has succeeded."""
    run, jobs = killing.start(f"retries={retries}")
    killing.settle(run)
    run.clear("fit")
    jobs.wait("CANCELLED", "RUNNING")
    killing.settle(run, 2)
    run.clear("fit")
    jobs.wait("CANCELLED", "CANCELLED", "RUNNING")
    jobs.let_go()
    run.wait("fit", "success")
    killing.wait_over(run)
    run.clear("fit")
    jobs.wait("CANCELLED", "CANCELLED", "COMPLETED", "RUNNING")
    jobs.let_go()
    assert run.wait("fit", "success", least_try=4)["try_number"] == 4
    jobs.wait("CANCELLED", "CANCELLED", "COMPLETED", "COMPLETED")


def cleared_after_failure(killing: Killing) -> None:
    """Neither a job that failed nor one before it is adopted, and all tries are there again."""
    run, jobs = killing.start("retries=1, retry_delay=timedelta(seconds=1)")
    jobs.cancel()
    run.wait("fit", "failed")
    killing.wait_over(run)
    run.clear("fit")
    jobs.wait("CANCELLED", "RUNNING")
    killing.settle(run, 2)
    jobs.let_go()
    run.wait("fit", "success", least_try=2)
    jobs.wait("CANCELLED", "COMPLETED")


def cleared_but_kept(killing: Killing) -> None:
    _kept(killing, 0)


def cleared_but_kept_with_retries(killing: Killing) -> None:
    _kept(killing, 2)


def _kept(killing: Killing, retries: int) -> None:
    """With cancel_on_kill=False the job goes on, and the next try has one of its own."""
    run, jobs = killing.start(f"cancel_on_kill=False, retries={retries}")
    killing.settle(run)
    run.clear("fit")
    jobs.wait("RUNNING", "RUNNING")
    killing.settle(run, 2)
    jobs.let_go()
    run.wait("fit", "success", least_try=2)
    jobs.wait("COMPLETED", "COMPLETED")


def execution_timeout(killing: Killing) -> None:
    """A task that has no job yet when its time is over, as on a slow machine, gets more."""
    for limit in LIMITS:
        way = replace(killing, name=f"{killing.name}_{limit}")
        run, jobs = way.start(f"execution_timeout=timedelta(seconds={limit})", is_seen=False)
        run.wait("fit", "failed")
        if jobs.states():
            break
    jobs.wait("CANCELLED")
    run.wait_log("fit", f"did not end within {timedelta(seconds=limit)}")


def dagrun_timeout(killing: Killing) -> None:
    run, jobs = killing.start(dag_options="dagrun_timeout=timedelta(hours=1)")
    killing.settle(run)
    run.age()
    jobs.wait("CANCELLED")
    run.wait("fit", "skipped")


def worker_told_to_end(killing: Killing) -> None:
    """The job ends, and the next try submits it again."""
    run, jobs = killing.start("retries=1, retry_delay=timedelta(seconds=1)")
    killing.settle(run)
    os.kill(run.task("fit")["pid"], signal.SIGTERM)
    jobs.wait("CANCELLED", "RUNNING")
    run.wait_log("fit", "the task was told to end, and job", number=1)
    jobs.let_go()
    run.wait("fit", "success", least_try=2)


def deleted_and_made_again(killing: Killing) -> None:
    """Another run of the same id has a job of its own."""
    run, jobs = killing.start()
    jobs.let_go()
    run.wait("fit", "success")
    killing.wait_over(run)
    run.make_again()
    jobs.wait("COMPLETED", "RUNNING")
    jobs.let_go()
    run.wait("fit", "success")
    jobs.wait("COMPLETED", "COMPLETED")


#: Those first that take longest. A waiter for the job hears of any other state, whichever it is, in the same
#: way: a mark is put in each mode, what else changes the state in one. What is the same in all of them is proved in
#: memory: that a job goes whatever becomes of its task (tests/unit/triggers/test_cluster_away), and which job belongs
#: to which try after a clear (tests/unit/operators/test_sbatch_keys).
CASES = [
    (execution_timeout, "worker"),
    (execution_timeout, "deferred"),
    (cleared_without_retries, "worker"),
    (cleared_with_retries, "triggerer"),
    (cleared_after_failure, "triggerer"),
    (cleared_but_kept, "worker"),
    (cleared_but_kept_with_retries, "worker"),
    (dagrun_timeout, "deferred"),
    (marked_failed, "worker"),
    (marked_failed, "deferred"),
    (marked_failed, "triggerer"),
    (worker_told_to_end, "worker"),
    # In a worker, Airflow may take the end of the deleted run's process for that of the new one's.
    (deleted_and_made_again, "triggerer"),
]


def start(stack: Stack, slurm: Cluster) -> Stories:
    killings = {f"{way.__name__}-{mode}": (way, Killing(stack, slurm, way.__name__, mode)) for way, mode in CASES}
    return Stories({name: partial(way, killing) for name, (way, killing) in killings.items()})


@pytest.mark.parametrize("case", [f"{way.__name__}-{mode}" for way, mode in CASES])
def test_the_job_goes_with_its_task(begun: Stories, case: str) -> None:
    begun.end(case)
