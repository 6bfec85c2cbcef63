"""However many wait, the cluster is asked as if it were one, and no more often than it allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import ReleaseJobs
from sandbox.lifecycle import Sandbox
from sandbox.settings import Settings
from tests.integration.clients import ClientUnderTest, questions
from tests.integration.cluster import Cluster
from tests.integration.conftest import ConnectClient

pytestmark = pytest.mark.oldest_slurm

MANY = 200


def test_two_hundred_who_wait_share_rounds(slurm: ClientUnderTest, cluster: Cluster) -> None:
    jobs = [cluster.sbatch("--hold") for _ in range(3)]
    before = questions(slurm)
    everybody = [slurm.watch(jobs[number % len(jobs)]) for number in range(MANY)]
    for followed in everybody:
        followed.until_state("PENDING")
    slurm.ask(ReleaseJobs(tuple(map(JobId.parse, jobs))))
    assert all(followed.end().succeeded for followed in everybody)
    # Each has heard twice at least. How often rounds come, tests/unit/client/test_poller_pace.py has.
    assert questions(slurm) - before < MANY / 2


@pytest.mark.each_client
def test_nobody_asks_when_nobody_waits(slurm: ClientUnderTest, cluster: Cluster) -> None:
    jobs = [cluster.sbatch("--hold") for _ in range(2)]
    waiting = [slurm.watch(job) for job in jobs]
    for followed in waiting:
        followed.until_state("PENDING")
    assert slurm.is_polling()
    # From a thread that is not the one that waits.
    closers = [threading.Thread(target=followed.close) for followed in waiting]
    for closer in closers:
        closer.start()
    for followed in waiting:
        followed.until_silent()
        assert not followed.news[-1].is_over
    cluster.wait("nobody asks any more", lambda: not slurm.is_polling())
    again = slurm.watch(jobs[0])
    again.until_state("PENDING")
    slurm.do("cancel_many", map(JobId.parse, jobs))
    assert str(again.end().state) == "CANCELLED"


@pytest.mark.each_client
def test_a_client_that_is_closed_leaves_nobody_waiting(slurm: ClientUnderTest, cluster: Cluster) -> None:
    followed = slurm.watch(cluster.sbatch("--hold"))
    followed.until_state("PENDING")
    slurm.do("close")
    followed.until_silent()
    assert not followed.news[-1].is_over


@pytest.fixture(scope="module")
def strict_sandbox(sandbox: Sandbox) -> Iterator[Sandbox]:
    """One whose slurmctld lets a user ask four times in two seconds, and no more."""
    limit = "rl_enable,rl_bucket_size=12,rl_refill_rate=4,rl_refill_period=2"
    usual = "cloud_dns,idle_on_node_suspend,power_save_interval=0,power_save_min_interval=0"
    name = f"strict-{sandbox.settings.name}"[:32].rstrip("-")
    small = Settings(name=name, slurm=sandbox.settings.slurm, root=sandbox.settings.root, workers=1, static=0)
    small.slurm_conf = [f"SlurmctldParameters={usual},{limit}"]
    made = Sandbox(small)
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_a_rate_limit_is_kept(strict_sandbox: Sandbox, connect_client: ConnectClient) -> None:
    cluster = Cluster(strict_sandbox)
    administrator, slurm = connect_client(cluster), connect_client(cluster, user="alice")
    submit = "sbatch --parsable --output=/dev/null --hold --wrap=true"
    job = cluster.run("runuser", "-u", "alice", "--", "sh", "-c", f"cd /tmp && {submit}").strip()
    followed = slurm.watch(job, mine=True)
    followed.until_state("PENDING")
    # Her own jobs alone are asked for: with root's rights all would be.
    rpc = {"REQUEST_JOB_USER_INFO", "REQUEST_JOB_INFO_SINGLE"}
    started, before = time.monotonic(), questions(administrator, rpc)
    cluster.wait("some rounds have passed", lambda: questions(administrator, rpc) - before >= 2)
    # Each round costs three of those that are let through, and half of them are left to her other programs.
    assert time.monotonic() - started >= 3 - 0.5
    cluster.run("scontrol", "release", job)
    assert followed.end().succeeded
    assert not followed.troubles
    log = cluster.run("cat", "/var/log/slurm/slurmctld.log").lower()
    assert "rate limiting enabled" in log
    assert "rate limit exceeded" not in log
