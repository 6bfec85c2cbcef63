"""Reports of jobs: as plain JSON for tasks and triggers, and as links from templates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from string import Formatter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus, expand_filename
from airflow_provider_soperator.slurm.notations import ExitCode
from airflow_provider_soperator.slurm.states import JobState

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.job_records import JobStatus


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


#: Placeholders of templates, and their meanings.
PLACEHOLDERS: Mapping[str, str] = {
    "job_id": "the job's number",
    "name": "its name",
    "user": "its user",
    "cluster": "the cluster's name in Slurm",
    "node": "its first node",
    "nodes": "all of its nodes, as worker-0|worker-1, an expression that finds each of them",
    "output": "the path of its output",
    "start_ms": "when it started, in milliseconds since 1970; while it waits, when it was submitted",
    "end_ms": "when it ended, likewise; until then the word now",
}


def link_problem(template: str) -> str:
    """The problem of a template, as the end of a sentence that begins with its name; empty if it is valid.

    >>> link_problem("https://portal.example.com/{jobid}")[:30]
    'has the unknown placeholder {j'
    """
    if not template.startswith(("http://", "https://")):
        return "is not a link: it must begin with http:// or https://"
    try:
        named = _named(template)
    except ValueError as error:
        return f"cannot be parsed ({error}): write a literal brace twice"
    if unknown := sorted(named - PLACEHOLDERS.keys()):
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        return f"has the unknown placeholder {{{unknown[0]}}}: there are {known}"
    return ""


def link_of(template: str, values: Mapping[str, str]) -> str:
    """The link; empty while a value of it is unknown.

    >>> link_of("https://portal.example.com/{user}/{job_id}", {"user": "al ice", "job_id": "7"})
    'https://portal.example.com/al%20ice/7'
    """
    if not all(values.get(name) for name in _named(template)):
        return ""
    return template.format_map({name: quote(value, safe="/") for name, value in values.items()})


def xcom_key(field: str) -> str:
    """The XCom key of the link whose template is in this field of the connection."""
    return f"_link_{field}"


def names_placeholder(template: str, placeholder: str) -> bool:
    """True if a template has a placeholder."""
    return placeholder in _named(template)


def placeholder_values(status: JobStatus) -> dict[str, str]:
    """Values of placeholders, as far as they are known; for a job with parts, of all parts or of the first."""
    from airflow_provider_soperator.slurm import hostlist
    from airflow_provider_soperator.slurm.job_records import expand_filename

    said = {"job_id": str(status.id)}
    if not status.parts:
        return said
    first, begun = status.parts[0], [part for part in status.parts if not part.state.is_pending]
    held = ",".join(part.nodelist for part in begun if part.nodelist)
    nodes = hostlist.expand(held) if held else []
    started = [part.started for part in begun if part.started]
    submitted = [part.submitted for part in status.parts if part.submitted]
    ended = [part.ends for part in status.parts if part.ends]
    return said | {
        "name": first.name,
        "user": first.user,
        "node": first.batch_host or (nodes[0] if nodes else ""),
        "nodes": "|".join(nodes),
        "output": expand_filename(first.stdout, first),
        "start_ms": _milliseconds(min(started or submitted, default=None)),
        "end_ms": _milliseconds(max(ended, default=None)) if status.is_finished else "now",
    }


def _named(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def _milliseconds(when: datetime | None) -> str:
    return str(int(when.timestamp() * 1000)) if when else ""
