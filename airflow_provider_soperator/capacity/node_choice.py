"""The choice of the nodes to release: those that lose least work, each with a reason that a person can check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job_records import Job, count_gpus
from airflow_provider_soperator.slurm.node_conditions import is_going_off, is_off, loss_rank
from airflow_provider_soperator.slurm.notations import NoDuration

#: The criterion for busy nodes: the end of their jobs, or the work that would be lost.
NodeOrder = Literal["end", "work"]

#: The end of a job without a time limit. (Slurm assumes a year.)
_NEVER = datetime.max.replace(tzinfo=timezone.utc)
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class NodeChoice:
    """A node to release, and the reason."""

    node: str
    why: str
    #: The latest end of its jobs; None if they have no time limit.
    free_at: datetime | None


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

    def work(self, now: datetime) -> float:
        """GPU-seconds of work that would be lost if its jobs were killed."""
        return sum(work_of(job, now) for job in self.jobs)


def work_of(job: Job, now: datetime) -> float:
    """GPU-seconds that a job has used since it started; for a job without GPUs, seconds."""
    ran = (now - job.started).total_seconds() if job.started else 0.0
    return max(0.0, ran) * (count_gpus(job.tres) or 1)


@dataclass(frozen=True)
class NodePreference:
    """The order in which nodes are chosen."""

    by: NodeOrder = "end"
    #: The network block of each node: nodes of one block go together, so that large jobs keep whole blocks.
    blocks: Mapping[str, str] = field(default_factory=dict)


def choose(
    nodes: Iterable[Node],
    jobs: Sequence[Job],
    count: int,
    *,
    now: datetime,
    preference: NodePreference = NodePreference(),
    leaving: AbstractSet[str] = frozenset(),
) -> list[NodeChoice]:
    """Choose ``count`` of these nodes to release, best first.

    ``leaving``: nodes that were chosen before; they stay chosen.
    """
    loads = _loads(nodes, jobs)
    # A stable sort: equal nodes go in the order of their numbers.
    ranked = sorted(loads, key=lambda load: _rank(load, now, preference.by))
    stay = [load for load in ranked if load.node.name in leaving]
    others = [load for load in ranked if load.node.name not in leaving]
    if preference.blocks:
        others = _by_block(others, preference.blocks, count - len(stay), lambda load: _rank(load, now, preference.by))
    return [_choice(load, preference, leaving) for load in (stay + others)[:count]]


def _loads(nodes: Iterable[Node], jobs: Sequence[Job]) -> list[NodeLoad]:
    on: dict[str, list[Job]] = {}
    for job in jobs:
        for name in hostlist.expand(job.nodelist):
            on.setdefault(name, []).append(job)
    return [NodeLoad(node, tuple(on.get(node.name, ()))) for node in nodes]


def _rank(load: NodeLoad, now: datetime, by: NodeOrder) -> tuple[int, float]:
    lost = (load.free_at - now).total_seconds() if by == "end" else load.work(now)
    return (loss_rank(load.node, has_jobs=bool(load.jobs)), lost)


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


def _choice(load: NodeLoad, preference: NodePreference, leaving: AbstractSet[str]) -> NodeChoice:
    block = preference.blocks.get(load.node.name)
    why = _why(load, leaving) + (f", in block {block}" if block else "")
    return NodeChoice(load.node.name, why, None if load.free_at == _NEVER else load.free_at)


def _why(load: NodeLoad, leaving: AbstractSet[str]) -> str:
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
