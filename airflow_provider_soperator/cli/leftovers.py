"""The command ``leftovers``: what DAGs have left on a cluster, whether its owner is at work, and its release."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Sequence

from airflow_provider_soperator.board.leftovers import LeftOver, left_overs
from airflow_provider_soperator.board.tasks import dags_at_work
from airflow_provider_soperator.cli.glance import picture_of
from airflow_provider_soperator.cli.terminal import agreed, command, moment_text, show, tell
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.node_conditions import is_ours
from airflow_provider_soperator.slurm.requests import ListNodes


@command
def leftovers(args: Namespace) -> None:
    """List what DAGs have left, and release what has no owner at work, or what is named."""
    found = left_overs(picture_of(args, "nodes", "reservations", "jobs", "files"))
    named = {each for name in args.names for each in ([name] if "/" in name else hostlist.expand(name))}
    if unknown := sorted(named.difference(*(one.names for one in found))):
        raise LookupError(f"nothing that is left is called {', '.join(unknown)}: name it as the list does")
    if named:
        found = [one.of(named) for one in found if named & one.names]
    known = dags_at_work({one.dag_id for one in found})
    at_work = [one.need(known).at_work for one in found]
    rows = [
        {"what": one.what, "owner": one.owner, "why": one.why, "since": moment_text(one.since), "at_work": is_at_work}
        for one, is_at_work in zip(found, at_work, strict=True)
    ]
    show(args, rows, none="Nothing is left over")
    if not args.release:
        return
    chosen = [one for one, is_at_work in zip(found, at_work, strict=True) if named or is_at_work == "no"]
    if chosen:
        tell(f"To be released: {'; '.join(one.what for one in chosen)}")
        agreed(args, "Release it?")
        asyncio.run(_release(args.conn_id, chosen))
    elif found:
        tell("Nothing is released: the owner of each is at work, or unknown. Name what is to go nevertheless.")


async def _release(conn_id: str, chosen: Sequence[LeftOver]) -> None:
    async with SlurmHook(conn_id).async_client() as client:
        nodes = {node.name: node for node in await client.ask(ListNodes())}
        for one in chosen:
            # Since the plan was shown, a node may have been drained for another reason.
            if any(not is_ours(nodes[name], one.owner) for name in one.nodes if name in nodes):
                tell(f"Not released, as it has changed: {one.what}")
            else:
                await client.ask(one.release)
                tell(f"Released: {one.what}")
