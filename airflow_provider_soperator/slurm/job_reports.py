"""The report of a job, as a task returns it: JSON of one shape for plain jobs, arrays and heterogeneous jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus, Json, expand_filename
from airflow_provider_soperator.slurm.job_usage import Usage, figures, usage_of
from airflow_provider_soperator.slurm.notations import ExitCode
from airflow_provider_soperator.slurm.states import UNKNOWN_JOB, JobState

#: Patterns of file names that differ between the elements of an array.
_OF_ELEMENTS = "abJjNS"


def report_of(status: JobStatus) -> Json:
    """The report of a job. Elements of an array and components of a heterogeneous job are in ``parts``.

    A part has the fields of the whole. What is unknown is null; so are figures of accounting where there is none.

    >>> part = Job(id=JobId(7), raw_id=7, state=JobState.parse("COMPLETED"), nodelist="worker-1", stdout="/root/%j.out")
    >>> report = report_of(JobStatus(id=JobId(7), parts=(part,)))
    >>> report["job_id"], report["state"], report["output"], report["parts"]
    ('7', 'COMPLETED', '/root/7.out', [])
    """
    used = {job.id: usage_of(job) for job in status.accounted}
    if len(status.parts) == 1 and status.parts[0].id == status.id:
        [part] = status.parts
        return _report(part, expand_filename(part.stdout, part), used.values()) | {"lost": status.lost, "parts": []}
    parts = [_report(part, expand_filename(part.stdout, part), _own(used.get(part.id))) for part in status.parts]
    return _report(_whole(status), _pattern(status), used.values()) | {"lost": status.lost, "parts": parts}


def status_of(said: Json) -> JobStatus:
    """The status that a report was made of, as far as the report has it."""
    is_known = said["state"] != str(UNKNOWN_JOB)
    parts = said["parts"] or [said] * is_known
    return JobStatus(id=JobId.parse(said["job_id"]), parts=tuple(map(_part_of, parts)), lost=said["lost"])


def _whole(status: JobStatus) -> Job:
    """A job with parts as one; its end is that of the most relevant part."""
    if status.telling is None:
        return Job(id=status.id)
    # Thousands of elements share some nodes, and reading hostlists takes time.
    nodes = {part.nodelist for part in status.parts if part.nodelist}
    return replace(
        status.telling,
        id=status.id,
        raw_id=status.id.job,
        nodelist=hostlist.fold(nodes) if nodes else "",
        restarts=sum(part.restarts for part in status.parts),
        submitted=min((part.submitted for part in status.parts if part.submitted), default=None),
        started=min((part.started for part in status.parts if part.started), default=None),
        ends=max((part.ends for part in status.parts if part.ends), default=None),
    )


def _pattern(status: JobStatus) -> str:
    """Where a job with parts writes: the pattern of an array's files; the file of a heterogeneous job."""
    if not status.parts:
        return ""
    first = status.parts[0]
    if first.id.part is not None:
        # The batch script runs in the first component only.
        return expand_filename(first.stdout, first)
    # Before v0.0.43 slurmrestd has the files, and not their pattern.
    patterns = {str(PurePosixPath(part.workdir) / part.stdout) if part.stdout else "" for part in status.parts}
    return expand_filename(patterns.pop(), replace(first, id=status.id), _OF_ELEMENTS) if len(patterns) == 1 else ""


def _own(usage: Usage | None) -> list[Usage]:
    return [] if usage is None else [usage]


def _report(job: Job, output: str, used: Iterable[Usage]) -> Json:
    is_over = job.state.is_finished
    elapsed = job.ends - job.started if is_over and job.started and job.ends else job.time_used
    return {
        "job_id": str(job.id),
        "raw_id": job.raw_id,
        "name": job.name,
        "state": str(job.state),
        "exit_code": f"{job.exit_code.code}:{job.exit_code.signal}" if is_over else None,
        "reason": job.reason,
        "cancelled_by": job.state.cancelled_by,
        "nodes": job.nodelist,
        "restarts": job.restarts,
        "submitted": _written(job.submitted),
        "started": _written(job.started),
        "ended": _written(job.ends) if is_over else None,
        "elapsed": elapsed.total_seconds() if isinstance(elapsed, timedelta) else None,
        "workdir": job.workdir,
        "output": output,
        **figures(used),
    }


def _part_of(said: Json) -> Job:
    return Job(
        id=JobId.parse(said["job_id"]),
        raw_id=said["raw_id"],
        name=said["name"],
        state=replace(JobState.parse(said["state"]), cancelled_by=said["cancelled_by"]),
        exit_code=ExitCode.parse(said["exit_code"] or "0:0"),
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
