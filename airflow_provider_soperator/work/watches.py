"""Watches of jobs, queues, the health of nodes, and capacity blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.poller import JobNews
from airflow_provider_soperator.health.assessment import HealthQuery, Observations, in_words, told, unclear
from airflow_provider_soperator.hooks.cluster_clients import HealthSources
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.nebius.capacity_blocks import BlockAwaited, block_fields
from airflow_provider_soperator.slurm.job_failures import failure
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import sentence
from airflow_provider_soperator.slurm.job_reports import report_of
from airflow_provider_soperator.slurm.node_conditions import in_lines
from airflow_provider_soperator.slurm.queue_filter import Lasting, QueueFilter, within
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.work.polling import SlurmAccess
from airflow_provider_soperator.work.protocols import Look, Watch, WorkFailed


@dataclass(kw_only=True)
class JobWatch(Watch[JobNews]):
    """A watch of a job until it has succeeded, or is in one of some states."""

    slurm_conn_id: str
    job_id: str
    states: tuple[str, ...] = ()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[JobNews]:
        # One poller asks for all awaited jobs of a cluster.
        async with SlurmHook(self.slurm_conn_id).async_client() as client:
            news = client.watch(JobId.parse(self.job_id), poll_interval=self.poll_interval)
            try:
                yield news
            finally:
                news.close()

    @property
    def pause(self) -> float:
        """No pause: the poller reports changes."""
        return 0.0

    async def look(self, client: JobNews, max_age: float) -> Look:
        status = await client.next() or client.told
        assert status is not None
        wanted = {JobState.parse(state).base for state in self.states}
        # While its nodes boot it is RUNNING to slurmrestd, and not to squeue.
        is_wanted = status.state.base in wanted and not status.state.is_configuring
        if status.is_over and not is_wanted and (error := failure(status)):
            raise WorkFailed(str(error)) from error
        return Look(status.is_over or is_wanted, report_of(status), (f"Job {status.id} {sentence(status)}",))


@dataclass(kw_only=True)
class QueueWatch(SlurmAccess, Watch[AsyncSlurmClient]):
    """A watch of the number of jobs that fit a filter, until it has been within limits for some time."""

    jobs: QueueFilter
    max_jobs: int | None = None
    min_jobs: int | None = None
    min_duration: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        self._episode = Lasting(self.min_duration)

    async def look(self, client: AsyncSlurmClient, max_age: float) -> Look:
        jobs = await client.ask_shared(self.jobs.request(), max_age)
        now = datetime.now(timezone.utc)
        found = self.jobs.tally(jobs, now)
        fits = within(found["count"], self.max_jobs, self.min_jobs)
        limits = {"at least": self.min_jobs, "at most": self.max_jobs}
        wanted = " and ".join(f"{words} {limit}" for words, limit in limits.items() if limit is not None)
        return Look(self._episode.look(fits, now), found, (f"{found['count']} jobs, awaited are {wanted}",))


@dataclass(kw_only=True)
class HealthWatch(SlurmAccess, Watch[AsyncSlurmClient]):
    """A watch of some nodes until they are healthy, or until one is not."""

    watched: HealthQuery
    witnesses: HealthSources

    async def look(self, client: AsyncSlurmClient, max_age: float) -> Look:
        nodes, seen = await asyncio.gather(client.ask_shared(ListNodes(), max_age), self.witnesses.ask(max_age))
        unhealthy = self.watched.unhealthy(nodes, seen)
        lines = in_lines(in_words(unhealthy)) or (self._well(len(self.watched.chosen(nodes)), seen),)
        doubt = unclear(nodes, seen)
        says = (*lines, doubt) if doubt else lines
        return Look(self.watched.is_reached(unhealthy), told(unhealthy), says)

    def _well(self, number: int, seen: Observations) -> str:
        where = f" of {self.watched.partition}" if self.watched.partition else ""
        asked = ["Slurm", *["Kubernetes"] * (seen.kubernetes is not None), *["Prometheus"] * bool(seen.samples)]
        return f"{number} nodes{where} are healthy ({', '.join(asked)})"


@dataclass(kw_only=True)
class BlockWatch(Watch[NebiusHook]):
    """A watch of a capacity block until it is in a state."""

    nebius_conn_id: str
    block: str
    awaited: BlockAwaited

    @asynccontextmanager
    async def open(self) -> AsyncIterator[NebiusHook]:
        hook = NebiusHook(self.nebius_conn_id)
        # The connection stays open between two looks.
        async with hook.async_client():
            yield hook

    async def look(self, client: NebiusHook, max_age: float) -> Look:
        block = await client.block(self.block)
        lacks = self.awaited.lacks(block, datetime.now(timezone.utc))
        return Look(not lacks, block_fields(block), (f"Block {self.block}: {lacks}",) if lacks else ())
