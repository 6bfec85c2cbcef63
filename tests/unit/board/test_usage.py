"""What jobs have used in some days: the part within them, by task and user, for those who may see it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.board import usage
from airflow_provider_soperator.board.tasks import JobTasks
from airflow_provider_soperator.board.usage import UsageLook, UsedJob, look_at_usage, used_since
from airflow_provider_soperator.slurm.errors import AccountingDisabled
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, AccountingStep
from airflow_provider_soperator.slurm.states import JobState

NOW = datetime(2026, 11, 25, 12, tzinfo=timezone.utc)
SINCE = NOW - timedelta(days=7)
HOUR = timedelta(hours=1)


def job(number: int, started: datetime | None, hours: float, state: str = "COMPLETED", **more: Any) -> AccountingJob:
    said = {"name": "x", "user": "ann", "tres": "cpu=2,gres/gpu=8", "elapsed": hours * HOUR, "eligible": started}
    ended = started + hours * HOUR if started and state != "RUNNING" else None
    return AccountingJob(id=JobId(number), state=JobState.parse(state), started=started, ended=ended, **(said | more))


def test_of_a_job_that_began_before_the_days_their_part_counts() -> None:
    inside, across, running, pending = (
        job(1, NOW - 2 * HOUR, 1),
        job(2, SINCE - 3 * HOUR, 4),
        job(3, NOW - 2 * HOUR, 2, "RUNNING"),
        job(4, None, 0, "PENDING"),
    )
    found = used_since([inside, across, running, pending], {}, SINCE, NOW)
    assert [one.gpu_hours for one in found] == [8, 8, 16]
    # When it began is not of these days.
    assert [one.waited for one in found] == [0, None, 0]


def test_what_waited_failed_or_computed_is_counted() -> None:
    step = AccountingStep(id=JobId(1), cpu_time=HOUR)
    one = job(1, NOW - 2 * HOUR, 1, "FAILED", eligible=NOW - 3 * HOUR, steps=(step,))
    [used] = used_since([one], {}, SINCE, NOW)
    assert (used.waited, used.has_failed, used.cpu_seconds, used.core_seconds) == (3600, True, 3600, 7200)


def used(user: str, hours: float, dag: str = "", *, failed: bool = False, waited: float = 0.0) -> UsedJob:
    tasks = JobTasks(dag_id=dag, run_id="r", task_id="fit") if dag else None
    return UsedJob(user=user, gpu_hours=hours, has_failed=failed, waited=waited, tasks=tasks)


LOOK = UsageLook(
    taken=NOW,
    used=[
        *(used("ann", 10, "train", waited=float(seconds)) for seconds in range(10)),
        used("ann", 100, "train", failed=True),
        used("bob", 50, "secret"),
        used("bob", 20),
    ],
)


def test_usage_is_told_by_task_with_waits_and_what_failed() -> None:
    seen = LOOK.tables(lambda dag: True)
    train, *rest = seen["task"]
    assert (train.dag_id, train.name, train.jobs, train.gpu_hours, train.failed) == ("train", "fit", 11, 200, 0.5)
    assert (train.median_wait, train.p90_wait) == (4, 8)
    assert [(row.dag_id, row.name, row.gpu_hours) for row in rest] == [
        ("secret", "fit", 50),
        ("", "jobs without a task", 20),
    ]
    assert [(row.name, row.gpu_hours) for row in seen["dag"]] == [
        ("train", 200),
        ("secret", 50),
        ("jobs without a task", 20),
    ]
    assert [(row.name, row.gpu_hours) for row in seen["user"]] == [("ann", 200), ("bob", 70)]
    assert [(row.jobs, row.gpu_hours) for row in seen["total"]] == [(13, 270)]
    assert LOOK.tables(lambda dag: dag in ("train", "secret", "third")) is seen


def test_a_dag_that_one_may_not_see_is_not_named_but_counted() -> None:
    seen = LOOK.tables(lambda dag: dag != "secret")
    assert ("", "other DAGs", 50) in [(row.dag_id, row.name, row.gpu_hours) for row in seen["task"]]
    assert ("other DAGs", 50) in [(row.name, row.gpu_hours) for row in seen["dag"]]
    assert "secret" not in repr(seen)


def test_without_accounting_the_last_figures_stay_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(connection: str, now: datetime) -> list[UsedJob]:
        raise AccountingDisabled("Slurm accounting storage is disabled", "sacct")

    monkeypatch.setattr(usage, "_ask", ask)
    seen = asyncio.run(look_at_usage("c", LOOK))
    assert seen.used == LOOK.used
    assert seen.failure.startswith("sacct: Slurm accounting storage is disabled")
