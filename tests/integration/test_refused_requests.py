"""What a real Slurm refuses, or cannot answer, comes back as an error that has the cause's name."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.slurm import errors
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    CancelJobs,
    CreateReservation,
    DeleteReservation,
    Drain,
    HoldJobs,
    JobDetail,
    ListJobs,
    ListNodes,
    MintToken,
    Ping,
    PowerDown,
    PowerUp,
    Request,
    RequeueJobs,
    ShowRights,
    TopJobs,
    UpdateJob,
    UpdateReservation,
)
from tests.integration.answers import (
    accounted,
    ask,
    submit,
)
from tests.integration.cluster import Cluster

# What Slurm answers differs from one version to the next.
pytestmark = [pytest.mark.each_slurm, pytest.mark.leaves("jobs")]

GONE = (JobId(999_999),)
SOON = datetime.now(timezone.utc) + timedelta(days=1)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (ListNodes(("nope-0",)), errors.UnknownNode),
        (PowerUp(("nope-0",)), errors.UnknownNode),
        (PowerDown(("nope-0",), reason="x"), errors.UnknownNode),
        (Drain(("nope-0", "worker-0"), "x"), errors.UnknownNode),
        (JobDetail(*GONE), errors.UnknownJob),
        (HoldJobs(GONE), errors.UnknownJob),
        (RequeueJobs(GONE), errors.UnknownJob),
        (TopJobs(GONE), errors.UnknownJob),
        (UpdateJob(*GONE, {"TimeLimit": "5"}), errors.UnknownJob),
        (Accounting(user="nope", since=SOON), errors.UnknownUser),
        (UpdateReservation(name="nope", end=SOON), errors.UnknownReservation),
        (
            CreateReservation(name="x", nodes=("nope-0",), start=SOON, end=None, users=("root",)),
            errors.UnknownNode,
        ),
        (
            CreateReservation(name="x", nodes=("worker-0",), start=SOON - timedelta(days=9), end=None, users=("root",)),
            errors.ReservationConflict,
        ),
        (MintToken(timedelta(days=-1)), errors.SlurmError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Request) else "",
)
def test_mistakes_have_names(cluster: Cluster, request_: Request[Any], expected: type[Exception]) -> None:
    with pytest.raises(expected):
        ask(cluster, request_)


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"partition": "nope"}, "--partition"),
        ({"reservation": "nope"}, "--reservation"),
        ({"nodelist": "nope-0"}, "--nodelist"),
        ({"constraint": "nope"}, "--constraint"),
        ({"gres": "nope:1"}, "--gres"),
        ({"extra_args": ["--no-such-option"]}, "--no-such-option"),
        ({"extra_args": ["--time=soon"]}, "--time"),
        ({"extra_args": ["--array=0-99999999"]}, "--array"),
        ({"extra_args": ["--dependency=afterok:999999"]}, "--dependency"),
        ({"gpus_per_node": 99}, "--nodes"),
    ],
)
def test_what_sbatch_refuses_names_the_option(cluster: Cluster, fields: dict[str, Any], option: str) -> None:
    with pytest.raises(errors.SubmitRefused) as raised:
        submit(cluster, **fields)
    assert raised.value.option == option
    assert not raised.value.retryable


@pytest.mark.parametrize(
    "request_",
    [
        PowerUp(("worker-1",)),
        Drain(("worker-0",), "x"),
        CreateReservation(name="x", nodes=("worker-0",), start=SOON, end=None, users=("alice",)),
        DeleteReservation("nope"),
        MintToken(timedelta(hours=1), "root"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_for_administrators_only(cluster: Cluster, request_: Request[Any]) -> None:
    with pytest.raises(errors.NotPermitted, match="AdminLevel"):
        ask(cluster, request_, user="alice")


def test_jobs_of_others_are_not_ours_to_change(cluster: Cluster) -> None:
    job = submit(cluster, hold=True)
    for request_ in (CancelJobs(ids=(job,)), HoldJobs((job,)), UpdateJob(job, {"Comment": "x"})):
        with pytest.raises(errors.NotPermitted):
            ask(cluster, request_, user="alice")


def test_jobs_that_have_ended_or_wait_are_in_no_state_for_it(cluster: Cluster) -> None:
    ended = submit(cluster)
    accounted(cluster, ids=(ended,))
    with pytest.raises(errors.JobFinished):
        ask(cluster, HoldJobs((ended,)))
    with pytest.raises(errors.InvalidStateTransition):
        ask(cluster, RequeueJobs((submit(cluster, hold=True),)))


def test_accounting_that_does_not_answer(cluster: Cluster) -> None:
    cluster.fault("slurmdbd-down")
    for question in (Accounting(ids=(JobId(1),)), ShowRights("root")):
        with pytest.raises(errors.AccountingUnreachable) as raised:
            ask(cluster, question)
        assert raised.value.retryable


@pytest.mark.oldest_slurm
def test_a_controller_that_does_not_answer(cluster: Cluster) -> None:
    cluster.fault("slurmctld-hung")
    with cluster.commands_wait(4):
        for question in (Ping(), ListJobs(mine=True)):
            with pytest.raises(errors.ControllerUnreachable) as raised:
                ask(cluster, question)
            assert raised.value.retryable
