"""Links to pages about a job: a site's templates, filled with what is known of the job so far."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from string import Formatter
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.job_records import JobStatus


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
    """The problem of a template, as the end of a sentence that begins with its name; empty if it is valid."""
    if not template.startswith(("http://", "https://")):
        return "is not a link: it must begin with http:// or https://"
    try:
        named = placeholders_of(template)
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
    if not all(values.get(name) for name in placeholders_of(template)):
        return ""
    return template.format_map({name: quote(value, safe="/") for name, value in values.items()})


def xcom_key(field: str) -> str:
    """The XCom key of the link whose template is in this field of the connection."""
    return f"_link_{field}"


def placeholder_values(status: JobStatus) -> dict[str, str]:
    """Values of placeholders, as far as they are known; for a job with parts, of all parts or of the first."""
    from airflow_provider_soperator.slurm import hostlist

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
        "output": first.output,
        "start_ms": _milliseconds(min(started or submitted, default=None)),
        "end_ms": _milliseconds(max(ended, default=None)) if status.is_finished else "now",
    }


def placeholders_of(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def _milliseconds(when: datetime | None) -> str:
    return str(int(when.timestamp() * 1000)) if when else ""
