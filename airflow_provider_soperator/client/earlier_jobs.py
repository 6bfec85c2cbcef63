"""Jobs of the earlier tries of a task, from Slurm: Airflow keeps nothing of a try for the next one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from airflow_provider_soperator.client.submissions import named, named_jobs
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId, SubmissionKey
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.requests.accounting import name_in_accounting
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.slurm.requests.submission import LOOK_BACK


def earlier_jobs(job: BatchJob, keys: Sequence[SubmissionKey], since: datetime | None) -> Steps[list[JobStatus | None]]:
    """The jobs of several tries, in their order, as Slurm has them; None for one that it does not know (any more)."""
    names = [named(job, key).name or "" for key in keys]
    found: dict[str, dict[JobId, Job]] = {name_in_accounting(name): {} for name in names}
    since = since or datetime.now(timezone.utc) - LOOK_BACK
    # The queue is more exact than accounting, and comes last here.
    for one in reversed((yield from named_jobs(names, since))):
        found[name_in_accounting(one.name)][one.id] = one if isinstance(one, Job) else one.as_job()
    return [_end(parts) for parts in found.values()]


def _end(parts: dict[JobId, Job]) -> JobStatus | None:
    if not parts:
        return None
    # The lowest id of a name counts, as in the submission.
    whole = min(job.whole for job in parts)
    return JobStatus(id=whole, parts=tuple(part for job, part in sorted(parts.items()) if job.whole == whole))
