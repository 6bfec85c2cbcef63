"""Jobs of tasks on nodes that end as Slurm or its administrators want: each try fails with Slurm's name for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.airflow.executors import HEAD, wait_told
from tests.airflow.jobs import Jobs
from tests.airflow.stack import HAS_REGIONS, Run, Stack
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.lane("airflow of the executor")

#: Nodes that boot for their jobs.
TAKEN, DYING = "worker-1", "worker-2"


@dataclass(frozen=True)
class Death:
    """What a job asks for, what ends it once it runs, and how Slurm calls that."""

    asked: str
    slurm: str
    act: Callable[[Cluster, str], object] | None = None


def time_is_over(cluster: Cluster, job: str) -> None:
    cluster.run("scontrol", "update", f"jobid={job}", "endtime=now+1")


def preempt(cluster: Cluster, job: str) -> None:
    cluster.sbatch("--partition=urgent", "--exclusive", f"--nodelist={TAKEN}")


def die(cluster: Cluster, job: str) -> None:
    cluster.fault("node-dies", node=DYING)
    # Airflow here misses a task as soon as slurmctld would miss the node.
    cluster.run("scontrol", "update", f"nodename={DYING}", "state=down", "reason=died")


DEATHS = {
    "timed_out": Death("time_limit=60", "TIMEOUT", time_is_over),
    "preempted": Death(f"nodelist='{TAKEN}', exclusive=True", "PREEMPTED", preempt),
    "node_died": Death(f"nodelist='{DYING}'", "NODE_FAIL", die),
    # Airflow alone takes more.
    "too_large": Death("mem=20", "FAILED"),
}
TASKS = "\n".join(f'held("{name}", {death.asked})' for name, death in DEATHS.items()) + '\nheld("cleared")'


@pytest.fixture(scope="module")
def ends(stack: Stack, slurm: Cluster) -> Run:
    """A run of all, each job at its end."""
    # Tests before this one may have powered them up.
    slurm.reset()
    run = stack.add_dag("executor_ends", TASKS, head=HEAD).trigger()
    for name, death in DEATHS.items():
        if death.act:
            run.wait(name, "running")
            [job] = Jobs(slurm, run, name).states()
            # It is not for Slurm to begin a task again.
            assert "disabled" in slurm.try_run("scontrol", "requeue", job).stderr.lower()
            death.act(slurm, job)
    return run


@pytest.mark.parametrize("name", DEATHS)
def test_a_try_fails_with_the_name_of_its_end(ends: Run, slurm: Cluster, name: str) -> None:
    ends.wait(name, "failed")
    Jobs(slurm, ends, name).wait(DEATHS[name].slurm)
    # One that has the time to end tells Airflow so before Slurm does.
    assert f"is {DEATHS[name].slurm}" in ends.wait_log(name, "Diagnosis of job")
    wait_told(ends, name, f"is {DEATHS[name].slurm}")


def test_a_task_that_is_cleared_while_it_runs_ends_its_job_and_begins_again(ends: Run, slurm: Cluster) -> None:
    ends.wait("cleared", "running")
    jobs = Jobs(slurm, ends, "cleared")
    ends.clear("cleared")
    jobs.wait("COMPLETED", "RUNNING")
    if not HAS_REGIONS:
        # From 3.4 on Airflow keeps a try that was cleared apart before its job has ended.
        wait_told(ends, "cleared", "it was ended, as its task was cleared")
    ends.wait("cleared", "running", least_try=2)
    jobs.let_go()
    ends.wait("cleared", "success")
