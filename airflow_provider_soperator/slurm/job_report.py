"""Reports of jobs, as plain JSON for tasks and triggers."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus, expand_filename
from airflow_provider_soperator.slurm.notations import ExitCode
from airflow_provider_soperator.slurm.states import JobState

Json = dict[str, Any]


def report_of(status: JobStatus) -> Json:
    """The report of a job, with its elements or components, if any, in ``parts``.

    >>> part = Job(id=JobId(7), raw_id=7, state=JobState.parse("COMPLETED"), nodelist="worker-1", stdout="/root/%j.out")
    >>> report = report_of(JobStatus(id=JobId(7), parts=(part,)))
    >>> report["job_id"], report["state"], report["output"]
    ('7', 'COMPLETED', '/root/7.out')
    """
    said: Json = {"job_id": str(status.id), "state": str(status.state)}
    if status.lost:
        said["lost"] = status.lost
    if len(status.parts) == 1 and status.parts[0].id == status.id:
        return said | _part(status.parts[0])
    started = [part.started for part in status.parts if part.started]
    ended = [part.ends for part in status.parts if part.ends]
    return said | {
        "started": min(started).isoformat() if started else None,
        "ended": max(ended).isoformat() if ended else None,
        "parts": {str(part.id): {"state": str(part.state)} | _part(part) for part in status.parts},
    }


def _part(job: Job) -> Json:
    elapsed = job.ends - job.started if job.started and job.ends else job.time_used
    return {
        "name": job.name,
        "exit_code": f"{job.exit_code.code}:{job.exit_code.signal}",
        "nodes": job.nodelist,
        "reason": job.reason,
        "restarts": job.restarts,
        "submitted": _written(job.submitted),
        "started": _written(job.started),
        "ended": _written(job.ends) if job.state.is_finished else None,
        "elapsed": elapsed.total_seconds() if isinstance(elapsed, timedelta) else None,
        "workdir": job.workdir,
        "output": expand_filename(job.stdout, job),
        "raw_id": job.raw_id,
        **({} if job.state.cancelled_by is None else {"cancelled_by": job.state.cancelled_by}),
    }


def status_of(said: Json) -> JobStatus:
    """The status that a report was made of, as far as the report has it."""
    job = JobId.parse(said["job_id"])
    parts = said.get("parts", {said["job_id"]: said} if "name" in said else {})
    return JobStatus(
        id=job, parts=tuple(_job(JobId.parse(text), part) for text, part in parts.items()), lost=said.get("lost", "")
    )


def _job(job: JobId, said: Json) -> Job:
    return Job(
        id=job,
        raw_id=said["raw_id"],
        name=said["name"],
        state=dataclasses.replace(JobState.parse(said["state"]), cancelled_by=said.get("cancelled_by")),
        exit_code=ExitCode.parse(said["exit_code"]),
        nodelist=said["nodes"],
        reason=said["reason"],
        restarts=said["restarts"],
        submitted=_when(said["submitted"]),
        started=_when(said["started"]),
        ends=_when(said["ended"]),
        workdir=said["workdir"],
        stdout=said["output"].replace("%", "%%"),
    )


def _written(when: datetime | None) -> str | None:
    return when.isoformat() if when else None


def _when(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
