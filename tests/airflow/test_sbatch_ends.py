"""Each way in which Slurm can end a job, and what becomes of its task: its state, its tries, and what its log says.

Two ends cannot be had here. OUT_OF_MEMORY is found by cgroups, which a sandbox has not: what kills a job for its memory
there looks like any other signal. And a node that does not boot ends its job in NODE_FAIL, not in BOOT_FAIL.
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
    act: Callable[[Cluster, str, str], object] | None = None
    #: Whether it is run deferred, in a worker, or both.
    modes: tuple[bool, ...] = (False, True)


SLEEP = "script='#!/bin/bash\\nsleep 300\\n'"
#: By mode: two nodes that boot, and two that are kept from it.
BOOTING = {False: "worker-0", True: "worker-1"}
BROKEN = {False: "worker-2", True: "worker-3"}


def end_now(cluster: Cluster, job: str, node: str) -> None:
    # As Slurm counts limits in minutes, this is the way to a shorter one.
    cluster.run("scontrol", "update", f"jobid={job}", "endtime=now+1")


def cancel(cluster: Cluster, job: str, node: str) -> None:
    cluster.run("scancel", job)


def preempt(cluster: Cluster, job: str, node: str) -> None:
    cluster.sbatch("--partition=urgent", "--exclusive", f"--nodelist={node}")


CASES = {
    "completed": End("command='true'", "success", "is COMPLETED", "COMPLETED"),
    "exit_code": End("command='exit 3'", "up_for_retry", "with exit code 3", "FAILED"),
    "signal": End("script='#!/bin/bash\\nkill -9 $$\\n'", "up_for_retry", "was killed by SIGKILL", "FAILED"),
    "too_large": End(
        "script='#!/bin/bash\\npython3 -c \"x = bytes(1) * (200 << 20); import time; time.sleep(60)\"\\n', mem=20",
        "up_for_retry",
        "MiB in a task",
        "FAILED",
    ),
    "timeout": End(f"{SLEEP}, time_limit=1", "failed", "reached its time limit", "TIMEOUT", end_now),
    "cancelled": End(SLEEP, "failed", "was cancelled on worker-cpu-1 by the user with id 0", "CANCELLED", cancel),
    "no_boot": End(
        "command='true', nodelist=BROKEN[deferrable], requeue=False", "up_for_retry", "lost a node", "NODE_FAIL"
    ),
    "preempted": End(
        f"{SLEEP}, nodelist=BOOTING[deferrable], exclusive=True, requeue=False",
        "up_for_retry",
        "was preempted",
        "PREEMPTED",
        preempt,
    ),
    "deadline": End(
        "command='true', hold=True, time_limit=1, deadline='now+65seconds'",
        "failed",
        "could no longer meet its deadline",
        "DEADLINE",
    ),
    "refused": End("command='true', partition='nowhere'", "failed", "invalid partition specified: nowhere"),
    "invalid": End("command='true', gpus=1, mem='much'", "failed", "mem: ", modes=(False,)),
    # What on_finish makes of an end.
    "skipped": End("command='exit 7', on_finish={7: 'skip'}", "skipped", "exit code 7", "FAILED", modes=(True,)),
    "forgiven": End("command='exit 8', on_finish={8: 'succeed'}", "success", "is FAILED", "FAILED", modes=(False,)),
    "given_up": End("command='exit 9', on_finish={'FAILED': 'fail'}", "failed", "code 9", "FAILED", modes=(True,)),
    "once_more": End(
        f"{SLEEP}, on_finish={{'CANCELLED': 'retry'}}", "up_for_retry", "cancelled", "CANCELLED", cancel, (True,)
    ),
}
BOTH = [(name, mode) for name, case in CASES.items() for mode in case.modes]

TASKS = f"BOOTING, BROKEN = {BOOTING}, {BROKEN}\n" + "".join(
    f"""
deferrable = {mode}
SbatchOperator(
    task_id="{name}_{mode}", {CASES[name].job},
    deferrable=deferrable, retries=1, retry_delay=timedelta(hours=1), poll_interval=1,
)"""
    for name, mode in BOTH
)


@pytest.fixture(scope="module")
def ended(stack: Stack, slurm: Cluster) -> Run:
    """A run of all cases in both modes, each task at its end or waiting for another try."""
    # Tests before this one may have powered them up.
    slurm.reset()
    for node in BROKEN.values():
        slurm.fault("node-no-boot", node=node)
    run = stack.add_dag("ends", TASKS).trigger()
    waiting = {(name, mode) for name, mode in BOTH if CASES[name].act}

    def act() -> bool:
        for name, mode in list(waiting):
            act, states = CASES[name].act, Jobs(slurm, run, f"{name}_{mode}").states()
            if act and list(states.values()) == ["RUNNING"]:
                act(slurm, *states, BOOTING[mode])
                waiting.remove((name, mode))
        return not waiting

    stack.wait("all jobs that are to be ended run", act, 120)
    run.wait_all(180, ENDS | {"up_for_retry"})
    return run


@pytest.mark.parametrize(("name", "mode"), BOTH)
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
