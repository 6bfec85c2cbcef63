"""A job's news reach whoever waits for it, from its submission to its end, whatever becomes of it."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.client.job_tracker import LossLimits
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import CancelJobs, RequeueJobs
from tests.integration.clients import ClientUnderTest
from tests.integration.cluster import Cluster

BRIEF = LossLimits(unknown=3, runaway=6)


@pytest.mark.each_client
def test_a_job_is_told_of_until_it_is_done(slurm: ClientUnderTest, cluster: Cluster) -> None:
    job = cluster.held_job("--hold")
    followed = slurm.watch(job, mine=True)
    assert followed.until_state("PENDING").parts[0].reason == "JobHeldUser"
    cluster.run("scontrol", "release", job)
    assert followed.until_state("RUNNING").parts[0].nodelist.startswith("worker-")
    cluster.let_go(job)
    end = followed.end()
    followed.until_silent()
    assert followed.news[-1] is end
    assert end.succeeded
    assert end.id == JobId.parse(job)
    # What is told is news each time.
    assert all(one.news != other.news for one, other in zip(followed.news, followed.news[1:], strict=False))


def test_a_failure_is_told_with_its_exit_code(slurm: ClientUnderTest, cluster: Cluster) -> None:
    end = slurm.watch(cluster.sbatch(wrap="exit 3")).end()
    assert (str(end.state), end.succeeded, end.parts[0].exit_code.code) == ("FAILED", False, 3)


def test_a_job_that_is_cancelled(slurm: ClientUnderTest, cluster: Cluster) -> None:
    job = cluster.held_job()
    followed = slurm.watch(job)
    followed.until_state("RUNNING")
    slurm.do("cancel_many", [JobId.parse(job)])
    assert str(followed.end().state) == "CANCELLED"


@pytest.mark.each_slurm
def test_a_requeued_job_is_the_same_job(slurm: ClientUnderTest, cluster: Cluster) -> None:
    job = cluster.held_job("--requeue")
    followed = slurm.watch(job)
    followed.until_state("RUNNING")
    slurm.ask(RequeueJobs((JobId.parse(job),)))
    followed.until("it waits again", lambda status: status.parts[0].restarts == 1 and status.state.is_pending)
    cluster.start_soon(job)
    cluster.let_go(job)
    end = followed.end()
    assert end.succeeded
    assert end.parts[0].restarts == 1


def test_an_array_is_over_with_its_last_element(slurm: ClientUnderTest, cluster: Cluster) -> None:
    wrap = (
        "until test -e /root/go-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID; do sleep 0.1; done; exit $SLURM_ARRAY_TASK_ID"
    )
    job = cluster.sbatch("--array=0-2", wrap=wrap)
    whole, second = slurm.watch(job), slurm.watch(f"{job}_1")
    cluster.run("touch", f"/root/go-{job}-1")
    assert second.end().parts[0].exit_code.code == 1
    told = whole.until("one has ended", lambda status: any(part.state.is_finished for part in status.parts))
    assert not told.is_over
    cluster.run("touch", f"/root/go-{job}-0", f"/root/go-{job}-2")
    end = whole.end()
    assert {str(part.id): str(part.state) for part in end.parts} == {
        f"{job}_0": "COMPLETED",
        f"{job}_1": "FAILED",
        f"{job}_2": "FAILED",
    }
    assert str(end.state) == "FAILED"


@pytest.mark.each_slurm
def test_elements_that_were_cancelled_before_they_started(slurm: ClientUnderTest, cluster: Cluster) -> None:
    job = cluster.sbatch("--array=1-3", "--hold")
    # Neither the queue nor accounting will ever have a row for it.
    cluster.run("scancel", f"{job}_2")
    followed = slurm.watch(job, patience=BRIEF)
    followed.until("the second is missed", lambda status: "CANCELLED" in [str(part.state) for part in status.parts])
    cluster.run("scontrol", "release", job)
    end = followed.end()
    assert [str(part.state) for part in end.parts] == ["COMPLETED", "CANCELLED", "COMPLETED"]
    assert not end.succeeded


@pytest.mark.each_slurm
def test_a_heterogeneous_job_is_over_with_its_last_component(slurm: ClientUnderTest, cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    job = cluster.held_job("--nodes=1", "--exclusive", ":", "--nodes=1", "--exclusive")
    followed = slurm.watch(job)
    assert [str(part.id) for part in followed.until_state("RUNNING").parts] == [f"{job}+0", f"{job}+1"]
    cluster.let_go(job)
    end = followed.end()
    assert end.succeeded
    assert len(end.parts) == 2


def test_an_unknown_job_is_lost_and_no_success(slurm: ClientUnderTest, cluster: Cluster) -> None:
    end = slurm.watch("999999", patience=BRIEF).end()
    assert end.lost == "it is in neither the queue nor accounting"
    assert not end.succeeded


def test_a_job_that_is_not_the_one_that_is_meant(slurm: ClientUnderTest, cluster: Cluster) -> None:
    job = cluster.held_job("--job-name=theirs")
    end = slurm.watch(job, name="ours", patience=BRIEF).end()
    assert end.lost == "Slurm lost it and reused its id for a job named theirs"
    assert slurm.watch(job, name="theirs").until_state("RUNNING").parts[0].name == "theirs"


def test_whoever_comes_late_hears_of_the_end_at_once(slurm: ClientUnderTest, cluster: Cluster) -> None:
    job = cluster.sbatch()
    assert slurm.watch(job).end().succeeded
    assert slurm.watch(job).end().succeeded


def test_jobs_of_other_users_are_told_of(slurm: ClientUnderTest, cluster: Cluster) -> None:
    submit = "sbatch --parsable --output=/dev/null --hold --wrap=true"
    theirs = cluster.run("runuser", "-u", "alice", "--", "sh", "-c", f"cd /tmp && {submit}").strip()
    ours = cluster.sbatch("--hold")
    other, own = slurm.watch(theirs), slurm.watch(ours, mine=True)
    assert other.until_state("PENDING").parts[0].user == "alice"
    assert own.until_state("PENDING").parts[0].user == "root"
    slurm.ask(CancelJobs(ids=(JobId.parse(theirs), JobId.parse(ours))))
    assert {str(other.end().state), str(own.end().state)} == {"CANCELLED"}
