"""Submissions of many tasks at once, and of a try after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_provider_soperator.client import batcher, submissions
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.client.pace import RetryPolicy
from airflow_provider_soperator.client.submissions import Earlier
from airflow_provider_soperator.slurm.errors import ControllerUnreachable, NotReached, SubmitRefused
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs, Request
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.requests.submission import MOST, SubmitOnce, Submitted, Withdraw
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from tests.unit.client.tracking import Log, past, queued, run_without_waiting

JOB = BatchJob(command="true", name="train")


def keys(count: int) -> list[SubmissionKey]:
    return [SubmissionKey.derive("dag", "run", "task", number, "1") for number in range(count)]


# Many at once


class Submitting:
    """A transport to a Slurm that submits; ``meanwhile`` happens during each request, with its number."""

    def __init__(self, meanwhile: Callable[[int], Any] = lambda _: None, reach: int = MOST) -> None:
        self.meanwhile, self.reach = meanwhile, reach
        #: The jobs of each request, and how many of them were under way at once.
        self.requests: list[int] = []
        self.under_way = self.most_under_way = 0
        self.ids: dict[str, JobId] = {}

    async def ask(self, request: Request[Any]) -> Any:
        assert isinstance(request, SubmitOnce)
        self.requests.append(len(request.jobs))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            # Others have their turn.
            await asyncio.sleep(0)
            self.meanwhile(len(self.requests))
            await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        return tuple(self._answer(place, job) for place, job in enumerate(request.jobs))

    def _answer(self, place: int, job: BatchJob) -> Submitted:
        if place >= self.reach:
            return Submitted(None, error=NotReached("over"))
        name = job.name or ""
        return Submitted(self.ids.setdefault(name, JobId(len(self.ids) + 1)))

    async def close(self) -> None: ...


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "BATCH_PAUSE", 0)


def client_of(transport: Any) -> AsyncSlurmClient:
    return AsyncSlurmClient(transport, RetryPolicy(tries=1))


def fan_out(transport: Submitting, count: int) -> list[Submitted | BaseException]:
    async def run() -> list[Submitted | BaseException]:
        client = client_of(transport)
        return await asyncio.gather(*(client.submit(JOB, key) for key in keys(count)), return_exceptions=True)

    return asyncio.run(run())


def test_a_request_that_fails_fails_its_own_tasks_only() -> None:
    def fail(request: int) -> None:
        if request == 3:
            raise ControllerUnreachable("away")

    transport = Submitting(fail)
    answers = fan_out(transport, 2 * MOST + 200)
    assert [isinstance(one, ControllerUnreachable) for one in answers] == [False] * 2 * MOST + [True] * 200
    assert len({one.id for one in answers if isinstance(one, Submitted)}) == len(transport.ids) == 2 * MOST


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--dependency=singleton?afterok:3", SubmitRefused),
        ("--priority=high", InvalidJob),
        # Where Slurm can say what it makes of a line, it does.
        ("--nodes=4-2", None),
        ("--time=2h", None),
    ],
)
@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_job_that_cannot_be_written_fails_alone(line: str, error: type[Exception] | None, is_mapped: bool) -> None:
    class Writing(Submitting):
        async def ask(self, request: Request[Any]) -> Any:
            request.command()
            return await super().ask(request)

    odd = BatchJob(script=f"#!/bin/sh\n#SBATCH {line}\ntrue\n", name="odd")
    odd_keys = [SubmissionKey("b" * 12 + f"_{number}" * is_mapped) for number in range(1 + is_mapped)]

    async def run() -> list[Submitted | BaseException]:
        client = client_of(Writing())
        wanted = [(JOB, key) for key in keys(9)]
        wanted[4:4] = [(odd, key) for key in odd_keys]
        return await asyncio.gather(*(client.submit(job, key) for job, key in wanted), return_exceptions=True)

    answers = asyncio.run(run())
    refused = [answers.pop(4) for _ in odd_keys]
    assert [type(one) for one in refused] == [error or Submitted] * len(odd_keys)
    assert len({one.id for one in answers if isinstance(one, Submitted)}) == 9


def test_what_a_request_does_not_get_to_is_in_the_next() -> None:
    transport = Submitting(reach=4)
    answers = fan_out(transport, 10)
    assert len({one.id for one in answers if isinstance(one, Submitted)}) == 10
    assert transport.requests == [10, 6, 2]


def test_a_job_that_slurmctld_gives_no_answer_about_is_in_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Submitting):
        def _answer(self, place: int, job: BatchJob) -> Submitted:
            if place and time.monotonic() < 1000 + 3600:
                return Submitted(None, error=ControllerUnreachable("connect failure"))
            return super()._answer(place, job)

    transport, log = Failing(), Log()

    async def run() -> list[Submitted]:
        client = AsyncSlurmClient(transport).patient(log)
        return await asyncio.gather(*(client.submit(JOB, key) for key in keys(4)))

    answers = run_without_waiting(run(), monkeypatch)
    assert len({one.id for one in answers}) == 4
    # One job is submitted each time, as long as there are others; they are no reason to wait for it.
    assert transport.requests[:4] == [4, 3, 2, 1]
    assert log.lines == []


def test_slurmctld_is_waited_for_that_gives_no_answer_about_any_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Submitting):
        def _answer(self, place: int, job: BatchJob) -> Submitted:
            if time.monotonic() < 1000 + 600:
                return Submitted(None, error=ControllerUnreachable("connect failure"))
            return super()._answer(place, job)

    transport, log = Failing(), Log()
    client = AsyncSlurmClient(transport).patient(log)
    assert run_without_waiting(client.submit(JOB, keys(1)[0]), monkeypatch).id == JobId(1)
    assert len(transport.requests) < 30
    assert len(log.lines) == 1


def test_many_of_one_caller_are_all_answered_in_order() -> None:
    transport = Submitting(reach=4)

    async def submit() -> list[Submitted]:
        client = client_of(transport)
        return await asyncio.gather(*(client.submit(JOB, key) for key in keys(10)))

    answers = asyncio.run(submit())
    assert [one.id for one in answers] == [transport.ids[submissions.named(JOB, key).name or ""] for key in keys(10)]


def test_one_request_is_under_way_at_a_time_and_the_next_has_what_came_meanwhile() -> None:
    async def run() -> Submitting:
        later: list[asyncio.Future[Submitted]] = []
        first, *others = keys(4)

        def meanwhile(request: int) -> None:
            if request == 1:
                later.extend(asyncio.ensure_future(client.submit(JOB, key)) for key in [*others, first])

        transport = Submitting(meanwhile)
        client = client_of(transport)
        own = await client.submit(JOB, first)
        answers = await asyncio.gather(*later)
        assert answers[-1] == own
        return transport

    transport = asyncio.run(run())
    assert (transport.requests, transport.most_under_way) == ([1, 3], 1)


def test_tasks_are_told_as_soon_as_their_request_is_answered() -> None:
    told: list[int] = []

    async def run() -> None:
        tasks: list[asyncio.Future[Submitted]] = []
        transport = Submitting(lambda _: told.append(sum(task.done() for task in tasks)))
        client = client_of(transport)
        tasks.extend(asyncio.ensure_future(client.submit(JOB, key)) for key in keys(2 * MOST))
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert told == [0, MOST]


# A try after another


class Remembering:
    """A Slurm whose queue and accounting are given."""

    def __init__(self, queue: Sequence[Job] = (), accounted: Sequence[AccountingJob] = ()) -> None:
        self.queue, self.accounted = queue, accounted
        self.asked: list[Request[Any]] = []

    def __call__(self, request: Request[Any]) -> Any:
        self.asked.append(request)
        if isinstance(request, ListJobs):
            return tuple(job for job in self.queue if request.admits(job))
        if isinstance(request, Accounting):
            return tuple(job for job in self.accounted if request.admits(job))
        if isinstance(request, Withdraw):
            return None
        assert isinstance(request, SubmitOnce)
        return tuple(Submitted(JobId(99)) for _ in request.jobs)

    async def ask(self, request: Request[Any]) -> Any:
        return self(request)

    async def close(self) -> None: ...


EARLIER, OWN = keys(2)
NAME = EARLIER.name("train")


@pytest.mark.parametrize(
    ("queue", "accounted", "found"),
    [
        ("RUNNING", None, True),
        ("COMPLETED", None, True),
        ("FAILED", None, False),
        (None, "COMPLETED", True),
        (None, "FAILED", False),
        # It has left the queue, and accounting has yet to hear of its end.
        (None, "RUNNING", True),
        (None, "PENDING", True),
        ("CANCELLED", "RUNNING", False),
        # squeue does not tell how a job has ended that is completing.
        ("COMPLETING", "CANCELLED by 0", False),
        ("CANCELLED+COMPLETING", None, False),
        ("COMPLETING", "COMPLETED", True),
        ("COMPLETING", "NODE_FAIL", True),
    ],
)
def test_a_try_goes_on_with_a_job_unless_that_has_failed(queue: str | None, accounted: str | None, found: bool) -> None:
    slurm = Remembering([queued("7", queue, NAME)] if queue else [], [past("7", accounted, NAME)] if accounted else [])
    [adopted] = run_steps(submissions.find({"": Earlier(JOB, (EARLIER,))}), slurm).values()
    assert adopted == (Submitted(JobId(7), adopted=True) if found else None)


def test_a_try_goes_on_with_a_job_that_had_another_name_before_its_key() -> None:
    slurm = Remembering([queued("7", "RUNNING", EARLIER.name("train-1"))])
    [adopted] = run_steps(submissions.find({"": Earlier(JOB.replace(name="train-2"), (EARLIER,))}), slurm).values()
    assert adopted == Submitted(JobId(7), adopted=True)


def test_a_try_goes_on_with_an_array_of_which_only_some_elements_are_being_cancelled() -> None:
    slurm = Remembering([queued("7_0", "CANCELLED+COMPLETING", NAME), queued("7_1", "RUNNING", NAME)])
    [adopted] = run_steps(submissions.find({"": Earlier(JOB, (EARLIER,))}), slurm).values()
    assert adopted == Submitted(JobId(7), adopted=True)


def test_a_try_goes_on_with_no_job_that_is_cancelled_while_it_is_looked_for() -> None:
    class Cancelling(Remembering):
        def __call__(self, request: Request[Any]) -> Any:
            if isinstance(request, Withdraw):
                self.queue, self.accounted = [queued("7", "COMPLETING", NAME)], [past("7", "CANCELLED by 0", NAME)]
            return super().__call__(request)

    slurm = Cancelling([queued("7", "RUNNING", NAME)])
    assert run_steps(submissions.find({"": Earlier(JOB, (EARLIER,))}), slurm) == {"": None}


def test_nothing_is_submitted_while_the_end_of_the_job_before_is_unknown() -> None:
    slurm = Remembering(accounted=[past("7", "RUNNING", NAME)])

    async def submit() -> Submitted:
        return await JobRun(client_of(slurm), JOB, [EARLIER, OWN]).submit()

    assert asyncio.run(submit()) == Submitted(JobId(7), adopted=True)
    assert not any(isinstance(request, SubmitOnce) for request in slurm.asked)


def test_only_ones_own_jobs_are_looked_for() -> None:
    slurm = Remembering()
    run_steps(submissions.find({"": Earlier(JOB, (EARLIER,))}), slurm)
    assert [request.mine for request in slurm.asked if isinstance(request, (ListJobs, Accounting))] == [True, True]
