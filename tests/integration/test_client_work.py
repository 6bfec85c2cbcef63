"""What a client does beside waiting: submissions, cancellations, and where jobs stand, by either client."""

from __future__ import annotations

import uuid

import pytest

from airflow_provider_soperator.client import submissions
from airflow_provider_soperator.slurm.errors import SubmitRefused
from airflow_provider_soperator.slurm.files import FileError, WritePiece
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import ListJobs
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.transport_errors import TransportError
from tests.integration.clients import ClientUnderTest
from tests.integration.cluster import Cluster
from tests.submissions import Submit

pytestmark = [pytest.mark.oldest_slurm, pytest.mark.leaves("jobs")]

HELD = BatchJob(command="true", name="work", output="/dev/null", hold=True)


def key(attempt: int = 1, run: str = "") -> SubmissionKey:
    return SubmissionKey.derive("dag", run or uuid.uuid4().hex, "task", -1, attempt)


@pytest.mark.each_client
def test_a_job_is_submitted_once_for_each_key(slurm: ClientUnderTest, cluster: Cluster) -> None:
    own = key()
    first, second = slurm.do("submit", HELD, own), slurm.do("submit", HELD, own)
    assert (first.adopted, second.adopted) == (False, True)
    assert first.id == second.id
    assert slurm.do("submit", HELD, key()).id != first.id


def test_what_slurm_refuses_is_raised(slurm: ClientUnderTest, cluster: Cluster) -> None:
    with pytest.raises(SubmitRefused, match="nowhere"):
        slurm.do("submit", HELD.replace(partition="nowhere"), key())


@pytest.mark.each_client
def test_a_connection_that_is_cut_makes_no_second_job(slurm: ClientUnderTest, cluster: Cluster) -> None:
    keys, ids = [key() for _ in range(3)], []
    for own in keys:
        slurm.ask(ListJobs())
        cluster.fault("login-cut")
        ids.append(slurm.do("submit", HELD, own).id)
    found = slurm.ask(ListJobs(name_suffixes=tuple(own.suffix for own in keys)))
    assert sorted(job.id for job in found) == ids


def test_what_may_have_been_done_is_not_done_again(slurm: ClientUnderTest, cluster: Cluster) -> None:
    slurm.ask(ListJobs())
    cluster.fault("login-cut")
    # Nobody could tell whether the first was made.
    with pytest.raises(TransportError):
        slurm.ask(Submit(HELD))
    assert slurm.ask(Submit(HELD))


@pytest.mark.soak
def test_hundreds_of_jobs_in_one_go(slurm: ClientUnderTest, cluster: Cluster) -> None:
    jobs = [submissions.named(HELD, key()) for _ in range(300)]
    ids = [one.id for one in slurm.ask(SubmitOnce(jobs=tuple(jobs)))]
    assert len(set(ids)) == len(jobs)
    names = {job.id: job.name for job in slurm.ask(ListJobs(mine=True))}
    assert [names[job] for job in ids] == [job.name for job in jobs]
    assert {str(status.state) for status in slurm.do("statuses", ids).values()} == {"PENDING"}
    slurm.do("cancel_many", ids)
    ended = slurm.do("statuses", ids)
    assert list(ended) == ids
    assert {str(status.state) for status in ended.values()} == {"CANCELLED"}
    # All have ended: no error.
    slurm.do("cancel_many", ids)


def test_where_jobs_stand(slurm: ClientUnderTest, cluster: Cluster) -> None:
    held, failed, array = cluster.sbatch("--hold"), cluster.sbatch(wrap="exit 1"), cluster.sbatch("--array=1-2")
    cluster.wait_job(failed, "FAILED")
    whole_array = JobId.parse(array)
    cluster.wait("the array has ended", lambda: slurm.do("statuses", [whole_array])[whole_array].is_over)
    asked = [JobId.parse(job) for job in (held, failed, array, f"{array}_2", f"{array}_5", "999999")]
    waits, fails, whole, element, no_element, unknown = slurm.do("statuses", asked).values()
    assert [str(one.state) for one in (waits, fails, whole, element)] == ["PENDING", "FAILED", "COMPLETED", "COMPLETED"]
    assert (len(whole.parts), len(element.parts)) == (2, 1)
    assert no_element.lost == f"job {array} exists, but has no part {array}_5"
    assert unknown.lost == "it is in neither the queue nor accounting"


def test_without_accounting_it_is_said_where_jobs_stand(slurm: ClientUnderTest, cluster: Cluster) -> None:
    job = JobId.parse(cluster.sbatch("--hold"))
    cluster.fault("slurmdbd-down")
    statuses = slurm.do("statuses", [job, JobId(999999)])
    assert str(statuses[job].state) == "PENDING"
    assert "slurmdbd" in statuses[JobId(999999)].trouble
    assert not statuses[JobId(999999)].is_over


def test_the_newest_try_of_a_job_is_found(slurm: ClientUnderTest, cluster: Cluster) -> None:
    run = uuid.uuid4().hex
    keys = [key(attempt, run) for attempt in (1, 2, 3)]
    assert slurm.do("find", HELD, keys) is None
    first = slurm.do("submit", HELD, keys[0])
    assert slurm.do("find", HELD, keys).id == first.id
    second = slurm.do("submit", HELD, keys[1])
    assert slurm.do("find", HELD, keys).id == second.id
    slurm.do("cancel_many", [second.id])
    # The newest was not to be: nobody goes back to one before it.
    assert slurm.do("find", HELD, keys) is None


def test_a_file_is_read_whole(slurm: ClientUnderTest, cluster: Cluster) -> None:
    data = bytes(range(256)) * 12_000
    slurm.ask(WritePiece("/root/whole", 0, data, 0o644))
    assert slurm.do("read_file", "/root/whole") == data
    assert slurm.do("read_file", "/root/whole", len(data)) == data
    with pytest.raises(FileError, match="more than 1000 bytes"):
        slurm.do("read_file", "/root/whole", 1000)
    with pytest.raises(FileError, match="no file /root/nothing"):
        slurm.do("read_file", "/root/nothing")
