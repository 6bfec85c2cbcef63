"""Jobs whose nodes a shift takes: they are told ahead, in their admin comments, ended by name, and counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.capacity.holdings import Release
from airflow_provider_soperator.capacity.node_choice import work_of
from airflow_provider_soperator.capacity.reservations import Ask
from airflow_provider_soperator.capacity.targets.protocol import JobLosses
from airflow_provider_soperator.client.queue import is_ending, requeue_or_cancel
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.node_conditions import DrainReason
from airflow_provider_soperator.slurm.requests import CancelJobs, ListJobs, UpdateJob
from airflow_provider_soperator.transports.transport_errors import NotSupported


class DisplacedJobs:
    """Remembers the jobs on nodes that leave and what was done to them, and counts at the end how they ended."""

    def __init__(self) -> None:
        self._seen: dict[JobId, Job] = {}
        #: When jobs were ended on them for the first time.
        self.forced: datetime | None = None
        #: The time at which each job got the signal, and how often each job that was ended had been requeued before.
        self.warned: dict[JobId, datetime] = {}
        self.ended: dict[JobId, int] = {}
        #: Jobs whose admin comment cannot be set.
        self.untold: set[JobId] = set()

    def see(self, jobs: Iterable[Job], staying: Iterable[Job] = ()) -> None:
        """Note the jobs on nodes that leave, and that others run on nodes that stay."""
        for job in staying:
            self._seen.pop(job.id, None)
        for job in jobs:
            self._seen.setdefault(job.id, job)

    @property
    def jobs(self) -> tuple[JobId, ...]:
        return tuple(self._seen)

    def losses(self, found: Mapping[JobId, JobStatus]) -> JobLosses:
        """Count the jobs by their present states."""
        total = JobLosses()
        # Slurm knows whole seconds only.
        forced = self.forced and self.forced.replace(microsecond=0)
        for before in (job for job in self._seen.values() if job.id in found and found[job.id].parts):
            status, lost = found[before.id], work_of(before, self.forced) if self.forced else 0.0
            was_forced = forced and any(part.ends and part.ends >= forced for part in status.parts)
            if max(part.restarts for part in status.parts) > before.restarts:
                total += JobLosses(requeued=1, lost_gpu_seconds=lost)
            elif status.is_over and not status.succeeded and was_forced:
                total += JobLosses(killed=1, lost_gpu_seconds=lost)
            elif status.is_over:
                total += JobLosses(ended=1)
        return total


class JobsInTheWay:
    """The jobs of one target that are in the way of a shift. Comments of others are left as they are.

    ``may_end``: the ids of those that may be ended; None: all. ``notes`` outlast the connection.
    """

    def __init__(
        self,
        target: str,
        ask: Ask,
        reason: DrainReason,
        may_end: frozenset[str] | None,
        notes: DisplacedJobs,
        log: Logger,
    ) -> None:
        self._target, self._ask, self._may_end, self._notes, self._log = target, ask, may_end, notes, log
        self._mine, self._why = f"{DrainReason(reason.owner)}: ", reason.why or "a shift"
        self._told: tuple[tuple[Job, datetime], ...] = ()

    def may_end(self, job: Job) -> bool:
        return self._may_end is None or bool({str(job.id), str(job.id.whole)} & self._may_end)

    async def tell(self, jobs: Sequence[Job], leaving: Iterable[Job], release: Release) -> None:
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
            if said != job.admin_comment and (is_ours or not job.admin_comment) and job.id not in self._notes.untold:
                await self._comment(job.id, said)

    async def withdraw(self) -> None:
        """Withdraw what was told to any job, also by another process."""
        jobs = [job for job in await self._ask(ListJobs()) if not job.state.is_finished]
        await self.tell(jobs, [], Release(leaves_at=datetime.now(timezone.utc), mode=None))

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
            self._notes.untold.add(job)
            self._log.warning("Job %s could not be told in its admin comment: %s", job, error)

    async def end(self, jobs: Mapping[JobId, Job], release: Release) -> None:
        """End jobs by name, so that none is accounted as lost with its node: with a signal, a grace, and a requeue.

        A process that takes over signals once more, which does no harm.
        """
        notes = self._notes
        ending = [one for one in jobs.values() if not is_ending(one) and notes.ended.get(one.id) != one.restarts]
        new = tuple(job.id for job in ending if job.id not in notes.warned)
        if new and release.signal:
            args = (self._target, release.signal, ", ".join(map(str, new)), release.grace)
            self._log.warning("%s: sending SIG%s to jobs %s, which have %s to end", *args)
            await self._ask(CancelJobs(ids=new, signal=release.signal))
        # A signal that took its time takes none of the grace.
        now = datetime.now(timezone.utc)
        notes.warned |= dict.fromkeys(new, now)
        for job in (job for job in ending if now - notes.warned[job.id] >= release.grace):
            notes.forced = notes.forced or now
            self._log.warning("%s: job %s %s", self._target, job.id, await requeue_or_cancel(job, self._ask))
            notes.ended[job.id] = job.restarts
            # Where it starts again it gets another signal, and its grace.
            del notes.warned[job.id]
