"""Links to pages about a job: templates that a site has, filled with what is known of the job so far."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from string import Formatter
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.status import JobStatus

#: What a template may name, and what stands in its place.
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


def problem(template: str) -> str:
    """What is wrong with a template, as the end of a sentence that begins with its name; nothing if it can be filled.

    >>> problem("https://portal.example.com/{jobid}")[:30]
    'has {jobid}, which means nothi'
    """
    if not template.startswith(("http://", "https://")):
        return "is no link: it has to begin with http:// or https://"
    try:
        named = _named(template)
    except ValueError as error:
        return f"cannot be read ({error}): a brace that is meant as such is written twice"
    if unknown := sorted(named - PLACEHOLDERS.keys()):
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        return f"has {{{unknown[0]}}}, which means nothing: there are {known}"
    return ""


def fill(template: str, values: Mapping[str, str]) -> str:
    """The link; nothing while something that it names is not known.

    >>> fill("https://portal.example.com/{user}/{job_id}", {"user": "al ice", "job_id": "7"})
    'https://portal.example.com/al%20ice/7'
    """
    if not all(values.get(name) for name in _named(template)):
        return ""
    return template.format_map({name: quote(value, safe="/") for name, value in values.items()})


def xcom_key(field: str) -> str:
    """Where a task keeps the link whose template is in this field of its connection."""
    return f"_link_{field}"


def names(template: str, placeholder: str) -> bool:
    """Whether a template has a placeholder."""
    return placeholder in _named(template)


def describe(status: JobStatus) -> dict[str, str]:
    """What placeholders stand for, as far as it is known; of a job with parts, for all of them or the first."""
    from airflow_provider_soperator.slurm import hostlist
    from airflow_provider_soperator.slurm.filenames import expand

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
        "output": expand(first.stdout, first),
        "start_ms": _milliseconds(min(started or submitted, default=None)),
        "end_ms": _milliseconds(max(ended, default=None)) if status.is_finished else "now",
    }


def _named(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def _milliseconds(when: datetime | None) -> str:
    return str(int(when.timestamp() * 1000)) if when else ""
