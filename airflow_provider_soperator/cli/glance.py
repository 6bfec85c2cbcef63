"""The commands ``board``, ``jobs``, ``nodes``, ``health``, ``why`` and ``leftovers``: a cluster without a browser.

Each ends with status 1 if the cluster cannot be read, or what was asked for is not there.
"""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from airflow_provider_soperator.board.leftovers import LeftOver, OwnersNeed, left_overs
from airflow_provider_soperator.board.picture import INTERVAL, Picture, take
from airflow_provider_soperator.board.queue_rows import QueueQuery, queue_page
from airflow_provider_soperator.board.tasks import dags_at_work
from airflow_provider_soperator.board.wall import wall
from airflow_provider_soperator.capacity.allocation import counted
from airflow_provider_soperator.cli.terminal import agreed, command, moment_text, show, tell, visible
from airflow_provider_soperator.client.diagnosis import diagnose, hindrances
from airflow_provider_soperator.client.poller import statuses
from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.health.assessment import Observations
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus, sentence
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.pending_reasons import reason_in_words
from airflow_provider_soperator.slurm.requests.commands import run_steps_async

#: Rows of the queue: a terminal has no pages.
_ALL = 1_000_000


@command
def board(args: Namespace) -> None:
    """Show a cluster at a glance."""
    picture = None
    while True:
        picture = asyncio.run(take(args.conn_id, picture))
        if args.watch:
            # From the top of an empty screen, before anything is told.
            print("\033[2J\033[H", end="", flush=True)
        # Who watches sees an outage come and go.
        _tell_unread(picture, *(() if args.watch else ("nodes", "jobs")))
        show(args, ({"part": part, "what": what, "state": said} for part, what, said in _at_a_glance(picture)))
        if not args.watch:
            return
        time.sleep(INTERVAL)


def _at_a_glance(picture: Picture) -> Iterator[tuple[str, str, str]]:
    slurm = f"Slurm {picture.config.version}, cluster {picture.config.cluster}" if picture.config else "Slurm"
    yield "cluster", picture.connection, f"{slurm}, as of {moment_text(picture.taken)}"
    for group in wall(picture.nodes, picture.jobs):
        nodes = [tile.node for tile in group.tiles]
        said = ", ".join(f"{count} {state}" for state, count in group.counts.items())
        gpus = sum(node.gpus for node in nodes)
        used = f"; {sum(node.gpus_used for node in nodes)} of {gpus} GPUs in use" if gpus else ""
        yield "nodes", f"{group.name} ({len(nodes)})", said + used
    queue = queue_page(picture, QueueQuery())
    if picture.knows("jobs"):
        yield "queue", "running", f"{counted(queue.running, 'jobs')}, {queue.gpus_running} GPUs"
        yield "queue", "pending", f"{counted(queue.pending, 'jobs')}, {queue.gpus_pending} GPUs"
    for _, why, count in queue.reasons:
        yield "queue", f"{count} wait", why
    for name, found in picture.findings(Observations()).items():
        for one in found:
            yield "health", name, one.what
    for left in left_overs(picture):
        # Files have no owner.
        yield "held", left.what, ": ".join(filter(None, (left.owner and f"by {left.owner}", left.why)))


@command
def jobs(args: Namespace) -> None:
    """List jobs with their tasks, and why they wait."""
    picture = picture_of(args, "jobs")
    query = QueueQuery(jobs=args.state, search=args.search)
    rows = (
        {
            "job": row.job.id,
            "task": f"{row.tasks.dag_id} › {row.tasks}" if row.tasks else row.name,
            "user": row.job.user,
            "state": row.job.state,
            "why": row.why,
            "since": moment_text(row.since),
            "gpus": row.gpus,
            "nodes": row.job.nodelist,
            "limit": limit.value.lower() if isinstance(limit := row.job.time_limit, NoDuration) else limit,
        }
        for row in queue_page(picture, query, _ALL).rows
    )
    show(args, rows, none="No job in the queue fits")


@command
def nodes(args: Namespace) -> None:
    """List nodes with their state, jobs, and who has drained them."""
    picture = picture_of(args, "nodes")
    rows = (
        {
            "node": tile.node.name,
            "state": tile.state,
            "gpus": f"{tile.node.gpus_used}/{tile.node.gpus}",
            "jobs": [str(job) for job in tile.jobs],
            "reason": tile.node.reason,
            "by": tile.drained_by if tile.node.reason else "",
            "since": moment_text(tile.node.reason_since),
        }
        for group in wall(picture.nodes, picture.jobs)
        for tile in group.tiles
    )
    show(args, rows)


@command
def health(args: Namespace) -> None:
    """List nodes that are ill, and why."""
    found = picture_of(args, "nodes").findings(Observations())
    rows = (
        {
            "node": one.node,
            "finding": one.kind.value,
            "what": one.what,
            "since": moment_text(one.since),
            "heals": "yes" if one.heals else "no",
        }
        for findings in found.values()
        for one in findings
    )
    show(args, rows, none="Slurm has nothing against any node")


@command
def why(args: Namespace) -> None:
    """Tell why a job waits, or how it ended."""
    lines = asyncio.run(_lines_about(args.conn_id, JobId.parse(args.job)))
    show(args, ({"job": args.job, "line": line} for line in lines), "\n".join(map(visible, lines)))


async def _lines_about(connection: str, job: JobId) -> list[str]:
    async with SlurmHook(connection).async_client() as client:
        # Who looks waits for no outage to pass.
        status = (await run_steps_async(statuses({job: ""}), client.ask_now))[job]
        if not status.parts:
            raise ValueError(f"the cluster has no job {job}, neither in the queue nor in accounting")
        failed = any(part.has_failed for part in status.parts) and status.is_over
        lines, _ = await run_steps_async(diagnose(status), client.ask_now) if failed else ([], [])
        # It may leave the queue meanwhile.
        with suppress(ClusterError):
            lines += [f"  {line}" for line in await run_steps_async(hindrances(status.parts), client.ask_now)]
    return [f"Job {job} {sentence(status)}.", *_waits(status), *lines]


def _waits(status: JobStatus) -> Iterable[str]:
    for part in status.parts:
        if said := reason_in_words(part):
            expected = f"; Slurm expects it to start at {moment_text(part.started)}" if part.started else ""
            yield f"{part.id} waits: {said}{expected}."


def picture_of(args: Namespace, *needed: str) -> Picture:
    """The picture, if it has what is needed; what else could not be read is told beside it."""
    picture = asyncio.run(take(args.conn_id))
    _tell_unread(picture, *needed)
    return picture


def _tell_unread(picture: Picture, *needed: str) -> None:
    for why_not, parts in picture.unread.items():
        known = [picture.since[part] for part in parts if part in picture.since]
        shown = f" What is shown of it is as of {moment_text(min(known))}." if known else ""
        tell(f"Not read: {', '.join(parts)}. {why_not}{shown}")
    if not picture.failures.keys().isdisjoint(needed):
        sys.exit(1)


@command
def leftovers(args: Namespace) -> None:
    """List what DAGs have left, and release what no owner may need, or what is named."""
    found = _left(args)
    named = {each for name in args.names for each in ([name] if "/" in name else hostlist.expand(name))}
    if unknown := sorted(named.difference(*(one.names for one in found))):
        raise LookupError(f"nothing that is left is called {', '.join(unknown)}: name it as the list does")
    if named:
        found = [one.of(named) for one in found if named & one.names]
    listed = _with_needs(found)
    rows = [
        {"what": one.what, "owner": one.owner, "why": one.why, "since": moment_text(one.since), "at_work": need.at_work}
        for one, need in listed
    ]
    show(args, rows, none="Nothing is left over")
    if not args.release:
        return
    if chosen := [(one, need) for one, need in listed if named or need.at_work == "no"]:
        tell(f"To be released: {'; '.join(one.what for one, _ in chosen)}")
        agreed(args, "Release it?")
        # Since the plan was shown, a shift may have begun, or a node may have been drained for another reason.
        now = _with_needs(_left(args))
        still = [one for one, need in chosen if any(_is_as_before(one, need, *other) for other in now)]
        for one, _ in chosen:
            if one not in still:
                tell(f"Not released, as it has changed: {one.what}")
        asyncio.run(_release(args.conn_id, still))
        sys.exit(len(still) < len(chosen))
    elif found:
        tell("Nothing is released: the owner of each is at work, or may need it. Name what is to go nevertheless.")


def _left(args: Namespace) -> list[LeftOver]:
    return left_overs(picture_of(args, "nodes", "reservations", "jobs", "files"))


def _with_needs(found: Sequence[LeftOver]) -> list[tuple[LeftOver, OwnersNeed]]:
    known = dags_at_work({one.dag_id for one in found})
    return [(one, one.need(known)) for one in found]


def _is_as_before(one: LeftOver, need: OwnersNeed, other: LeftOver, its: OwnersNeed) -> bool:
    """True if it is the other one, or a part of that, and its owner needs it no more than before."""
    same = other.of({*one.nodes, *one.files})
    return (same.what, same.owner, same.why) == (one.what, one.owner, one.why) and its.at_work in (need.at_work, "no")


async def _release(conn_id: str, chosen: Sequence[LeftOver]) -> None:
    async with SlurmHook(conn_id).async_client() as client:
        for one in chosen:
            await client.ask(one.release)
            tell(f"Released: {one.what}")
