"""What thousands of tasks cost a cluster that are tried again, cleared or ended at the same moment."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests import Accounting, CancelJobs, ListJobs
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Withdraw
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from tests.unit.client.tracking import Slurm, past, queued, run_without_waiting

COUNT = 2000
JOB = BatchJob(command="train", name="train")


def key(task: int, number: int) -> SubmissionKey:
    return SubmissionKey.derive("dag", "run", "task", task, number)


FIRST, SECOND = ([key(task, number) for task in range(COUNT)] for number in (1, 2))


def runs(slurm: Slurm, tries: int = 1, replaced: int = 0) -> list[JobRun]:
    """The runs of this try of all tasks; those of some tries are replaced."""
    client = AsyncSlurmClient(slurm)
    keys = [[key(task, number) for number in range(1, tries + 1)] for task in range(COUNT)]
    return [JobRun(client, JOB, some[replaced:], replaced=some[:replaced]) for some in keys]


def submit(runs: list[JobRun], monkeypatch: pytest.MonkeyPatch) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*(run.submit() for run in runs))

    run_without_waiting(all_of_them(), monkeypatch)


def test_first_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    submit(runs(slurm), monkeypatch)
    assert len(slurm.queue) == COUNT
    assert len(slurm.asked) == slurm.count(SubmitOnce) == 4


def test_tries_after_jobs_that_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Half of them have left the queue.
    queue = [queued(str(at + 1), "FAILED", name=one.name("train")) for at, one in enumerate(FIRST[::2])]
    gone = [past(str(at + COUNT + 1), "NODE_FAIL", name=one.name("train")) for at, one in enumerate(FIRST[1::2])]
    slurm = Slurm(*queue, accounting=gone)
    slurm.next_id = 10_000
    tried = runs(slurm, tries=2)
    submit(tried, monkeypatch)
    assert [run.submitted and run.submitted.key for run in tried] == SECOND
    # By names, of which each question to accounting has some hundred, and then by ids.
    assert (slurm.count(ListJobs), slurm.count(Accounting), slurm.count(SubmitOnce)) == (2, 5, 4)
    assert len(slurm.asked) == 12


def test_tries_that_go_on_with_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(*(queued(str(at + 1), "RUNNING", name=one.name("train")) for at, one in enumerate(FIRST)))
    tried = runs(slurm, tries=2)
    submit(tried, monkeypatch)
    assert [run.submitted and run.submitted.key for run in tried] == FIRST
    assert slurm.count(SubmitOnce) == 0
    # From here on they are not to be cancelled, whatever was withdrawn before.
    assert [one.is_void for one in slurm.asked if isinstance(one, Withdraw)] == [True]
    assert len(slurm.asked) <= 8


def test_cleared_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(*(queued(str(at + 1), "RUNNING", name=one.name("train")) for at, one in enumerate(FIRST)))
    slurm.next_id = 10_000
    tried = runs(slurm, tries=2, replaced=1)
    submit(tried, monkeypatch)
    assert [str(job) for run in tried for job in run.ended] == [str(at + 1) for at in range(COUNT)]
    assert [run.submitted and run.submitted.key for run in tried] == SECOND
    assert [slurm.count(kind) for kind in (Withdraw, ListJobs, CancelJobs, SubmitOnce)] == [1, 1, 2, 4]
    assert len(slurm.asked) == 8


def test_tasks_that_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm()

    async def ended() -> None:
        begun = runs(slurm)
        await asyncio.gather(*(run.submit() for run in begun))
        slurm.asked.clear()
        await asyncio.gather(*(run.cancel() for run in begun))

    run_without_waiting(ended(), monkeypatch)
    cancelled = [job for one in slurm.asked if isinstance(one, CancelJobs) for job in one.ids]
    assert sorted(cancelled) == sorted(job.id for job in slurm.queue)
    assert [slurm.count(kind) for kind in (Withdraw, ListJobs, CancelJobs)] == [1, 1, 2]
    assert len(slurm.asked) == 4
