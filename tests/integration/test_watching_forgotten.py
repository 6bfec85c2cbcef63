"""Jobs that the queue has forgotten are told of by accounting, and by nobody's guess."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_soperator.client.job_tracker import LossLimits
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import ListJobs
from tests.integration.clients import ClientUnderTest
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.oldest_slurm

ConnectBoth = Callable[[Cluster], list[ClientUnderTest]]

BRIEF = LossLimits(unknown=3, runaway=6)


def wait_forgotten(cluster: Cluster, slurm: ClientUnderTest, *jobs: str) -> None:
    """Wait until slurmctld has forgotten jobs: it looks once a minute for those that are old enough."""
    ours = ListJobs(ids=tuple(map(JobId.parse, jobs)))
    cluster.wait(f"the queue has forgotten {jobs}", lambda: not slurm.ask(ours))


def test_jobs_that_have_left_the_queue(forgetful: Cluster, connect_both: ConnectBoth) -> None:
    failed, done, holey = forgetful.sbatch(wrap="exit 4"), forgetful.sbatch("--array=1-2"), hole(forgetful)
    clients = connect_both(forgetful)
    wait_forgotten(forgetful, clients[0], failed, done, holey)
    for slurm in clients:
        first, second = slurm.watch(failed).end(), slurm.watch(done).end()
        assert (str(first.state), first.parts[0].exit_code.code) == ("FAILED", 4)
        assert second.succeeded
        assert [str(part.id) for part in second.parts] == [f"{done}_1", f"{done}_2"]
        # One of its elements was cancelled before it started and before anybody looked.
        third = slurm.watch(holey, patience=BRIEF).end()
        assert [str(part.state) for part in third.parts] == ["COMPLETED", "CANCELLED", "COMPLETED"]
        assert not third.succeeded


def hole(cluster: Cluster) -> str:
    job = cluster.sbatch("--array=1-3", "--hold")
    cluster.run("scancel", f"{job}_2")
    cluster.run("scontrol", "release", job)
    return job


def test_an_array_whose_elements_are_forgotten_one_by_one(forgetful: Cluster, connect_both: ConnectBoth) -> None:
    wrap = "until test -e /root/go-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID; do sleep 0.1; done"
    job = forgetful.sbatch("--array=1-2", wrap=wrap)
    clients = connect_both(forgetful)
    early = [slurm.watch(job) for slurm in clients]
    for followed in early:
        followed.until_state("RUNNING")
    forgetful.run("touch", f"/root/go-{job}-1")
    wait_forgotten(forgetful, clients[0], f"{job}_1")
    # Those who were there before it was forgotten, and those who come after.
    late = [slurm.watch(job) for slurm in clients]
    for followed in late:
        followed.until("both are known", lambda status: len(status.parts) == 2)
    assert not any(followed.news[-1].is_over for followed in early)
    forgetful.run("touch", f"/root/go-{job}-2")
    for followed in (*early, *late):
        end = followed.end()
        assert end.succeeded
        assert len(end.parts) == 2


def test_slurmdbd_is_down_while_a_job_leaves_the_queue(forgetful: Cluster, connect_both: ConnectBoth) -> None:
    leaving, staying = forgetful.held_job(), forgetful.held_job()
    clients = connect_both(forgetful)
    stayed = [slurm.watch(staying) for slurm in clients]
    for followed in stayed:
        followed.until_state("RUNNING")
    forgetful.fault("slurmdbd-down")
    forgetful.let_go(leaving)
    wait_forgotten(forgetful, clients[0], leaving)
    waiting = [slurm.watch(leaving) for slurm in clients]
    for followed in waiting:
        followed.until("accounting does not answer", lambda status: "slurmdbd" in status.trouble)
    forgetful.let_go(staying)
    for followed in stayed:
        assert followed.end().succeeded
        assert not followed.troubles
    forgetful.sandbox.up()
    for followed in waiting:
        assert followed.end().succeeded
        assert len(followed.troubles) == 1
