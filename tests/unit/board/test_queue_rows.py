"""The rows of the queue."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow_provider_soperator.board.picture import Picture
from airflow_provider_soperator.board.queue_rows import ROWS, QueueQuery, queue_page
from airflow_provider_soperator.board.tasks import JobTasks
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.states import JobState

NOW = datetime(2026, 11, 24, 8, tzinfo=timezone.utc)


def job(text: str, state: str, **more: object) -> Job:
    return Job(id=JobId.parse(text), state=JobState.parse(state), **more)  # type: ignore[arg-type]


JOBS = (
    job("1", "PENDING", priority=5, reason="Priority", tres="cpu=1,gres/gpu=2"),
    job("2_[0-3]", "PENDING", priority=9, tres="cpu=1,gres/gpu=8", name="fit.af-q6befiawjvkz"),
    job("3", "RUNNING", nodelist="worker-[0-1]", tres="gres/gpu=16", user="ann", time_limit=timedelta(hours=2)),
    job("4", "FAILED", user="bob"),
)
FIT = JobTasks(dag_id="train", run_id="r1", task_id="fit", map_index=0, others=[("train", "r1", "fit", 1)] * 3)
PICTURE = Picture(connection="c", taken=NOW, jobs=JOBS, tasks={JOBS[1].id: FIT})


def ids(**query: object) -> list[str]:
    return [str(row.job.id) for row in queue_page(PICTURE, QueueQuery(**query)).rows]  # type: ignore[arg-type]


def test_running_jobs_come_first_and_then_those_of_the_highest_priority() -> None:
    assert ids() == ["3", "2_[0-3]", "1"]


def test_jobs_are_chosen_by_state_node_and_text() -> None:
    assert ids(jobs="ended") == ["4"]
    assert ids(jobs="pending") == ["2_[0-3]", "1"]
    assert ids(on_node="worker-1") == ["3"]
    assert ids(search="TRAIN fit") == ["2_[0-3]"]
    assert ids(search="ann") == ["3"]
    assert ids(search="nobody") == []


def test_all_jobs_are_counted_also_those_that_are_not_shown() -> None:
    page = queue_page(PICTURE, QueueQuery(search="ann"))
    assert (page.running, page.gpus_running, page.pending, page.gpus_pending) == (1, 16, 5, 2 + 4 * 8)


def test_a_page_has_some_rows_and_says_how_many_there_are() -> None:
    many = Picture(connection="c", taken=NOW, jobs=tuple(job(str(n), "RUNNING") for n in range(1, 251)))
    page = queue_page(many, QueueQuery(first=200))
    assert (len(page.rows), page.total, page.rows[0].job.id) == (50, 250, JobId(201))
    assert len(queue_page(many, QueueQuery()).rows) == ROWS
    # The queue has become shorter since.
    shorter = queue_page(many, QueueQuery(first=300))
    assert (shorter.rows, shorter.first) == (page.rows, 200)
    assert queue_page(many, QueueQuery(first=-7)).first == 0
    assert queue_page(many, QueueQuery(jobs="ended", first=100)).first == 0


def test_a_running_job_tells_how_much_of_its_limit_is_used() -> None:
    half = job("1", "RUNNING", time_limit=timedelta(hours=2), time_used=timedelta(hours=1))
    late = job("2", "RUNNING", time_limit=timedelta(hours=2), time_used=timedelta(hours=3))
    waits = job("3", "PENDING", time_limit=timedelta(hours=2), time_used=timedelta(0))
    page = queue_page(Picture(connection="c", taken=NOW, jobs=(half, late, waits)), QueueQuery())
    assert [row.progress for row in page.rows] == [50, 100, None]
