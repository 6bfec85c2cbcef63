"""Each end of a job is an exception that says what to do, or none."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm import job_failures
from airflow_provider_soperator.slurm.job_failures import JobError, failure
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.notations import ExitCode
from airflow_provider_soperator.slurm.states import JobBase, JobState


def ended(state: str, **fields: object) -> JobStatus:
    return JobStatus(id=JobId(7), parts=(Job(id=JobId(7), state=JobState.parse(state), **fields),))  # type: ignore[arg-type]


def array(*states: str) -> JobStatus:
    parts = (Job(id=JobId(7, element=n), state=JobState.parse(state)) for n, state in enumerate(states))
    return JobStatus(id=JobId(7), parts=tuple(parts))


@pytest.mark.parametrize(
    ("status", "kind", "retry_helps", "words"),
    [
        (
            ended("FAILED", exit_code=ExitCode(3)),
            job_failures.JobFailed,
            True,
            "see its output: job 7 failed with exit code 3",
        ),
        (
            ended("FAILED", exit_code=ExitCode(0, 9)),
            job_failures.JobFailed,
            True,
            "see its output: job 7 was killed by SIGKILL",
        ),
        (
            ended("FAILED", exit_code=ExitCode(0, 53), nodelist="w-1"),
            job_failures.JobNotStarted,
            True,
            "job 7 was not started, as the node could not open its output, error or input file (signal 53) on w-1",
        ),
        (
            ended("OUT_OF_MEMORY", nodelist="w-1"),
            job_failures.JobOutOfMemory,
            False,
            "or use less: job 7 ran out of memory on w-1",
        ),
        (ended("TIMEOUT"), job_failures.JobTimedOut, False, "raise time_limit, or save a checkpoint"),
        (ended("DEADLINE"), job_failures.JobMissedDeadline, False, "deadline"),
        (ended("NODE_FAIL"), job_failures.JobNodeFailed, True, "lost a node"),
        (ended("BOOT_FAIL"), job_failures.JobBootFailed, True, "did not power up"),
        (ended("PREEMPTED"), job_failures.JobPreempted, True, "was preempted"),
        (ended("CANCELLED by 1001"), job_failures.JobCancelled, False, "was cancelled by the user with id 1001"),
        (ended("CANCELLED by 0"), job_failures.JobCancelled, False, "job 7 was cancelled by root"),
        (
            ended("CANCELLED", reason="DependencyNeverSatisfied"),
            job_failures.JobCancelled,
            False,
            "job 7 was cancelled (DependencyNeverSatisfied)",
        ),
        (
            JobStatus(id=JobId(7), lost="nobody knows it"),
            job_failures.JobLost,
            False,
            "run it again: job 7 is lost: nobody knows it",
        ),
    ],
)
def test_each_end_has_its_exception(status: JobStatus, kind: type, retry_helps: bool, words: str) -> None:
    error = failure(status)
    assert type(error) is kind
    assert error.retry_helps is retry_helps
    assert words in str(error)
    assert error.status is status


def test_every_end_that_slurm_knows_has_one() -> None:
    unfinished = {JobBase.PENDING, JobBase.RUNNING, JobBase.SUSPENDED, JobBase.COMPLETED}
    for base in set(JobBase) - unfinished:
        assert type(failure(ended(base.value))) is not JobError, base


def test_success_is_no_failure() -> None:
    assert failure(ended("COMPLETED")) is None
    assert failure(array("COMPLETED", "COMPLETED")) is None


def test_an_array_names_what_failed_and_how() -> None:
    error = failure(array("COMPLETED", "FAILED", "TIMEOUT", "FAILED"))
    assert type(error) is job_failures.JobFailed
    assert "3 of its 4 parts: 2 FAILED, 1 TIMEOUT: 7_1, 7_2, 7_3" in str(error)


def test_what_is_not_over_has_not_failed() -> None:
    with pytest.raises(ValueError, match="is not over: RUNNING"):
        failure(ended("RUNNING"))
