"""Jobs of the earlier tries of a task, from Slurm: Airflow keeps nothing of a try for the next one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from airflow_provider_soperator.client.submissions import named, named_jobs
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId, Keys, SubmissionKey
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.slurm.requests.submission import LOOK_BACK


def earlier_jobs(job: BatchJob, keys: Sequence[SubmissionKey], since: datetime | None) -> Steps[list[JobStatus | None]]:
    """The jobs of several tries, in their order, as Slurm has them; None for one that it does not know (any more)."""
    names, wanted = [named(job, key).name or "" for key in keys], Keys(keys)
    found: dict[SubmissionKey, dict[JobId, dict[JobId, Job]]] = {key: {} for key in keys}
    since = since or datetime.now(timezone.utc) - LOOK_BACK
    # The queue is more exact than accounting, and comes last here.
    for one in reversed((yield from named_jobs(names, since))):
        for key, own in wanted.of(one.name, one.id):
            found[key].setdefault(own, {})[one.id] = one if isinstance(one, Job) else one.as_job()
    return [_end(jobs) for jobs in found.values()]


def _end(jobs: dict[JobId, dict[JobId, Job]]) -> JobStatus | None:
    if not jobs:
        return None
    # The lowest id of a key counts, as in the submission.
    lowest = min(jobs)
    return JobStatus(id=lowest, parts=tuple(part for _, part in sorted(jobs[lowest].items())))
