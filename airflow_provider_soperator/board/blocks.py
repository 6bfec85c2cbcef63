"""The blocks that DAGs move: how many GPUs each target has, who else has some, what is free, and what will change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from airflow_provider_soperator.board.capacity_dags import CapacityDag, capacity_dags
from airflow_provider_soperator.board.looks import attempt, kept_since
from airflow_provider_soperator.capacity import reconciliation
from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CapacityLook:
    """The DAGs that move capacity of a cluster, and the block of each as it is now."""

    taken: datetime
    dags: Sequence[CapacityDag] = ()
    #: By DAG; one that could not be looked at is as it was, ``since`` then.
    worlds: Mapping[str, World] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    since: Mapping[str, datetime] = field(default_factory=dict)


async def look_at_capacity(connection: str, before: CapacityLook | None = None) -> CapacityLook:
    """A look at the DAGs of a connection and at their blocks, with the questions of their watchers."""
    now, failures = datetime.now(timezone.utc), dict[str, str]()
    last = before or CapacityLook(taken=now)
    dags = await attempt("", failures, asyncio.to_thread(capacity_dags, connection), list(last.dags))
    looks = {dag.dag_id: reconciliation.look(dag.order, ShiftClients(), _log) for dag in dags if dag.order}
    found = await asyncio.gather(
        *(attempt(name, failures, look, last.worlds.get(name)) for name, look in looks.items())
    )
    return CapacityLook(
        taken=now,
        dags=dags,
        worlds={name: world for name, world in zip(looks, found, strict=True) if world},
        failures=failures,
        since=kept_since(failures, before),
    )


@dataclass(frozen=True)
class BlockPart:
    """A part of the bar of a block."""

    #: ``busy``, ``idle``, ``held`` (in use or not, which is unknown), ``moving``, ``others`` or ``free``.
    kind: str
    gpus: int
    #: Where it begins, and its width, in percent of the bar.
    x: float = 0.0
    width: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BlockSide:
    """A target, the others, or what is free, with the parts of it that have any GPUs."""

    name: str
    gpus: int
    parts: Sequence[BlockPart]
    #: GPUs beside the block.
    bought: int = 0
    problems: Sequence[str] = ()


def sides(dag: CapacityDag, world: World, connection: str, nodes: Sequence[Node]) -> list[BlockSide]:
    """What each target has of a block, and the rest of it, as the parts of a bar; ``nodes`` are the connection's."""
    found = [_side(dag, name, world, connection, nodes) for name in world.holdings]
    if world.others is not None and world.others > 0:
        found.append(BlockSide(name="others", gpus=world.others, parts=[BlockPart("others", world.others)]))
    if world.block.free is not None:
        found.append(BlockSide(name="free", gpus=world.block.free, parts=[BlockPart("free", world.block.free)]))
    whole = max(world.block.limit, sum(side.gpus for side in found), 1)
    at, placed = 0, []
    for side in found:
        parts = []
        for part in side.parts:
            if part.gpus:
                parts.append(replace(part, x=round(100 * at / whole, 2), width=round(100 * part.gpus / whole, 2)))
                at += part.gpus
        placed.append(replace(side, parts=parts))
    return placed


def _side(dag: CapacityDag, name: str, world: World, connection: str, nodes: Sequence[Node]) -> BlockSide:
    seen, per_unit = world.holdings[name], world.gpus[name]
    has, at_work = seen.held * per_unit, seen.at_work * per_unit
    parts = [BlockPart("held", at_work)]
    target = {one.name: one for one in dag.order.targets}.get(name) if dag.order else None
    if getattr(target, "slurm_conn_id", None) == connection:
        mine = frozenset(hostlist.expand(target.nodes))  # type: ignore[union-attr]
        busy = min(at_work, sum(node.gpus_used for node in nodes if node.name in mine))
        parts = [BlockPart("busy", busy), BlockPart("idle", at_work - busy)]
    parts.append(BlockPart("moving", has - at_work))
    return BlockSide(name=name, gpus=has, parts=parts, bought=seen.beside * per_unit, problems=seen.problems)
