"""Which jobs have finished: each is told once, whatever has happened in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.client.finished_jobs import FinishedJobs
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.queue_filter import QueueFilter
from airflow_provider_soperator.slurm.requests.commands import run_steps
from tests.integration.clients import ClientUnderTest
from tests.integration.cluster import Cluster
from tests.integration.conftest import ConnectClient

HOUR = timedelta(hours=1)


class Listener:
    """One who looks again and again, and notes what is told."""

    def __init__(self, slurm: ClientUnderTest, look_back: timedelta = timedelta(0), **conditions: Any) -> None:
        self._slurm = slurm
        self.jobs = FinishedJobs(QueueFilter(**conditions), datetime.now(timezone.utc) - look_back)
        self.told: list[JobStatus] = []

    def look(self) -> list[JobId]:
        news = run_steps(self.jobs.round(), self._slurm.ask)
        self.told += news
        return [status.id for status in news]

    def ids(self) -> list[str]:
        return [str(status.id) for status in self.told]


@pytest.fixture
def slurm(cluster: Cluster, connect_kind: ConnectClient) -> ClientUnderTest:
    return connect_kind("threads", cluster)


def wait_told(cluster: Cluster, listener: Listener, job: str) -> JobStatus:
    def told() -> JobStatus | None:
        listener.look()
        return next((status for status in listener.told if str(status.id) == job), None)

    return cluster.wait(f"job {job} is told", told)


def test_each_job_is_told_once_when_it_has_finished(cluster: Cluster, slurm: ClientUnderTest) -> None:
    before = cluster.sbatch("--job-name=told-before")
    cluster.wait_job(before, "COMPLETED")
    # Slurm knows nothing smaller than a second: what has ended in the one in which it is asked may have ended later.
    ended = float(cluster.job(before)["end_time"]["number"])
    cluster.wait(f"the second is over in which {before} ended", lambda: time.time() - ended > 2)
    listener = Listener(slurm, name="told-*")
    assert listener.look() == []
    job, other = cluster.held_job("--job-name=told-1"), cluster.sbatch("--job-name=untold")
    assert listener.look() == []
    cluster.let_go(job)
    assert str(wait_told(cluster, listener, job).state) == "COMPLETED"
    cluster.wait_job(other, "COMPLETED")
    assert listener.look() == []
    assert listener.ids() == [job]


@pytest.mark.each_slurm
def test_a_job_that_is_requeued_after_its_end_finishes_again(cluster: Cluster, slurm: ClientUnderTest) -> None:
    listener = Listener(slurm, name="again")
    job = cluster.held_job("--job-name=again")
    cluster.let_go(job)
    wait_told(cluster, listener, job)
    cluster.run("rm", f"/root/go-{job}")
    cluster.run("scontrol", "requeue", job)
    cluster.start_soon(job)
    cluster.wait_job(job, "RUNNING")
    assert listener.look() == []
    cluster.let_go(job)
    cluster.wait("it is told again", lambda: listener.look() == [JobId.parse(job)])
    assert listener.told[-1].parts[0].restarts == 1


def test_an_array_is_told_as_a_whole(cluster: Cluster, slurm: ClientUnderTest) -> None:
    listener = Listener(slurm, name="array")
    array = cluster.sbatch(
        "--job-name=array",
        "--array=0-2",
        wrap="test $SLURM_ARRAY_TASK_ID != 2 || until test -e /root/array; do sleep 0.1; done",
    )
    cluster.wait("one element is left", lambda: cluster.active_jobs() == [f"{array}_2"])
    assert listener.look() == []
    cluster.run("touch", "/root/array")
    status = wait_told(cluster, listener, array)
    assert len(status.parts) == 3
    assert listener.ids() == [array]


def test_another_goes_on_with_what_one_remembers(cluster: Cluster, slurm: ClientUnderTest) -> None:
    first = Listener(slurm, name="kept-*")
    told = cluster.sbatch("--job-name=kept-1")
    wait_told(cluster, first, told)
    memory = first.jobs.memory()
    meanwhile = cluster.sbatch("--job-name=kept-2")
    cluster.wait_job(meanwhile, "COMPLETED")
    second = Listener(slurm, name="kept-*")
    second.jobs.remember(memory)
    assert second.look() == [JobId.parse(meanwhile)]
    assert first.jobs.memory() == memory, "a memory is a value"


def test_a_memory_that_is_too_old_does_not_bring_back_the_past(cluster: Cluster, slurm: ClientUnderTest) -> None:
    listener = Listener(slurm, name="of-old")
    listener.jobs.remember({"horizon": 0, "told": {}})
    job = cluster.sbatch("--job-name=of-old")
    assert str(wait_told(cluster, listener, job).state) == "COMPLETED"
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    assert listener.jobs.memory()["horizon"] >= (yesterday - HOUR).timestamp()


@pytest.mark.oldest_slurm
def test_what_the_queue_has_forgotten_is_found_in_accounting(
    forgetful: Cluster, connect_kind: ConnectClient, forgotten: Callable[[str], bool]
) -> None:
    slurm = connect_kind("threads", forgetful)
    job = forgetful.sbatch("--job-name=forgotten")
    array = forgetful.sbatch("--job-name=forgotten", "--array=0-1", wrap="exit 3")
    listener = Listener(slurm, HOUR, name="forgotten")
    forgotten(job)
    forgotten(array)
    assert {str(one) for one in listener.look()} == {job, array}
    assert str(listener.told[-1].state) == "FAILED"
    # Between two looks of a slow one a job can come and go.
    late = forgetful.sbatch("--job-name=forgotten")
    forgotten(late)
    assert [str(one) for one in listener.look()] == [late]
    assert listener.look() == []


@pytest.mark.oldest_slurm
def test_the_jobs_of_others_are_found_too(
    forgetful: Cluster, connect_kind: ConnectClient, forgotten: Callable[[str], bool]
) -> None:
    job = forgetful.sbatch("--job-name=of-root")
    forgotten(job)
    everyone = Listener(connect_kind("threads", forgetful, "alice"), HOUR, name="of-root")
    assert [str(one) for one in everyone.look()] == [job]
    nobody = Listener(connect_kind("threads", forgetful), HOUR, name="of-root", user="alice")
    assert nobody.look() == []


@pytest.fixture
def forgotten(forgetful: Cluster) -> Callable[[str], bool]:
    """Waits until accounting has the end of a job that the queue has no longer."""

    def is_forgotten(job: str) -> bool:
        if forgetful.run("squeue", "--noheader", "--states=all", "--name=forgotten,of-root", "--format=%F").split():
            return False
        ends = forgetful.run("sacct", "--noheader", "--allocations", "--parsable2", "--format=End", f"--jobs={job}")
        return bool(ends) and "Unknown" not in ends

    return lambda job: forgetful.wait(f"the queue has forgotten {job}", lambda: is_forgotten(job))
