"""Diagnosis of a job that did not succeed, for people, from slurmctld, its nodes and accounting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial

from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node, Reservation
from airflow_provider_soperator.slurm.errors import UnknownJob
from airflow_provider_soperator.slurm.job_failures import canceller, failure
from airflow_provider_soperator.slurm.job_records import AccountingStep, Job, JobStatus
from airflow_provider_soperator.slurm.requests import Accounting, JobDetail, ListNodes, ListReservations
from airflow_provider_soperator.slurm.requests.commands import Steps
from airflow_provider_soperator.slurm.states import JobBase, NodeBase, NodeFlag

#: Fields that help to explain an end, as ``scontrol show job`` has them, and as slurmrestd does.
_TELLING = re.compile(
    r"(JobState|ExitCode|RunTime|StartTime|PreemptTime|NodeList|FailedNode|ReqTRES|AllocTRES|Command|WorkDir|StdErr|StdOut"
    r"|Comment|AdminComment|SystemComment)="
    r'|"(state_reason|nodes|failed_node|tres_req_str|tres_alloc_str|command|current_working_directory|standard_error'
    r'|standard_output|comment|admin_comment|system_comment)": "(?!")'
)
#: The nodes that a job asks for, as scontrol tells them, and slurmrestd.
_ASKED = re.compile(r'ReqNodeList=(?!\(null\))(\S+)|"required_nodes": "([^"]+)"')
#: The node that a job has lost, likewise.
_LOST = re.compile(r'FailedNode=(\S+)|"failed_node": "([^"]+)"')
#: Nodes and steps that are listed.
_MOST = 16


def diagnose(status: JobStatus) -> Steps[tuple[list[str], list[str]]]:
    """Lines about the job or its first failed part, and the nodes of that, the worst first."""
    error = failure(status)
    part = error.part if error else None
    if part is None:
        return [], []
    found: list[Node] = []
    lines = [f"Diagnosis of job {part.id}"]
    sections: tuple[tuple[str, Callable[[Job], Steps[list[str]]]], ...] = (
        ("slurmctld", _queue), ("Nodes", partial(_nodes, found=found)), ("Accounting", _accounting),
    )  # fmt: skip
    for title, section in sections:
        try:
            said = yield from section(part)
        except ClusterError as trouble:
            said = [f"not available: {trouble}"]
        lines += [f"  {title}", *(f"    {line}" for line in said)]
    return lines, [node.name for node in found] or hostlist.expand(part.nodelist)


def failed_nodes(end: JobStatus) -> Steps[list[str]]:
    """The nodes on which parts of a job have failed: of several of which one was lost that, or those out of service."""
    found: list[str] = []
    for part in end.parts:
        nodes = hostlist.expand(part.nodelist) if part.nodelist and not part.state.succeeded else []
        if len(nodes) > 1 and part.state.base is JobBase.NODE_FAIL:
            nodes = yield from _lost(part, nodes)
        found += nodes
    return found


def _lost(part: Job, nodes: list[str]) -> Steps[list[str]]:
    with suppress(ClusterError):
        lost = {scontrol or rest for scontrol, rest in _LOST.findall((yield JobDetail(part.id)))}
        if known := [node for node in nodes if node in lost]:
            return known
    with suppress(ClusterError):
        there: tuple[Node, ...] = yield ListNodes(tuple(nodes))
        return [node.name for node in there if _is_out_of_service(node)]
    return []


def _is_out_of_service(node: Node) -> bool:
    # One that is powered down comes back for the next job.
    out = (NodeFlag.DRAIN, NodeFlag.FAIL, NodeFlag.NOT_RESPONDING)
    return node.state.base is NodeBase.DOWN or node.state.has(*out)


def hindrances(parts: Iterable[Job], asked: str | None = None) -> Steps[list[str]]:
    """Lines about nodes that a waiting job asks for by name and cannot get, and reservations of these.

    Slurm's reason names neither.

    ``asked``: those nodes, where they are known.
    """
    part = next((one for one in parts if one.state.is_pending and one.reason.startswith("ReqNodeNotAvail")), None)
    if part is None:
        return []
    if asked is None:
        found = _ASKED.search((yield JobDetail(part.id)))
        asked = (found[1] or found[2]) if found else ""
    nodes: tuple[Node, ...] = (yield ListNodes(tuple(hostlist.expand(asked)))) if asked else ()
    # Those that Slurm or an administrator has taken out of service.
    lines, reserved = [_node(node) for node in nodes if node.reason], list[str]()
    if len(lines) < len(nodes):
        with suppress(ClusterError):
            all_of_them: tuple[Reservation, ...] = yield ListReservations()
            reserved = [_reservation(one) for one in all_of_them if _is_in_the_way(one, part, asked)]
    return _some(lines, "nodes") + reserved


def _is_in_the_way(one: Reservation, of: Job, asked: str) -> bool:
    # Slurm starts no job that may last until the reservation begins, and takes no limit for a year.
    limit = of.time_limit if isinstance(of.time_limit, timedelta) else timedelta(days=365)
    is_soon = one.start is None or one.start < datetime.now(timezone.utc) + limit
    return is_soon and one.name != of.reservation and bool(hostlist.intersect(one.nodelist, asked))


def _reservation(one: Reservation) -> str:
    when = " to ".join(f"{at:%Y-%m-%d %H:%M:%S}" for at in (one.start, one.end) if at)
    return ", ".join(filter(None, (f"reservation {one.name} of {one.nodelist}", when, one.comment)))


def _queue(part: Job) -> Steps[list[str]]:
    try:
        shown: str = yield JobDetail(part.id)
    except UnknownJob:
        return ["no longer known"]
    # For an array or a heterogeneous job all parts are shown.
    own = next((one for one in shown.split("\n\n") if f"JobId={part.raw_id} " in one), shown)
    return [line.strip().rstrip(",") for line in own.splitlines() if _TELLING.match(line.strip())]


def _nodes(part: Job, found: list[Node]) -> Steps[list[str]]:
    if not part.nodelist:
        return ["none"]
    nodes: tuple[Node, ...] = yield ListNodes(tuple(hostlist.expand(part.nodelist)))
    found += sorted(nodes, key=lambda node: (not node.reason, node.name))
    return _some([_node(node) for node in found], "nodes")


def _node(node: Node) -> str:
    said = f"{node.name}: {node.state}"
    if not node.reason:
        return said
    since = f" since {node.reason_since:%Y-%m-%d %H:%M:%S}" if node.reason_since else ""
    return f"{said}, {node.reason} (by {node.reason_user or 'unknown'}{since})"


def _accounting(part: Job) -> Steps[list[str]]:
    for job in (yield Accounting(ids=(part.id.whole,), steps=True)):
        if job.id == part.id:
            said = [f"job: {job.state}{canceller(job)}, {job.exit_code}"]
            return said + _some([_step(step) for step in job.steps], "steps")
    return ["no record (yet)"]


def _step(step: AccountingStep) -> str:
    memory = f", at most {step.max_rss / 2**20:.1f} MiB per task" if step.max_rss else ""
    return f"step {step.id.step}: {step.state}, {step.exit_code}, {step.elapsed} on {step.nodelist}{memory}"


def _some(lines: list[str], what: str) -> list[str]:
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"and {len(lines) - _MOST} more {what}"]
