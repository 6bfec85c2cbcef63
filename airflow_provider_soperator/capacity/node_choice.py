"""The choice of the nodes to release: those that lose least work, each with a reason that a person can check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, Literal

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.node_conditions import loss_rank
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.states import JobFlag, NodeFlag

#: The end of a job without a time limit. For some partitions slurmctld shows a limit of a year instead.
_NEVER = datetime.max.replace(tzinfo=timezone.utc)
NO_LIMIT = timedelta(days=365)
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)
#: Ranks of nodes that power down, are idle, and are busy.
_GOING, _IDLE, _BUSY = 1, 2, 3


@dataclass(frozen=True)
class NodeLoad:
    """A node and its jobs."""

    node: Node
    jobs: tuple[Job, ...] = ()

    @property
    def free_at(self) -> datetime:
        """The latest end of its jobs."""
        return max((_NEVER if _has_no_limit(job) else job.ends or _NEVER for job in self.jobs), default=_LONG_AGO)

    @property
    def is_busy(self) -> bool:
        """True if a job runs on it that is not ending already."""
        shown = self.node.is_busy and not self.node.state.has(NodeFlag.COMPLETING)
        return shown or any(JobFlag.COMPLETING not in job.state.flags for job in self.jobs)

    @property
    def runs(self) -> str:
        """Its jobs and their end, in words."""
        if not self.jobs:
            return "a job"
        names = ", ".join(f"{job.id} ({job.name})" for job in self.jobs)
        if self.free_at == _NEVER:
            return f"{names} without a time limit"
        return f"{names} until {self.free_at:%d %b %Y %H:%M:%S} UTC at the latest"


def _has_no_limit(job: Job) -> bool:
    limit = job.time_limit
    return limit >= NO_LIMIT if isinstance(limit, timedelta) else limit is NoDuration.UNLIMITED


def work_of(job: Job, now: datetime) -> float:
    """GPU-seconds that a job has used since it started; for a job without GPUs, seconds."""
    ran = (now - job.started).total_seconds() if job.started else 0.0
    return max(0.0, ran) * (job.gpus or 1)


def loads_of(nodes: Iterable[Node], jobs: Sequence[Job]) -> list[NodeLoad]:
    """Nodes, each with its jobs."""
    on: dict[str, list[Job]] = {}
    for job in jobs:
        for name in hostlist.expand(job.nodelist):
            on.setdefault(name, []).append(job)
    return [NodeLoad(node, tuple(on.get(node.name, ()))) for node in nodes]


def choose(
    loads: Iterable[NodeLoad],
    count: int,
    *,
    now: datetime,
    leaves_at: datetime | None = None,
    by: Literal["end", "work"] = "end",
    blocks: Mapping[str, str] = MappingProxyType({}),
    told: AbstractSet[str] = frozenset(),
    reserved: AbstractSet[str] = frozenset(),
    ends_jobs: bool = False,
) -> dict[str, str]:
    """Choose ``count`` of these nodes to release, best first, each with the reason.

    ``leaves_at``: a node that is free by then loses nothing. ``by``: other nodes go by the end of their jobs, or by the
    work that would be lost. ``blocks``: the network block of each node; nodes of one block go together, so that large
    jobs keep whole blocks. ``told``: nodes that were told to go; they stay chosen. ``reserved``: nodes that are kept
    free for it, and come first among equals. ``ends_jobs``: jobs may be ended; those that cannot be requeued come last.
    """
    due = max(now, leaves_at or now)

    def rank(load: NodeLoad) -> tuple[Any, ...]:
        has_jobs, loses = bool(load.jobs), bool(load.jobs) and load.free_at > due
        place = loss_rank(load.node, has_jobs=has_jobs)
        if place == _BUSY or (place == _GOING and load.is_busy):
            place = _IDLE if has_jobs and not loses else _BUSY
        late = (load.free_at - now).total_seconds() if by == "end" else sum(work_of(job, now) for job in load.jobs)
        cannot_requeue = ends_jobs and not all(job.may_requeue for job in load.jobs)
        works, is_kept = has_jobs or load.node.is_up, load.node.name in reserved
        return place, works, cannot_requeue, late if loses else 0.0, not is_kept, load.is_busy

    # A stable sort: equal nodes go in the order of their numbers.
    ranked = sorted(loads, key=rank)
    chosen = [load for load in ranked if load.node.name in told]
    others = [load for load in ranked if load.node.name not in told]
    # Block by block, first the one whose nodes lose least.
    groups: dict[str, list[NodeLoad]] = {}
    for load in others if blocks else ():
        groups.setdefault(blocks.get(load.node.name, load.node.name), []).append(load)
    chosen += [] if blocks else others
    while groups and len(chosen) < count:
        left = count - len(chosen)
        # Of two equal blocks, the smaller one: this leaves more blocks whole.
        best = min(groups, key=lambda name: (rank(groups[name][:left][-1]), len(groups[name])))
        chosen += groups.pop(best)
    return {load.node.name: _why(load, blocks) for load in chosen[: max(0, count)]}


def _why(load: NodeLoad, blocks: Mapping[str, str]) -> str:
    if load.node.is_off:
        why = "off"
    elif load.node.is_going_off:
        why = "already powering down"
    elif load.jobs:
        why = f"runs {load.runs}"
    else:
        why = "idle" if load.node.is_up else f"is {load.node.state}"
    block = blocks.get(load.node.name)
    return f"{why}, in block {block}" if block else why


def nearness(node: Node) -> int:
    """Rank of a node that is to come: the sooner it can be used, the lower."""
    if node.is_usable:
        return 0
    if node.failed_to_resume:
        return 5
    if node.is_coming_up:
        return 1
    # A drained node ranks last: the drain may persist.
    if node.is_kept_off:
        return 4
    # A power-down cannot be revoked, but such a node still has its GPUs, unlike one that is off.
    return 3 if node.is_off else 2
