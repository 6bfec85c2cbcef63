"""What became of the jobs on nodes that were taken: they ended, were requeued, or were killed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.capacity.toll import Toll, Witness
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


def witness(forced: datetime | None, restarts: int = 0) -> Witness:
    seen = Witness()
    seen.see([job("RUNNING", restarts)])
    seen.forced = forced
    return seen


@pytest.mark.parametrize(
    ("forced", "now", "toll"),
    [
        (None, status("RUNNING"), Toll()),
        (None, status("COMPLETED"), Toll(ended=1)),
        # It has failed by itself.
        (None, status("FAILED"), Toll(ended=1)),
        (None, status("TIMEOUT"), Toll(ended=1)),
        (FORCED, status("COMPLETED"), Toll(ended=1)),
        (FORCED, status("FAILED", ends=FORCED - MINUTE), Toll(ended=1)),
        (FORCED, status("CANCELLED"), Toll(killed=1, lost_gpu_seconds=LOST)),
        (FORCED, status("NODE_FAIL"), Toll(killed=1, lost_gpu_seconds=LOST)),
        (FORCED, status("PENDING", restarts=1), Toll(requeued=1, lost_gpu_seconds=LOST)),
        (FORCED, status("COMPLETED", restarts=1), Toll(requeued=1, lost_gpu_seconds=LOST)),
        (FORCED, JobStatus(id=ID), Toll()),
    ],
)
def test_what_became_of_a_job(forced: datetime | None, now: JobStatus, toll: Toll) -> None:
    assert witness(forced).toll({ID: now}) == toll


def test_what_nobody_knows_of_is_not_counted() -> None:
    assert witness(FORCED).toll({}) == Toll()


def test_a_job_that_was_requeued_before_is_not_requeued_by_this() -> None:
    assert witness(FORCED, restarts=2).toll({ID: status("RUNNING", restarts=2)}) == Toll()


def test_a_job_is_counted_once_as_it_was_seen_first() -> None:
    seen = witness(FORCED)
    seen.see([job("RUNNING", restarts=1), job("RUNNING", number=8)])
    assert seen.jobs == (ID, JobId(8))
    assert seen.toll({ID: status("RUNNING", restarts=1)}).requeued == 1


def test_tolls_add_up() -> None:
    assert sum([Toll(1, 2, 3, 4.0), Toll(1, 1, 1, 1.0)], Toll()) == Toll(2, 3, 4, 5.0)
