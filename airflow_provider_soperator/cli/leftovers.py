"""The command ``leftovers``: what DAGs have left on a cluster, whether its owner is at work, and its release."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Any, Literal

from airflow_provider_soperator.board.tasks import dags_at_work
from airflow_provider_soperator.board.wall import LeftOver, left_overs
from airflow_provider_soperator.capacity.reservations import is_lapsed
from airflow_provider_soperator.cli.terminal import agreed, command, moment_text, show, tell
from airflow_provider_soperator.functions.call import FOLDER
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.files import FileRequest, RemoveFiles
from airflow_provider_soperator.slurm.job_ids import key_of
from airflow_provider_soperator.slurm.node_conditions import is_ours
from airflow_provider_soperator.slurm.requests import (
    Command,
    CommandOutput,
    DeleteReservation,
    ListJobs,
    ListNodes,
    ListReservations,
    Request,
    Undrain,
)
from airflow_provider_soperator.transports.transport_errors import NotSupported

#: Minutes after which no task reads the file of a call whose job has left the queue.
_OLD = 24 * 60


@dataclass(frozen=True)
class Remnant:
    """A thing that is left, and the request that releases it."""

    left: LeftOver
    release: Request[Any]
    at_work: Literal["yes", "no", "unknown"]

    @property
    def names(self) -> set[str]:
        """What it is called: each of its nodes, or the reservation, or the file."""
        if self.left.reservation:
            return {self.left.reservation.name}
        return {*self.left.nodes} or {self.left.what.removeprefix("file ")}

    def of(self, named: Collection[str]) -> Remnant:
        """The part of it that is named."""
        nodes = tuple(node for node in self.left.nodes if node in named)
        if not nodes:
            return self
        part = replace(self.left, what=f"drain of {hostlist.fold(nodes)}", nodes=nodes)
        return replace(self, left=part, release=Undrain(nodes))


@command
def leftovers(args: Namespace) -> None:
    """List what DAGs have left, and release what has no owner at work, or what is named."""
    found = asyncio.run(_found(args.conn_id))
    named = {each for name in args.names for each in hostlist.expand(name)}
    if unknown := sorted(named.difference(*(one.names for one in found))):
        raise LookupError(f"nothing that is left is called {', '.join(unknown)}: name it as the list does")
    if named:
        found = [one.of(named) for one in found if named & one.names]
    rows = [
        {
            "what": one.left.what,
            "owner": one.left.owner,
            "why": one.left.why,
            "since": moment_text(one.left.since),
            "at_work": one.at_work,
        }
        for one in found
    ]
    show(args, rows, None if rows else "Nothing is left over")
    if not args.release:
        return
    chosen = [one for one in found if named or one.at_work == "no"]
    if chosen:
        tell(f"To be released: {'; '.join(one.left.what for one in chosen)}")
        agreed(args, "Release it?")
        asyncio.run(_release(args.conn_id, chosen))
    elif found:
        tell("Nothing is released: the owner of each is at work, or unknown. Name what is to go nevertheless.")


async def _found(conn_id: str) -> list[Remnant]:
    async with SlurmHook(conn_id).async_client() as client:
        nodes, reservations, jobs = await asyncio.gather(
            client.ask(ListNodes()), client.ask(ListReservations()), client.ask(ListJobs())
        )
        try:
            files = await client.ask(OldFiles())
        except NotSupported:
            files = ()
    held = left_overs(nodes, reservations)
    known = await asyncio.to_thread(dags_at_work, {one.dag_id for one in held})
    found = [_remnant(one, known) for one in held]
    in_queue = {key.text for job in jobs if (key := key_of(job.name))}
    for file in files:
        if PurePosixPath(file).stem not in in_queue:
            left = LeftOver(what=f"file {file}", owner="", why="no job in the queue is of this call")
            found.append(Remnant(left, RemoveFiles((file,)), "no"))
    return found


def _remnant(one: LeftOver, known: Mapping[str, bool]) -> Remnant:
    if one.reservation:
        release: Request[Any] = DeleteReservation(one.reservation.name)
        if is_lapsed(one.reservation, datetime.now(timezone.utc)):
            return Remnant(one, release, "no")
    else:
        release = Undrain(one.nodes)
    if one.dag_id not in known:
        # Of another Airflow, or under a name of its own.
        return Remnant(one, release, "unknown")
    # A schedule keeps nodes drained between its shifts.
    is_kept = known[one.dag_id] or one.owner.startswith("capacity/")
    return Remnant(one, release, "yes" if is_kept else "no")


async def _release(conn_id: str, chosen: Sequence[Remnant]) -> None:
    async with SlurmHook(conn_id).async_client() as client:
        nodes = {node.name: node for node in await client.ask(ListNodes())}
        for one in chosen:
            # Since the plan was shown, a node may have been drained for another reason.
            if any(not is_ours(nodes[name], one.left.owner) for name in one.left.nodes if name in nodes):
                tell(f"Not released, as it has changed: {one.left.what}")
            else:
                await client.ask(one.release)
                tell(f"Released: {one.left.what}")


_FIND = """\
[ ! -d "$PWD/$1" ] || find "$PWD/$1" -maxdepth 1 -type f -mmin "+$2" -printf '%p\\0'
"""


@dataclass(frozen=True)
class OldFiles(FileRequest[tuple[str, ...]]):
    """Find the files of calls of functions in the user's home that are a day old."""

    doing = "looking for files of calls"

    def command(self) -> Command:
        return Command(("bash", "-c", _FIND, "find", FOLDER, str(_OLD)))

    def read(self, answer: CommandOutput) -> tuple[str, ...]:
        return tuple(word.decode() for word in self.check(answer).stdout.split(b"\0")[:-1])
