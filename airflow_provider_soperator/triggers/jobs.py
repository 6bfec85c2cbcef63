"""Waits in the triggerer for a job that somebody else has submitted, or for a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_soperator.client.queue import Lasting, QueueFilter, within
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_report import report_of
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.triggers import following
from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.triggers.rounds import rounds


class SlurmJobTrigger(SlurmTrigger):
    """Fires when a job is over, or is in one of some states."""

    def __init__(self, slurm_conn_id: str, job_id: str, states: list[str], poll_interval: float) -> None:
        super().__init__()
        self.slurm_conn_id = slurm_conn_id
        self.job_id = job_id
        self.states = states
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        wanted = {JobState.parse(state).base for state in self.states}
        async with SlurmHook(self.slurm_conn_id).async_client() as client:
            watch = client.watch(JobId.parse(self.job_id), poll_interval=self.poll_interval)
            async for status in watch:
                self.log.info("Job %s %s", status.id, following.describe(status))
                if status.is_over or status.state.base in wanted:
                    yield await self.resume(report_of(status))
                    return


class SlurmQueueTrigger(SlurmTrigger):
    """Fires when the jobs that fit a filter are no more, or no fewer, than a number, and were so for some time."""

    def __init__(
        self,
        slurm_conn_id: str,
        wanted: dict[str, Any],
        at_most: int | None,
        at_least: int | None,
        for_seconds: float,
        poll_interval: float,
    ) -> None:
        super().__init__()
        self.slurm_conn_id = slurm_conn_id
        self.wanted = wanted
        self.at_most = at_most
        self.at_least = at_least
        self.for_seconds = for_seconds
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        waited = self.wanted.get("waited")
        wanted = QueueFilter(**self.wanted | {"waited": None if waited is None else timedelta(seconds=waited)})
        episode = Lasting(timedelta(seconds=self.for_seconds))
        async for jobs in rounds(
            self.slurm_conn_id,
            lambda client: client.ask_shared(wanted.request(), self.poll_interval / 2),
            self.poll_interval,
            self.log,
            must_work=True,
        ):
            now = datetime.now(timezone.utc)
            found = wanted.tally(jobs, now)
            if episode.look(within(found["count"], self.at_most, self.at_least), now):
                yield await self.resume(found)
                return
