"""Warnings to jobs whose nodes a shift takes, in their admin comments, where ``scontrol show job`` has them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from airflow_provider_soperator.capacity.handover import Ask
from airflow_provider_soperator.capacity.holdings import Release
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.node_conditions import DrainReason
from airflow_provider_soperator.slurm.requests import UpdateJob
from airflow_provider_soperator.transports.transport_errors import NotSupported


class JobWarnings:
    """What a shift tells the users of jobs that it will end. Comments of others are left as they are."""

    def __init__(self, ask: Ask, reason: DrainReason, untold: set[JobId], log: Logger) -> None:
        self._ask, self._untold, self._log = ask, untold, log
        self._mine, self._why = f"{DrainReason(reason.owner)}: ", reason.why or "a shift"
        self._told: tuple[tuple[Job, datetime], ...] = ()

    async def tell(self, jobs: Sequence[Job], leaving: Collection[Job], release: Release) -> None:
        """Tell those of the jobs that will be ended on nodes that go when that is, and withdraw it from all others."""
        at = release.signals_at
        # A job that ends sooner by its own limit is not in the way.
        ending = {job.id: job for job in leaving if at and (job.ends is None or job.ends > at)}
        self._told = tuple((job, at) for job in ending.values() if at)
        for job in jobs:
            said = ""
            if job.id in ending:
                said = (
                    f"{self._mine}{job.nodelist} is wanted elsewhere ({self._why}): the job gets SIG{release.signal} "
                )
                said += f"at {at:%d %b %Y %H:%M:%S %Z}, and is ended {release.grace} later"
            is_ours = job.admin_comment.startswith(self._mine)
            if said != job.admin_comment and (is_ours or not job.admin_comment) and job.id not in self._untold:
                await self._comment(job.id, said)

    def describe(self) -> tuple[dict[str, Any], ...]:
        """JSON of the jobs that are told."""
        return tuple(
            {"id": str(job.id), "name": job.name, "user": job.user, "nodes": job.nodelist, "signal_at": at.isoformat()}
            for job, at in self._told
        )

    async def _comment(self, job: JobId, said: str) -> None:
        try:
            await self._ask(UpdateJob(job, {"AdminComment": said}))
        except (SlurmError, NotSupported) as error:
            if error.passing:
                raise
            self._untold.add(job)
            self._log.warning("Job %s could not be told in its admin comment: %s", job, error)
