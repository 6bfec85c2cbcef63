"""Finished jobs over a restart of the watcher that tells of them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.client.finished_jobs import FinishedJobs
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
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
