"""What is asked again after a failure, and what would do harm a second time."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_soperator.client.pace import RetryPolicy, repeated
from airflow_provider_soperator.slurm.errors import (
    AccountingUnreachable,
    ControllerUnreachable,
    InvalidRequest,
    NotPermitted,
    RateLimited,
)
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import CancelJobs, ListJobs, Request, RequeueJobs
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.transport_errors import (
    CommandTimedOut,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    NotSupported,
)

JOB = BatchJob(command="true", name=SubmissionKey.derive("dag", "run", "task", -1, 1).name("job"))
LIST, CANCEL = ListJobs(), CancelJobs(ids=(JobId(7),))
SIGNAL, REQUEUE = CancelJobs(ids=(JobId(7),), signal="USR1"), RequeueJobs((JobId(7),))
ONCE = SubmitOnce(jobs=(JOB,), fresh=True)

UNSETTLED = [ConnectionLost("cut"), CommandTimedOut("scancel", 1), ControllerUnreachable("timed out")]
NOT_DONE = [ConnectRefused("full"), RateLimited("slower"), AccountingUnreachable("refused")]
HOPELESS = [ConnectFailed("wrong key"), NotPermitted("no"), InvalidRequest("what?"), NotSupported("no"), ValueError()]


@pytest.mark.parametrize("error", UNSETTLED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("request_", "again"),
    [(LIST, LIST), (CANCEL, CANCEL), (SIGNAL, None), (REQUEUE, None)],
    ids=["list", "cancel", "signal", "requeue"],
)
def test_what_may_have_been_done_is_not_done_twice(request_: Request[Any], again: object, error: Exception) -> None:
    assert repeated(request_, error) == again


@pytest.mark.parametrize("error", UNSETTLED, ids=lambda error: type(error).__name__)
def test_a_submission_is_looked_for_before_it_is_made_again(error: Exception) -> None:
    again = repeated(ONCE, error)
    assert isinstance(again, SubmitOnce)
    assert not again.fresh


@pytest.mark.parametrize("error", NOT_DONE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("request_", [LIST, SIGNAL, REQUEUE, ONCE], ids=lambda one: type(one).__name__)
def test_what_was_not_done_is_asked_as_before(request_: Request[Any], error: Exception) -> None:
    assert repeated(request_, error) is request_


@pytest.mark.parametrize("error", HOPELESS, ids=lambda error: type(error).__name__)
def test_what_will_not_pass_is_not_tried_again(error: Exception) -> None:
    assert repeated(LIST, error) is None


def test_pauses_grow_and_end() -> None:
    policy = RetryPolicy(tries=6, first=0.5, longest=4)
    pauses = [policy.pause(attempt) for attempt in range(1, 7)]
    assert pauses.pop() is None
    for pause, longest in zip(pauses, [0.5, 1, 2, 4, 4], strict=True):
        assert pause is not None
        assert longest / 2 <= pause <= longest


def test_what_takes_long_to_fail_is_not_tried_for_ever() -> None:
    policy = RetryPolicy(within=100)
    assert policy.pause(1, spent=99) is not None
    assert policy.pause(1, spent=101) is None
