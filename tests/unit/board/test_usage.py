"""What jobs have used in some days: the part within them, by task and user, for those who may see it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_soperator.board import tasks, usage
from airflow_provider_soperator.board.tasks import JobTasks
from airflow_provider_soperator.board.usage import UsageLook, Used, UsedDay, look_at_usage, used_between
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
    parts = [used_between([one], {}, SINCE, NOW, NOW) for one in (inside, across, running, pending)]
    found = [one for part in parts for one in part]
    assert [one.gpu_hours for one in found] == [8, 8, 16]
    # When it began is not of these days.
    assert [one.waits for one in found] == [(0,), (), (0,)]
    assert [(one.jobs, one.earlier) for one in found] == [(1, 0), (0, 1), (1, 0)]
    # All of one user and task are together.
    [whole] = used_between([inside, across, running, pending], {}, SINCE, NOW, NOW)
    assert (whole.jobs, whole.earlier, whole.gpu_hours) == (2, 1, 32)


@pytest.mark.parametrize("state", ["COMPLETED", "RUNNING"])
def test_the_hours_of_a_job_that_was_suspended_over_midnight_are_of_its_days_together(state: str) -> None:
    # Suspended for ten of fourteen hours.
    one = job(1, SINCE + 20 * HOUR, 14, state, elapsed=4 * HOUR)
    days = [SINCE + hours * HOUR for hours in (0, 24, 34)]
    parts = [used_between([one], {}, *day, days[-1]) for day in pairwise(days)]
    hours = [used.gpu_hours for part in parts for used in part]
    assert hours == pytest.approx([4 / 14 * 32, 10 / 14 * 32])


def test_what_waited_failed_or_computed_is_counted() -> None:
    step = AccountingStep(id=JobId(1), cpu_time=HOUR)
    one = job(1, NOW - 2 * HOUR, 1, "FAILED", eligible=NOW - 3 * HOUR, steps=(step,))
    [used] = used_between([one], {}, SINCE, NOW, NOW)
    assert (used.waits, used.failed, used.cpu_seconds, used.core_seconds) == ((3600,), 1, 3600, 7200)


def test_the_cpu_time_of_a_job_that_runs_is_not_known_yet() -> None:
    def steps(*hours: float) -> tuple[AccountingStep, ...]:
        return tuple(AccountingStep(id=JobId(1), cpu_time=its * HOUR) for its in hours)

    # What has ended of it counts with the whole.
    running = job(1, NOW - 4 * HOUR, 4, "RUNNING", steps=steps(0.5, 0))
    [used] = used_between([job(2, NOW - 2 * HOUR, 1, steps=steps(1)), running], {}, SINCE, NOW, NOW)
    assert (used.jobs, used.gpu_hours, used.cpu) == (2, 40, 0.5)


def test_the_runs_of_a_requeued_job_are_one_job_which_ends_as_the_last_does(monkeypatch: pytest.MonkeyPatch) -> None:
    step = AccountingStep(id=JobId(1), cpu_time=HOUR)
    runs = [
        job(1, SINCE + 6 * HOUR, 2),
        job(1, SINCE, 2, "REQUEUED", steps=(step,)),
        job(1, SINCE + 3 * HOUR, 2, "NODE_FAIL"),
    ]
    slurm = Accounting(*runs)
    monkeypatch.setattr(usage, "SlurmHook", lambda connection: slurm)

    def seen(since: datetime = SINCE) -> list[tuple[int, int, float, float, float | None]]:
        return [
            (one.jobs, one.earlier, one.gpu_hours, one.failed_hours, one.cpu)
            for one in usage._ask("c", since, NOW).used
        ]

    assert usage._ask("c", SINCE, NOW).is_final
    assert seen() == [(1, 0, 48, 0, 0.25)]
    assert seen(SINCE + HOUR) == [(0, 1, 40, 0, 0.25)]
    # It waits again, or was cancelled then.
    slurm.jobs = (*runs[1:], job(1, None, 0, "PENDING"))
    assert seen() == [(1, 0, 32, 0, 0.25)]
    slurm.jobs = (*runs[1:], job(1, None, 0, "CANCELLED"))
    assert seen() == [(1, 0, 32, 32, 0.25)]


def used(user: str, hours: float, dag: str = "", *, failed: bool = False, waited: float = 0.0) -> Used:
    return Used(
        user=user,
        dag_id=dag,
        name="fit" if dag else "",
        jobs=1,
        gpu_hours=hours,
        failed_hours=hours if failed else 0.0,
        waits=(waited,),
    )


TODAY = UsedDay(
    used=[
        *(used("ann", 10, "train", waited=float(seconds)) for seconds in range(10)),
        used("ann", 100, "train", failed=True),
        used("bob", 50, "secret"),
        used("bob", 20),
    ]
)
LOOK = UsageLook(taken=NOW, days={NOW.replace(hour=0): TODAY})


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


@pytest.mark.parametrize(
    ("users", "last"), [(13, ("user-1", 1, 1)), (14, ("2 others", 2, 3)), (40, ("28 others", 28, 406))]
)
def test_a_table_of_many_sums_up_the_rest(users: int, last: tuple[str, int, float]) -> None:
    day = UsedDay(used=[used(f"user-{hours}", hours) for hours in range(1, users + 1)])
    rows = UsageLook(taken=NOW, days={NOW.replace(hour=0): day}).tables(lambda dag: True)["user"]
    assert [row.name for row in rows[:-1]] == [f"user-{hours}" for hours in range(users, users - 12, -1)]
    assert (rows[-1].name, rows[-1].jobs, rows[-1].gpu_hours) == last


def test_without_accounting_the_last_figures_stay_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(connection: str, day: datetime, now: datetime) -> UsedDay:
        raise AccountingDisabled("Slurm accounting storage is disabled", "sacct")

    monkeypatch.setattr(usage, "_ask", ask)
    seen = asyncio.run(look_at_usage("c", LOOK))
    assert seen.days == LOOK.days
    assert seen.failure.startswith("sacct: Slurm accounting storage is disabled")


def test_after_midnight_figures_are_of_as_many_days_also_if_one_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    today = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)

    def ask(connection: str, day: datetime, now: datetime) -> UsedDay:
        if day < today:
            raise AccountingDisabled("Slurm accounting storage is disabled", "sacct")
        return UsedDay(used=[])

    monkeypatch.setattr(usage, "_ask", ask)
    before = {today - ago * timedelta(days=1): UsedDay(used=[]) for ago in range(1, 8)}
    seen = asyncio.run(look_at_usage("c", UsageLook(taken=today, days=before)))
    assert sorted(seen.days) == [today - ago * timedelta(days=1) for ago in reversed(range(7))]


def test_a_day_that_is_over_is_asked_for_once_and_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    today = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)

    def ask(connection: str, day: datetime, now: datetime) -> UsedDay:
        ago = (today - day).days
        asked.append(ago)
        # On the day before the last one a job runs still.
        return UsedDay(used=[replace(used("ann", 1), jobs=0, earlier=1)], is_final=ago not in (0, 1))

    monkeypatch.setattr(usage, "_ask", ask)
    first = asyncio.run(look_at_usage("c"))
    assert asked == list(range(7))
    again = asyncio.run(look_at_usage("c", first))
    assert asked[7:] == [0, 1]
    # A job that lasts for all these days is one.
    [total] = again.tables(lambda dag: True)["total"]
    assert (total.jobs, total.gpu_hours) == (1, 7)


class Accounting:
    """A cluster whose accounting has some jobs."""

    def __init__(self, *jobs: AccountingJob) -> None:
        self.jobs, self.asked = jobs, list[Any]()

    @contextmanager
    def client(self) -> Iterator[Accounting]:
        yield self

    def ask(self, request: Any) -> tuple[AccountingJob, ...]:
        self.asked.append((request.since, request.until))
        return self.jobs


def test_accounting_is_asked_for_a_day_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Accounting(job(1, SINCE, 1), job(2, SINCE, 7 * 24, "RUNNING"))
    monkeypatch.setattr(usage, "SlurmHook", lambda connection: slurm)
    monkeypatch.setattr(usage, "find_ended", lambda jobs, until=None, ever=False: {})
    day = usage._ask("c", SINCE, NOW)
    assert slurm.asked == [(SINCE, SINCE + 24 * HOUR)]
    assert [(one.jobs, one.gpu_hours) for one in day.used] == [(2, 8 + 24 * 8)]
    # It may still fail.
    assert not day.is_final
    slurm.jobs = slurm.jobs[:1]
    assert usage._ask("c", SINCE, NOW).is_final
    assert not usage._ask("c", NOW - HOUR, NOW).is_final


def test_a_task_that_has_told_of_its_job_on_another_day_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = [
        replace(job(number, SINCE, 30, "RUNNING", submitted=SINCE), name=f"fit.af-aaaaaaaaaaa{number + 1}")
        for number in (1, 2, 3)
    ]
    monkeypatch.setattr(usage, "SlurmHook", lambda connection: Accounting(*keyed))
    # The last was requeued since, and is submitted anew by that.
    told = {keyed[0].id: SINCE, keyed[1].id: SINCE + 25 * HOUR, keyed[2].id: SINCE - 50 * HOUR}

    def matched(jobs: list[Any], instances: Any, *more: Any) -> dict[Any, JobTasks]:
        at = instances.compile().params
        first, last = (at.get(f"timestamp_{number}") for number in (1, 2))
        fit = JobTasks(dag_id="train", run_id="r", task_id="fit")
        return {one.id: fit for one in jobs if (first or NOW - 900 * HOUR) <= told[one.id] <= (last or NOW)}

    monkeypatch.setattr(tasks, "_matched", matched)
    assert [(one.dag_id, one.jobs) for one in usage._ask("c", SINCE, NOW).used] == [("train", 3)]
