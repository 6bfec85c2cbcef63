"""What became of the jobs on nodes that were taken: they ended, were requeued, or were killed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.capacity.targets.jobs_in_the_way import DisplacedJobs
from airflow_provider_soperator.capacity.targets.protocol import JobLosses
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.states import JobState

START = datetime(2026, 11, 21, 20, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
ID = JobId(7)
FORCED = START + 10 * MINUTE
LOST = 8 * 600.0


def job(state: str, restarts: int = 0, number: int = 7, ends: datetime | None = None) -> Job:
    return Job(
        ends=ends,
        id=JobId(number),
        state=JobState.parse(state),
        started=START,
        restarts=restarts,
        tres="cpu=16,gres/gpu=8",
        nodelist="worker-0",
    )


def status(state: str, restarts: int = 0, ends: datetime | None = None) -> JobStatus:
    return JobStatus(id=ID, parts=(job(state, restarts, ends=ends or FORCED),))


def displaced(forced: datetime | None, restarts: int = 0) -> DisplacedJobs:
    seen = DisplacedJobs()
    seen.see([job("RUNNING", restarts)])
    seen.forced = forced
    return seen


@pytest.mark.parametrize(
    ("forced", "now", "losses"),
    [
        (None, status("RUNNING"), JobLosses()),
        (None, status("COMPLETED"), JobLosses(ended=1)),
        # It has failed by itself.
        (None, status("FAILED"), JobLosses(ended=1)),
        (None, status("TIMEOUT"), JobLosses(ended=1)),
        (FORCED, status("COMPLETED"), JobLosses(ended=1)),
        (FORCED, status("FAILED", ends=FORCED - MINUTE), JobLosses(ended=1)),
        (FORCED, status("CANCELLED"), JobLosses(killed=1, lost_gpu_seconds=LOST)),
        (FORCED, status("NODE_FAIL"), JobLosses(killed=1, lost_gpu_seconds=LOST)),
        (FORCED, status("PENDING", restarts=1), JobLosses(requeued=1, lost_gpu_seconds=LOST)),
        (FORCED, status("COMPLETED", restarts=1), JobLosses(requeued=1, lost_gpu_seconds=LOST)),
        (FORCED, JobStatus(id=ID), JobLosses()),
    ],
)
def test_what_became_of_a_job(forced: datetime | None, now: JobStatus, losses: JobLosses) -> None:
    assert displaced(forced).losses({ID: now}) == losses


def test_what_nobody_knows_of_is_not_counted() -> None:
    assert displaced(FORCED).losses({}) == JobLosses()


def test_a_job_that_was_requeued_before_is_not_requeued_by_this() -> None:
    assert displaced(FORCED, restarts=2).losses({ID: status("RUNNING", restarts=2)}) == JobLosses()


def test_a_job_is_counted_once_as_it_was_seen_first() -> None:
    seen = displaced(FORCED)
    seen.see([job("RUNNING", restarts=1), job("RUNNING", number=8)])
    assert seen.jobs == (ID, JobId(8))
    assert seen.losses({ID: status("RUNNING", restarts=1)}).requeued == 1


def test_a_job_whose_node_stays_after_all_is_not_counted() -> None:
    seen = displaced(FORCED)
    seen.see([job("RUNNING", number=8)], staying=[job("RUNNING")])
    assert seen.jobs == (JobId(8),)


def test_losses_add_up() -> None:
    assert sum([JobLosses(1, 2, 3, 4.0), JobLosses(1, 1, 1, 1.0)], JobLosses()) == JobLosses(2, 3, 4, 5.0)
