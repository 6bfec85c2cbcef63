"""The choice of the nodes to release: those that lose least work, each with a reason that a person can check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, Literal

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job_records import Job, count_gpus
from airflow_provider_soperator.slurm.node_conditions import is_going_off, is_off, loss_rank
from airflow_provider_soperator.slurm.notations import NoDuration

#: The end of a job without a time limit. (Slurm assumes a year.)
_NEVER = datetime.max.replace(tzinfo=timezone.utc)
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class NodeLoad:
    """A node and its jobs."""

    node: Node
    jobs: tuple[Job, ...] = ()

    @property
    def free_at(self) -> datetime:
        """The latest end of its jobs."""
        ends = [job.ends if job.time_limit is not NoDuration.UNLIMITED else None for job in self.jobs]
        return max((end or _NEVER for end in ends), default=_LONG_AGO)


def work_of(job: Job, now: datetime) -> float:
    """GPU-seconds that a job has used since it started; for a job without GPUs, seconds."""
    ran = (now - job.started).total_seconds() if job.started else 0.0
    return max(0.0, ran) * (count_gpus(job.tres) or 1)


def choose(
    nodes: Iterable[Node],
    jobs: Sequence[Job],
    count: int,
    *,
    now: datetime,
    by: Literal["end", "work"] = "end",
    blocks: Mapping[str, str] = MappingProxyType({}),
    leaving: AbstractSet[str] = frozenset(),
) -> dict[str, str]:
    """Choose ``count`` of these nodes to release, best first, each with the reason.

    ``by``: busy nodes go by the end of their jobs, or by the work that would be lost. ``blocks``: the network block of
    each node; nodes of one block go together, so that large jobs keep whole blocks. ``leaving``: nodes that were chosen
    before; they stay chosen.
    """

    def rank(load: NodeLoad) -> tuple[int, float]:
        ends = (load.free_at - now).total_seconds()
        lost = ends if by == "end" else sum(work_of(job, now) for job in load.jobs)
        return (loss_rank(load.node, has_jobs=bool(load.jobs)), lost)

    # A stable sort: equal nodes go in the order of their numbers.
    ranked = sorted(_loads(nodes, jobs), key=rank)
    stay = [load for load in ranked if load.node.name in leaving]
    others = [load for load in ranked if load.node.name not in leaving]
    if blocks:
        others = _by_block(others, blocks, count - len(stay), rank)
    return {load.node.name: _why(load, leaving, blocks) for load in (stay + others)[:count]}


def _loads(nodes: Iterable[Node], jobs: Sequence[Job]) -> list[NodeLoad]:
    on: dict[str, list[Job]] = {}
    for job in jobs:
        for name in hostlist.expand(job.nodelist):
            on.setdefault(name, []).append(job)
    return [NodeLoad(node, tuple(on.get(node.name, ()))) for node in nodes]


def _by_block(
    ranked: list[NodeLoad], blocks: Mapping[str, str], count: int, rank: Callable[[NodeLoad], Any]
) -> list[NodeLoad]:
    """The same nodes, block by block; first the block whose nodes lose least."""
    groups: dict[str, list[NodeLoad]] = {}
    for load in ranked:
        groups.setdefault(blocks.get(load.node.name, load.node.name), []).append(load)
    ordered: list[NodeLoad] = []
    while groups:
        left = count - len(ordered)
        # Of two equal blocks, the smaller one: this leaves more blocks whole.
        best = min(groups, key=lambda name: (rank(groups[name][: max(1, left)][-1]), len(groups[name])))
        ordered += groups.pop(best)
    return ordered


def _why(load: NodeLoad, leaving: AbstractSet[str], blocks: Mapping[str, str]) -> str:
    block = blocks.get(load.node.name)
    return _reason(load, leaving) + (f", in block {block}" if block else "")


def _reason(load: NodeLoad, leaving: AbstractSet[str]) -> str:
    if load.node.name in leaving:
        return "chosen before"
    if is_off(load.node):
        return "off"
    if is_going_off(load.node):
        return "already powering down"
    if not load.jobs:
        return "idle"
    names = ", ".join(f"{job.id} ({job.name})" for job in load.jobs)
    if load.free_at == _NEVER:
        return f"runs {names} without a time limit"
    return f"runs {names} until {load.free_at:%d %b %H:%M:%S} UTC at the latest"
