"""The commands ``airflow soperator …``: a cluster at a glance, without a browser.

Each ends with status 1 if the cluster cannot be read, or what was asked for is not there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from airflow.cli.simple_table import AirflowConsole

from airflow_provider_soperator.board.picture import Picture, take
from airflow_provider_soperator.board.queue_rows import QueueQuery, queue_page
from airflow_provider_soperator.board.tasks import find_tasks
from airflow_provider_soperator.board.wall import left_overs, wall
from airflow_provider_soperator.client.diagnosis import diagnose
from airflow_provider_soperator.errors import ClusterError, ConnectionMistake
from airflow_provider_soperator.hooks.check import in_words
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus, sentence
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.pending_reasons import reason_in_words
from airflow_provider_soperator.slurm.requests.commands import run_steps_async

#: Rows of the queue: a terminal has no pages.
_ALL = 1_000_000


def jobs(args: Namespace) -> None:
    """List jobs with their tasks, and why they wait."""
    picture = _picture(args, "jobs")
    query = QueueQuery(jobs=args.state, search=args.search)
    _print(
        args,
        (
            {
                "job": row.job.id,
                "task": f"{row.tasks.dag_id} › {row.tasks}" if row.tasks else row.name,
                "user": row.job.user,
                "state": row.job.state,
                "why": row.why,
                "since": _moment(row.since),
                "gpus": row.gpus * row.count,
                "nodes": row.job.nodelist,
                "limit": limit.value.lower() if isinstance(limit := row.job.time_limit, NoDuration) else limit,
            }
            for row in queue_page(picture, query, _ALL).rows
        ),
    )


def nodes(args: Namespace) -> None:
    """List nodes with their state, jobs, and who has drained them."""
    picture = _picture(args, "nodes")
    _print(
        args,
        (
            {
                "node": tile.node.name,
                "state": tile.state,
                "gpus": f"{tile.node.gpus_used}/{tile.node.gpus}",
                "jobs": [str(job) for job in tile.jobs],
                "reason": tile.node.reason,
                "by": tile.drained_by if tile.node.reason else "",
                "since": _moment(tile.node.reason_since),
            }
            for group in wall(picture.nodes, picture.jobs)
            for tile in group.tiles
        ),
    )


def health(args: Namespace) -> None:
    """List what Slurm has against nodes."""
    found = _picture(args, "nodes").findings
    _print(
        args,
        (
            {
                "node": one.node,
                "finding": one.kind.value,
                "what": one.what,
                "since": _moment(one.since),
                "heals": "yes" if one.heals else "no",
            }
            for findings in found.values()
            for one in findings
        ),
    )


def held(args: Namespace) -> None:
    """List drains and reservations of DAGs."""
    picture = _picture(args, "nodes", "reservations")
    _print(
        args,
        (
            {"what": one.what, "owner": one.owner, "why": one.why, "since": _moment(one.since)}
            for one in left_overs(picture.nodes, picture.reservations)
        ),
    )


def why(args: Namespace) -> None:
    """Tell why a job waits, or how it ended."""
    try:
        job = JobId.parse(args.job)
        lines = asyncio.run(_told(args, job))
    except ValueError as error:
        sys.exit(str(error))
    except (ClusterError, ConnectionMistake) as error:
        sys.exit(in_words(error))
    print("\n".join(lines))


def test(args: Namespace) -> None:
    """Test the connection."""
    _as_server()
    works, said = SlurmHook(args.conn_id).test_connection()
    print(said, file=sys.stdout if works else sys.stderr)
    sys.exit(not works)


async def _told(args: Namespace, job: JobId) -> list[str]:
    _as_server()
    async with SlurmHook(args.conn_id).async_client() as client:
        status = await client.status(job)
        if not status.parts:
            raise ValueError(f"the cluster has no job {job}, neither in the queue nor in accounting")
        failed = any(part.has_failed for part in status.parts) and status.is_over
        lines, _ = await run_steps_async(diagnose(status), client.ask) if failed else ([], [])
    return [f"Job {job} {sentence(status)}.", *_waits(status), *lines]


def _waits(status: JobStatus) -> Iterable[str]:
    for part in status.parts:
        if said := reason_in_words(part):
            expected = f"; Slurm expects it to start at {_moment(part.started)}" if part.started else ""
            yield f"{part.id} waits: {said}{expected}."


def _picture(args: Namespace, *needed: str) -> Picture:
    """The picture, if it has what is needed; what else could not be read is told beside it."""
    _as_server()
    picture = asyncio.run(take(args.conn_id, find_tasks))
    for why_not, parts in picture.unread.items():
        print(f"Not read: {', '.join(parts)}. {why_not}", file=sys.stderr)
    if not picture.failures.keys().isdisjoint(needed):
        sys.exit(1)
    return picture


def _as_server() -> None:
    # Only so does Airflow look for connections in its database, as its own commands do.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


def _print(args: Namespace, rows: Iterable[dict[str, Any]]) -> None:
    AirflowConsole().print_as(list(rows), args.output)


def _moment(moment: datetime | None) -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds") if moment else ""
