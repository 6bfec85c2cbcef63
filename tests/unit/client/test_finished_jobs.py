"""Finished jobs over a restart of the watcher that tells of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.client.finished_jobs import FinishedJobs
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig
from airflow_provider_soperator.slurm.errors import AccountingUnreachable
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job
from airflow_provider_soperator.slurm.queue_filter import QueueFilter
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs, Request, ShowConfig
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.states import JobState

NOW = datetime.now(timezone.utc).replace(microsecond=0)


def told(watcher: FinishedJobs, *ended_before: timedelta) -> list[int]:
    """The numbers of the jobs that are reported, where the queue has one for each end."""
    completed = JobState.parse("COMPLETED")
    return reported(
        watcher, *(Job(id=JobId(n), state=completed, ends=NOW - ago) for n, ago in enumerate(ended_before, start=1))
    )


def reported(watcher: FinishedJobs, *jobs: Job) -> list[int]:
    """The numbers of the jobs that are reported, where the queue has these."""

    def ask(request: Request[Any]) -> Any:
        return {ListJobs: jobs, Accounting: (), ShowConfig: ClusterConfig(version="")}[type(request)]

    return [status.id.job for status in run_steps(watcher.round(), ask)]


def test_what_ended_while_no_watcher_ran_is_reported_and_nothing_twice() -> None:
    hours = [timedelta(hours=hours) for hours in (5, 2, 1)]
    first, second = (FinishedJobs(QueueFilter(), since) for since in (NOW - timedelta(hours=3), NOW))
    assert told(first, *hours[:1]) == []
    horizon, end_of_two = (int((NOW - ago).timestamp()) for ago in (timedelta(hours=3), hours[1]))
    second.remember({"horizon": horizon, "told": {"2": end_of_two}})
    assert told(second, *hours) == [3]
    assert told(FinishedJobs(QueueFilter(), NOW), *hours) == []


def test_what_ends_by_a_clock_that_is_behind_is_reported_once() -> None:
    watcher = FinishedJobs(QueueFilter(), NOW)
    behind = timedelta(minutes=50)
    assert told(watcher, timedelta(hours=2)) == []
    # It ends now, and another one before that was noticed.
    assert told(watcher, timedelta(hours=2), behind) == [2]
    assert told(watcher, timedelta(hours=2), behind, behind + timedelta(minutes=1)) == [3]
    assert told(watcher, timedelta(hours=2), behind, behind + timedelta(minutes=1)) == []


def test_a_job_that_hangs_in_its_epilog_does_not_keep_all_later_ones_in_memory() -> None:
    start = NOW - timedelta(days=3)
    watcher = FinishedJobs(QueueFilter(), start)
    hanging = Job(id=JobId(1), state=JobState.parse("COMPLETING"), ends=start)
    for number in range(2, 74):
        ended = Job(id=JobId(number), state=JobState.parse("COMPLETED"), ends=start + timedelta(hours=number - 1))
        assert reported(watcher, hanging, ended) == [number]
    memory = watcher.memory()
    assert NOW - timedelta(days=1, minutes=10) <= datetime.fromtimestamp(memory["horizon"], timezone.utc)
    assert len(memory["told"]) <= 26


class Outage:
    """A cluster in which an array ended an hour ago, while slurmdbd is away; the queue forgets the array."""

    def __init__(self) -> None:
        self.is_away, self.is_queued = True, True
        self.end = NOW - timedelta(hours=1)
        said: list[dict[str, Any]] = [
            {"id": JobId(50, element=index), "state": JobState.parse("COMPLETED")} for index in (0, 1)
        ]
        self.in_queue = [Job(**one, ends=self.end) for one in said]
        self.in_accounting = [AccountingJob(**one, ended=self.end) for one in said]

    def tells(self, watcher: FinishedJobs) -> list[int]:
        return [status.id.job for status in run_steps(watcher.round(), self._ask)]

    def _ask(self, request: Request[Any]) -> Any:
        if isinstance(request, ListJobs):
            return self.in_queue if self.is_queued else ()
        if isinstance(request, Accounting) and self.is_away:
            raise AccountingUnreachable("unable to connect to database", "sacct")
        return self.in_accounting if isinstance(request, Accounting) else ClusterConfig(version="")


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    # Accounting that does not answer is asked less often.
    seconds = iter(range(0, 10**6, 1000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(seconds)))
    return Outage()


def test_an_array_that_ends_while_accounting_is_away_is_reported_when_that_is_back(outage: Outage) -> None:
    watcher, following = (FinishedJobs(QueueFilter(), outage.end) for _ in range(2))
    assert reported(watcher) == []
    assert outage.tells(watcher) == []
    # Others are reported meanwhile.
    outage.in_queue.append(Job(id=JobId(51), state=JobState.parse("COMPLETED"), ends=NOW))
    assert outage.tells(watcher) == [51]
    outage.is_queued = False
    assert outage.tells(watcher) == []
    following.remember(watcher.memory())
    outage.is_away = False
    assert [outage.tells(one) for one in (watcher, watcher, following, following)] == [[50], [], [50], []]


def test_an_array_that_ended_before_the_start_is_not_reported_when_all_of_it_is_known(outage: Outage) -> None:
    watcher = FinishedJobs(QueueFilter(), outage.end + timedelta(minutes=1))
    outage.is_away = False
    ended = outage.in_accounting[1]
    outage.in_accounting[1] = replace(ended, state=JobState.parse("RUNNING"), ended=None)
    del outage.in_queue[1]
    assert outage.tells(watcher) == []
    outage.in_accounting[1] = ended
    assert [outage.tells(watcher), outage.tells(watcher)] == [[], []]
