"""What each end of a job means for its task, also of those that a sandbox cannot bring about."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_soperator.operators.sbatch import settle
from airflow_provider_soperator.slurm.job_failures import JobError, JobFailed, JobNodeFailed, Policy, check_policy
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.notations import ExitCode
from airflow_provider_soperator.slurm.states import JobBase, JobState

JOB = JobId(7)
LOST = JobStatus(id=JOB, lost="neither queue nor accounting knows it")


def ended(state: JobBase | str, code: int = 0) -> JobStatus:
    part = Job(id=JOB, state=JobState.parse(state), exit_code=ExitCode(code, 0))
    return JobStatus(id=JOB, parts=(part,))


def raised(status: JobStatus, policy: Policy) -> type[Exception] | None:
    try:
        settle(status, policy)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED"])
def test_what_another_try_may_mend_is_tried_again(state: str) -> None:
    kind = raised(ended(state, 1), {})
    assert kind
    assert issubclass(kind, JobError)


@pytest.mark.parametrize("state", ["OUT_OF_MEMORY", "TIMEOUT", "DEADLINE", "CANCELLED"])
def test_what_would_end_in_the_same_way_fails_for_good(state: str) -> None:
    assert raised(ended(state), {}) is AirflowFailException
    assert raised(LOST, {}) is AirflowFailException


def test_each_end_has_a_meaning() -> None:
    unfinished = {JobBase.PENDING, JobBase.RUNNING, JobBase.SUSPENDED}
    meant = {base: raised(ended(base), {}) for base in set(JobBase) - unfinished}
    assert [base for base, kind in meant.items() if kind is None] == [JobBase.COMPLETED]


@pytest.mark.parametrize("state", ["OUT_OF_MEMORY", "BOOT_FAIL", "LOST"])
def test_a_policy_says_otherwise(state: str) -> None:
    status = LOST if state == "LOST" else ended(state)
    assert raised(status, {state: "succeed"}) is None
    assert raised(status, {state: "skip"}) is AirflowSkipException
    assert raised(status, {state: "fail"}) is AirflowFailException
    kind = raised(status, {state: "retry"})
    assert kind
    assert issubclass(kind, JobError)


def test_the_last_lines_of_output_are_part_of_the_exception() -> None:
    with pytest.raises(JobError, match=r"job 7 failed with exit code 1\nThe end of /root/7\.out:\n  no torch$"):
        settle(ended("FAILED", 1), {}, ["The end of /root/7.out:", "  no torch"])
    with pytest.raises(AirflowFailException, match=r"raise time_limit, .*: job 7 reached its time limit\n  last$"):
        settle(ended("TIMEOUT"), {}, ["  last"])


def test_an_exit_code_says_more_than_a_state() -> None:
    policy: Policy = {"FAILED": "skip", 75: "fail"}
    assert raised(ended("FAILED", 75), policy) is AirflowFailException
    assert raised(ended("FAILED", 74), policy) is AirflowSkipException


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (("FAILED", 75), ("FAILED", 1), JobFailed),
        (("FAILED", 1), ("FAILED", 75), JobFailed),
        (("FAILED", 75), ("TIMEOUT", 0), AirflowFailException),
        (("FAILED", 75), ("FAILED", 76), AirflowSkipException),
        (("FAILED", 75), ("COMPLETED", 0), None),
        # The worst end decides what is done about failures.
        (("TIMEOUT", 0), ("NODE_FAIL", 0), JobNodeFailed),
    ],
)
def test_no_element_of_an_array_hides_that_another_has_failed(
    first: tuple[str, int], second: tuple[str, int], kind: type[Exception] | None
) -> None:
    parts = (
        Job(id=JobId(7, element=number), state=JobState.parse(state), exit_code=ExitCode(code))
        for number, (state, code) in enumerate((first, second))
    )
    assert raised(JobStatus(id=JOB, parts=tuple(parts)), {75: "succeed", 76: "skip"}) is kind


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"OOM": "retry"}, "jobs do not end as 'OOM': there are CANCELLED, FAILED, TIMEOUT, .*, LOST"),
        ({"TIMEOT": "retry"}, "jobs do not end as 'TIMEOT': did you mean 'TIMEOUT'?"),
        ({"failed": "retry"}, "jobs do not end as 'failed': did you mean 'FAILED'?"),
        # Such a job has not ended, or has not failed.
        ({"RUNNING": "retry"}, "jobs do not end as 'RUNNING'"),
        ({"COMPLETED": "skip"}, "jobs do not end as 'COMPLETED'"),
        ({"TIMEOUT": "restart"}, "'restart' must be one of"),
        ("retry", "on_finish must be a dict such as .*, got 'retry'"),
        # Each failure without an exit code would be this one.
        ({0: "succeed"}, r"0 is neither a state nor an exit code of a failure \(1 to 255\)"),
        *(({key: "skip"}, f"{key} is neither a state") for key in (-1, 256, True, 1.5, None)),
    ],
)
def test_a_policy_that_would_never_apply_is_refused(policy: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_policy(policy)
