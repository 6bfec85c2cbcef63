"""What accounting has of ended jobs: asked for together, and never waited for in vain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.client.batcher import RECORDS_PAUSE, RECORDS_WITHIN
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, JobStatus
from airflow_provider_soperator.slurm.job_reports import report_of
from airflow_provider_soperator.slurm.requests import Accounting, Request
from airflow_provider_soperator.slurm.states import JobState
from tests.unit.client.tracking import Slurm, queued, run_without_waiting

MINUTE = timedelta(minutes=1)


class Accountant(Slurm):
    """A Slurm that keeps the questions to its accounting, and calls ``before_answer`` before each answer."""

    def __init__(self, *records: AccountingJob) -> None:
        super().__init__(accounting=list(records))
        self.questions: list[Accounting] = []
        self.before_answer: Callable[[], None] = lambda: None

    async def ask(self, request: Request[Any]) -> Any:
        if isinstance(request, Accounting):
            self.questions.append(request)
            self.before_answer()
        return await super().ask(request)


def over(*parts: str, state: str = "COMPLETED", nodelist: str = "worker-0", name: str = "train") -> JobStatus:
    records = tuple(queued(part, state, nodelist=nodelist, name=name) for part in parts)
    return JobStatus(id=records[0].id.whole, parts=records)


def record(job: str, state: str = "COMPLETED", name: str = "train", **fields: Any) -> AccountingJob:
    return AccountingJob(id=JobId.parse(job), state=JobState.parse(state), name=name, elapsed=MINUTE, **fields)


def completed(slurm: Slurm, monkeypatch: pytest.MonkeyPatch, *jobs: JobStatus) -> list[JobStatus]:
    async def all_of_them() -> list[JobStatus]:
        client = AsyncSlurmClient(slurm)
        return list(await asyncio.gather(*map(client.accounts.complete, jobs)))

    return run_without_waiting(all_of_them(), monkeypatch)


def found(status: JobStatus) -> list[str]:
    return [str(one.id) for one in status.accounted]


def test_jobs_that_end_together_share_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Accountant(*(record(str(number)) for number in range(1, 101)))
    ended = completed(slurm, monkeypatch, *(over(str(number)) for number in range(1, 101)))
    assert [found(status) for status in ended] == [[str(number)] for number in range(1, 101)]
    [question] = slurm.questions
    assert question.steps


def test_jobs_that_end_one_after_the_other_are_asked_for_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Accountant(*(record(str(number)) for number in range(1, 101)))

    async def one_by_one() -> list[JobStatus]:
        client = AsyncSlurmClient(slurm)

        async def later(number: int) -> JobStatus:
            await asyncio.sleep(number / 20)
            return await client.accounts.complete(over(str(number)))

        return list(await asyncio.gather(*map(later, range(1, 101))))

    assert all(map(found, run_without_waiting(one_by_one(), monkeypatch)))
    # They end within five seconds.
    assert len(slurm.questions) <= 5 / RECORDS_PAUSE + 2


def test_a_job_that_accounting_does_not_have_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Accountant(record("7", "RUNNING"), record("8"))

    def later() -> None:
        if len(slurm.questions) == 3:
            slurm.accounting = [record("7"), record("8")]

    slurm.before_answer = later
    assert [found(status) for status in completed(slurm, monkeypatch, over("7"), over("8"))] == [["7"], ["8"]]
    assert [len(question.ids or ()) for question in slurm.questions] == [2, 1, 1]


def test_accounting_that_lags_too_far_behind_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[float] = []
    slurm = Accountant(record("7_0"), record("7_1", "RUNNING"))
    slurm.before_answer = lambda: began.append(time.monotonic())
    [status] = completed(slurm, monkeypatch, over("7_0", "7_1"))
    # What there is counts.
    assert found(status) == ["7_0"]
    assert began[-1] - began[0] <= RECORDS_WITHIN


@pytest.mark.parametrize("accounting", ["off", "down"])
def test_without_accounting_a_job_ends_without_figures(accounting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Accountant()
    slurm.accounting = None if accounting == "off" else []

    def fail() -> None:
        if accounting == "down":
            raise SlurmError("slurmdbd does not answer", "sacct")

    slurm.before_answer = fail
    ended = completed(slurm, monkeypatch, over("7"), over("8"))
    assert [found(status) for status in ended] == [[], []]
    assert len(slurm.questions) == 1


def test_a_job_that_ends_while_accounting_fails_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm()

    async def one_after_the_other() -> None:
        client = AsyncSlurmClient(slurm)
        await client.accounts.complete(over("7"))
        slurm.accounting = [record("8")]
        assert not (await client.accounts.complete(over("8"))).accounted
        await asyncio.sleep(10)
        assert (await client.accounts.complete(over("8"))).accounted

    run_without_waiting(one_after_the_other(), monkeypatch)


@pytest.mark.parametrize(
    "there",
    [
        # Another job that had the number, and the run before a requeue.
        record("7", name="other"),
        record("7", "NODE_FAIL"),
    ],
)
def test_only_the_record_of_the_jobs_own_end_counts(there: AccountingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    [status] = completed(Accountant(there), monkeypatch, over("7"))
    assert found(status) == []


def test_runs_of_another_job_with_the_number_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = (record("7", name="other"), record("7", "NODE_FAIL"))
    [status] = completed(Accountant(record("7", earlier_runs=earlier)), monkeypatch, over("7"))
    assert status.accounted[0].earlier_runs == earlier[1:]


def test_a_cancelled_job_is_attributed(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Accountant(record("7_0", "CANCELLED by 1001"))
    cancelled = over("7_0", "7_1", state="CANCELLED", nodelist="")
    [status] = completed(slurm, monkeypatch, cancelled)
    assert [part.state.cancelled_by for part in status.parts] == [1001, None]
    # An element that never ran has no record, and is not waited for.
    assert len(slurm.questions) == 1


def test_nothing_is_asked_about_jobs_that_never_ran_or_were_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Accountant()
    lost = replace(over("8", state="RUNNING"), lost="slurmctld does not know it")
    completed(slurm, monkeypatch, over("7", state="DEADLINE", nodelist=""), lost)
    assert slurm.questions == []


@pytest.mark.parametrize("tres", ["cpu=4", "cpu=4,gres/gpu=2"])
@pytest.mark.parametrize("tracked", [None, "cpu,mem", "cpu,mem,gres/gpu"])
def test_gpus_that_slurm_does_not_count_are_not_none(
    tracked: str | None, tres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Accountant(record("7", tres=tres))
    settings = {} if tracked is None else {"AccountingStorageTRES": tracked}
    slurm.config = ClusterConfig(version="25.11.3", settings=settings)
    [status] = completed(slurm, monkeypatch, over("7"))
    hours = 2 / 60 if "gpu" in tres else None if tracked == "cpu,mem" else 0
    assert report_of(status)["gpu_hours"] == (hours and round(hours, 4))


def test_without_the_settings_there_are_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Accountant(record("7", tres="cpu=4"))
    slurm.config = SlurmError("slurmctld does not answer", "scontrol")
    [status] = completed(slurm, monkeypatch, over("7"))
    assert report_of(status)["gpu_hours"] == 0
