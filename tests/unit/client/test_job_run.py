"""A job from its submission to its end, with a Slurm that forgets."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import JobRun, Printed
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import SubmissionKey
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.transports.transport_errors import NotSupported
from tests.unit.client.tracking import Slurm, queued, run_without_waiting

FIRST, SECOND, THEIRS = (SubmissionKey(letter * 12) for letter in "abz")


def job_run(slurm: Slurm, *keys: SubmissionKey, job: BatchJob | None = None, poll_interval: float = 10.0) -> JobRun:
    job = job or BatchJob(command="train", name="train")
    return JobRun(AsyncSlurmClient(slurm), job, keys or [FIRST], poll_interval=poll_interval, show_output=False)


async def end_of(run: JobRun) -> JobStatus:
    async for news in run.follow():
        assert not isinstance(news, Printed)
        status = news
    return status


# ------------------------------------------------------------------------------------------------- how often it asks


def test_without_accounting_the_end_of_a_job_is_seen_before_the_queue_forgets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm()

    def later() -> None:
        # It ends right after a look, hours after its start.
        since_end = time.monotonic() - next((at for at in slurm.asked_at if at > 20_000), math.inf)
        state = "RUNNING" if since_end < 0 else "COMPLETED" if since_end < 300 else ""
        slurm.queue = [queued("7", state, name=FIRST.name("train"))] * bool(state)

    slurm.before_look = later
    assert run_without_waiting(end_of(job_run(slurm, poll_interval=900)), monkeypatch).succeeded


def test_once_accounting_has_answered_polls_are_as_rare_as_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    # As over a slurmrestd that cannot tell how the cluster is set up.
    slurm = Slurm(accounting=[])
    slurm.config = NotSupported("it cannot tell")
    array = [queued("7_0", "COMPLETED", name=FIRST.name("train")), queued("7_1", "RUNNING", name=FIRST.name("train"))]

    def later() -> None:
        slurm.queue = array if time.monotonic() < 20_000 else [replace(job, state=array[0].state) for job in array]

    slurm.before_look = later
    assert run_without_waiting(end_of(job_run(slurm, poll_interval=900)), monkeypatch).succeeded
    assert slurm.asked_at[-1] - slurm.asked_at[-2] == pytest.approx(900, abs=1)
