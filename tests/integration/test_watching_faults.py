"""A cluster that does not answer harms no job: those who wait are told once that it does not, and then of the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import ListJobs
from tests.integration.clients import ClientUnderTest
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.oldest_slurm

ConnectBoth = Callable[[Cluster], list[ClientUnderTest]]


def running_and_written_down(cluster: Cluster) -> str:
    """A job that runs, and that a slurmctld knows which starts again after a crash: it saves its state at times."""
    job = cluster.held_job()
    cluster.wait_job(job, "RUNNING")
    cluster.run("touch", "/root/runs")
    # A change, so that there is something to save.
    cluster.sbatch("--hold")
    saved = ("test", "/var/spool/slurmctld/job_state", "-nt", "/root/runs")
    cluster.wait("slurmctld has saved its state", lambda: cluster.try_run(*saved, pod="slurmctld").returncode == 0)
    return job


def test_slurmctld_is_killed_and_comes_back(cluster: Cluster, connect_both: ConnectBoth) -> None:
    job = running_and_written_down(cluster)
    clients = connect_both(cluster)
    followed = [slurm.watch(job) for slurm in clients]
    for one in followed:
        one.until_state("RUNNING")
    with cluster.commands_wait(4):
        cluster.fault("slurmctld-down")
        for one in followed:
            one.until("slurmctld is down", lambda status: "slurmctld" in status.trouble)
        # Whoever comes now hears of it before anything else.
        late = [slurm.watch(job) for slurm in clients]
        for one in late:
            one.until("slurmctld is down", lambda status: bool(status.trouble))
            assert one.news[0].trouble
    cluster.let_go(job)
    cluster.sandbox.up()
    for one in (*followed, *late):
        assert one.end().succeeded
        assert len(one.troubles) == 1


def test_slurmctld_hangs_and_goes_on(cluster: Cluster, connect_both: ConnectBoth) -> None:
    job = cluster.held_job()
    followed = [slurm.watch(job) for slurm in connect_both(cluster)]
    for one in followed:
        one.until_state("RUNNING")
    with cluster.commands_wait(4):
        cluster.fault("slurmctld-hung")
        for one in followed:
            one.until("slurmctld hangs", lambda status: bool(status.trouble))
    cluster.let_go(job)
    cluster.fault("clear")
    for one in followed:
        assert one.end().succeeded
        assert len(one.troubles) == 1


@pytest.mark.each_client
def test_a_connection_that_is_cut_is_nobodys_news(slurm: ClientUnderTest, cluster: Cluster) -> None:
    job = cluster.held_job()
    followed = slurm.watch(job)
    followed.until_state("RUNNING")
    cut = cluster.fault("login-cut")
    assert not cut.startswith("0 ")
    cluster.let_go(job)
    assert followed.end().succeeded
    assert not followed.troubles


def test_the_connection_is_cut_under_every_question(slurm: ClientUnderTest, cluster: Cluster) -> None:
    job = cluster.sbatch("--hold")
    followed = slurm.watch(job)
    followed.until_state("PENDING")
    for _ in range(5):
        cluster.fault("login-cut")
        assert [str(one.id) for one in slurm.ask(ListJobs(ids=(JobId.parse(job),)))] == [job]
    slurm.do("cancel_many", [JobId.parse(job)])
    assert str(followed.end().state) == "CANCELLED"
