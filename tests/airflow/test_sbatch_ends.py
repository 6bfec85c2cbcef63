"""What becomes of a task when its job ends: its state, its tries, and what its log says.

What each state of Slurm's means is proved in memory (tests/unit: slurm/test_outcomes, operators/test_outcome), and how
Slurm ends a job on a sandbox (tests/integration/test_jobs). Here each meaning reaches Airflow, from a worker and from
the triggerer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.airflow.jobs import Jobs
from tests.airflow.stack import ENDS, Run, Stack
from tests.integration.cluster import Cluster


@dataclass(frozen=True)
class End:
    """A job that ends in one way, and what is to come of it."""

    #: Arguments of the operator. The two modes run at the same time, and some jobs need a node of their own.
    job: str
    #: What becomes of a task that may be tried twice.
    task: str
    #: In its log.
    said: str
    #: What Slurm says; empty: there is no job.
    slurm: str = ""
    #: What the test does to the job once it runs.
    act: Callable[[Cluster, str], object] | None = None
    #: Whether it is run deferred, in a worker, or both.
    modes: tuple[bool, ...] = (True,)


SLEEP = "script='#!/bin/bash\\nsleep 3000\\n'"
BOTH = (False, True)
#: A node that boots for its job, and one that is kept from it.
BOOTING, BROKEN = "worker-1", "worker-3"


def end_now(cluster: Cluster, job: str) -> None:
    # As Slurm counts limits in minutes, this is the way to a shorter one.
    cluster.run("scontrol", "update", f"jobid={job}", "endtime=now+1")


def cancel(cluster: Cluster, job: str) -> None:
    cluster.run("scancel", job)


def preempt(cluster: Cluster, job: str) -> None:
    cluster.sbatch("--partition=urgent", "--exclusive", f"--nodelist={BOOTING}")


CASES = {
    # Another try may help, or none would, or there is nothing to mend.
    "exit_code": End("command='exit 3'", "up_for_retry", "with exit code 3", "FAILED", modes=BOTH),
    "timeout": End(f"{SLEEP}, time_limit=60", "failed", "reached its time limit", "TIMEOUT", end_now),
    # A worker submits the jobs of those that are deferred, too.
    "refused": End("command='true', partition='nowhere'", "failed", "invalid partition specified: nowhere"),
    "invalid": End("command='true', gpus=1, mem='{{ \"much\" }}'", "failed", "mem: ", modes=(False,)),
    "nowhere": End("command='true', slurm_conn_id='no_such_id'", "failed", "there is no connection no_such_id: add it"),
    # Of these Slurm knows more than the exit code says.
    "too_large": End(
        "script='#!/bin/bash\\npython3 -c \"x = bytes(1) * (200 << 20); import time; time.sleep(3000)\"\\n', mem=20",
        "up_for_retry",
        "MiB per task",
        "FAILED",
    ),
    "cancelled": End(
        f"{SLEEP}, nodelist='worker-cpu-1'",
        "failed",
        "was cancelled on worker-cpu-1 by root",
        "CANCELLED",
        cancel,
    ),
    "no_boot": End(f"command='true', nodelist='{BROKEN}', requeue=False", "up_for_retry", "lost a node", "NODE_FAIL"),
    "preempted": End(
        f"{SLEEP}, nodelist='{BOOTING}', exclusive=True, requeue=False",
        "up_for_retry",
        "was preempted",
        "PREEMPTED",
        preempt,
    ),
    # What on_finish makes of an end.
    "skipped": End("command='exit 7', on_finish={7: 'skip'}", "skipped", "exit code 7", "FAILED", modes=BOTH),
    "forgiven": End("command='exit 8', on_finish={8: 'succeed'}", "success", "is FAILED", "FAILED", modes=(False,)),
    "given_up": End("command='exit 9', on_finish={'FAILED': 'fail'}", "failed", "code 9", "FAILED"),
    "once_more": End(f"{SLEEP}, on_finish={{'CANCELLED': 'retry'}}", "up_for_retry", "cancelled", "CANCELLED", cancel),
}
IN_MODES = [(name, mode) for name, case in CASES.items() for mode in case.modes]

TASKS = "".join(
    f"""
deferrable = {mode}
SbatchOperator(
    task_id="{name}_{mode}", {CASES[name].job},
    deferrable=deferrable, retries=1, retry_delay=timedelta(hours=1), poll_interval=1,
)"""
    for name, mode in IN_MODES
)


@pytest.fixture(scope="module")
def ended(stack: Stack, slurm: Cluster) -> Run:
    """A run of all cases in both modes, each task at its end or waiting for another try."""
    # Tests before this one may have powered them up.
    slurm.reset()
    slurm.fault("node-no-boot", node=BROKEN)
    run = stack.add_dag("ends", TASKS).trigger()
    waiting = {(name, mode) for name, mode in IN_MODES if CASES[name].act}

    def act() -> bool:
        for name, mode in list(waiting):
            act, states = CASES[name].act, Jobs(slurm, run, f"{name}_{mode}").states()
            if act and list(states.values()) == ["RUNNING"]:
                act(slurm, *states)
                waiting.remove((name, mode))
        return not waiting

    stack.wait("all jobs that are to be ended run", act)
    # slurmctld forgets who has cancelled a job if it reads its configuration before the job has ended.
    for name, mode in IN_MODES:
        if CASES[name].act:
            Jobs(slurm, run, f"{name}_{mode}").wait(CASES[name].slurm)
    slurm.give_up_boot(BROKEN)
    run.wait_all(ends=ENDS | {"up_for_retry"})
    return run


@pytest.mark.parametrize(("name", "mode"), IN_MODES)
def test_what_an_end_means_for_the_task(ended: Run, slurm: Cluster, name: str, mode: bool) -> None:
    case, task_id = CASES[name], f"{name}_{mode}"
    task = ended.task(task_id)
    assert task["state"] == case.task, ended.log(task_id, number=1)
    ended.wait_log(task_id, case.said, number=1)
    assert list(Jobs(slurm, ended, task_id).states().values()) == [case.slurm] * bool(case.slurm)
    if case.slurm not in ("", "COMPLETED"):
        ended.wait_log(task_id, "Diagnosis of job", number=1)
    else:
        assert "Diagnosis of job" not in ended.log(task_id, number=1)
