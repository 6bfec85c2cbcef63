"""Orders to jobs of the queue, against queues that change between a look and an order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from airflow_provider_soperator.client import queue
from airflow_provider_soperator.client.queue import JobSelection, OrderedJobs
from airflow_provider_soperator.slurm.errors import JobFinished, NotPermitted, SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.queue_filter import QueueFilter
from airflow_provider_soperator.slurm.requests import (
    CancelJobs,
    HoldJobs,
    ListJobs,
    ReleaseJobs,
    Request,
    TopJobs,
    UpdateJob,
)
from airflow_provider_soperator.slurm.requests.commands import Steps, run_steps
from airflow_provider_soperator.slurm.requests.submission import Withdraw
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey

T = TypeVar("T")

parse = JobId.parse
BOB = JobSelection(filter=QueueFilter(user="bob"))


def job(number: str, state: str = "PENDING", **fields: Any) -> Job:
    return Job(id=parse(number), state=JobState.parse(state), **{"user": "bob", "priority": 7, **fields})


def held(number: str, **fields: Any) -> Job:
    return job(number, **{"priority": 0, "reason": "JobHeldUser", **fields})


def give(steps: Steps[T], *looks: Sequence[Job], refuse: Exception | None = None) -> tuple[T, list[Any]]:
    """What comes of an order, and what was ordered; each look sees another queue, and the first order is refused."""
    queues, orders = list(looks), []

    def ask(request: Request[Any]) -> Any:
        nonlocal refuse
        if isinstance(request, ListJobs):
            return tuple(queues.pop(0))
        orders.append(request)
        error, refuse = refuse, None
        if error:
            raise error
        return None

    return run_steps(steps, ask), orders


def ids(*numbers: str) -> tuple[JobId, ...]:
    return tuple(map(parse, numbers))


def test_what_waits_is_held_and_what_is_held_or_runs_is_left() -> None:
    ordered, orders = give(queue.hold(BOB), [job("1"), held("2"), job("3", "RUNNING"), job("4", "COMPLETED")])
    assert orders == [HoldJobs(ids("1"))]
    assert ordered == OrderedJobs(ids("1", "2"), ids("2"))


def test_a_second_time_nothing_is_ordered() -> None:
    ordered, orders = give(queue.hold(BOB), [held("1")])
    assert (ordered, orders) == (OrderedJobs(ids("1"), ids("1")), [])


def test_elements_of_which_some_are_held_are_held_as_a_whole() -> None:
    some = job("5_[0-3]", reason="None,JobHeldAdmin")
    assert give(queue.hold(BOB), [some])[1] == [HoldJobs(ids("5_[0-3]"))]
    assert give(queue.release(BOB), [some])[1] == [ReleaseJobs(ids("5_[0-3]"))]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("ReqNodeNotAvail", "1"),
        ("Resources", "2_[0-3]"),
        ("Priority", "2_[0-3]"),
        ("Nodes_required_for_job_are_DOWN", "3"),
        ("Nodes required for job are DOWN, DRAINED or reserved", "3"),
    ],
)
def test_jobs_are_found_by_one_of_their_reasons_without_what_follows_it(wanted: str, found: str) -> None:
    jobs = [
        job("1", reason="ReqNodeNotAvail,_UnavailableNodes:worker-6"),
        job("2_[0-3]", reason="Priority,Resources"),
        job("3", reason="Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved"),
    ]
    assert give(queue.hold(JobSelection(filter=QueueFilter(reason=wanted))), jobs)[1] == [HoldJobs(ids(found))]


def test_what_starts_between_look_and_order_is_left() -> None:
    looks = [job("1"), job("2")], [held("1"), job("2", "RUNNING")]
    ordered, orders = give(queue.hold(BOB), *looks, refuse=JobFinished("Job has already finished"))
    assert orders == [HoldJobs(ids("1", "2"))]
    assert ordered == OrderedJobs(ids("1"), ())


def test_named_jobs_that_are_gone_are_told() -> None:
    ordered, _ = give(queue.release(JobSelection(ids=ids("1", "9", "3"))), [held("1"), job("3", "RUNNING")])
    assert ordered == OrderedJobs(ids("1"), (), ids("9", "3"))


def test_who_is_refused_is_not_refused_again_and_again() -> None:
    with pytest.raises(NotPermitted):
        give(queue.hold(BOB), [job("1")], refuse=NotPermitted("Access/permission denied"))


def test_a_queue_that_never_rests_is_an_error() -> None:
    steps = queue.hold(BOB)

    def ask(request: Request[Any]) -> Any:
        if isinstance(request, ListJobs):
            return (job("1"),)
        raise JobFinished("Job has already finished")

    with pytest.raises(JobFinished):
        run_steps(steps, ask)


def test_first_come_those_that_are_named_first_each_among_its_users_jobs() -> None:
    meant = JobSelection(ids=ids("3", "8", "5", "9"))
    jobs = [job("9", user="eve"), job("5_[0-3]"), job("5_4"), job("8", user="eve"), job("3"), held("7")]
    _, orders = give(queue.top(meant), jobs)
    assert orders == [TopJobs(ids("3", "5")), TopJobs(ids("8", "9"))]


LATER = {"TimeLimit": "60", "QOS": "slow"}
KNOWN = {"time_limit": timedelta(hours=1), "qos": "slow"}


def update(also_running: bool = False) -> Steps[OrderedJobs]:
    return queue.update(BOB, LATER, lambda one: queue.has_fields(one, KNOWN), also_running)


@pytest.mark.parametrize(("also_running", "changed"), [(False, ["1"]), (True, ["1", "3"])])
def test_what_has_other_values_is_changed(also_running: bool, changed: list[str]) -> None:
    jobs = [job("1", qos="slow"), job("2", **KNOWN), job("3", "RUNNING"), job("4", "FAILED")]
    ordered, orders = give(update(also_running), jobs)
    assert orders == [UpdateJob(parse(number), LATER) for number in changed]
    assert ordered.already == ids("2")


@pytest.mark.parametrize("order", [queue.hold, queue.release, queue.top])
def test_an_empty_queue_is_no_error(order: Callable[[JobSelection], Steps[OrderedJobs]]) -> None:
    assert give(order(BOB), []) == (OrderedJobs((), ()), [])


def test_a_job_is_cancelled_though_its_withdrawal_cannot_be_written() -> None:
    key = SubmissionKey("abcdefghijkl")
    full = SlurmError("touch: cannot touch 'abcdefghijkl': No space left on device", "sh")
    ended, orders = give(queue.cancel_keys({1: [key]}), [job("7", "RUNNING", name=key.name("fit"))], refuse=full)
    assert (ended, orders) == ({1: ids("7")}, [Withdraw((key,)), CancelJobs(ids=ids("7"))])
