"""When nodes are reserved for a handover: as late as leaves enough of them idle in time, by how long jobs last.

A reserved node stands idle once its job has ended, unless a job waits that ends in time by its limit. A node that is
not reserved takes the next job, and may leave late. A node is reserved once that is expected to cost less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean

from airflow_provider_soperator.capacity.node_choice import NO_LIMIT, NodeLoad
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobRecord
from airflow_provider_soperator.slurm.states import NodeBase
from airflow_provider_soperator.slurm.submission_keys import strip_key

#: What a second costs in which the receiver waits for a node, in seconds in which a node stands idle before: a lead is
#: asked for by who wants to be on time.
_LATE = 4.0
#: Steps into which the time that is left is divided.
_STEPS = 60
#: Durations that stand for all of similar jobs; how many jobs are enough to tell of similar ones; how many are kept.
_SAMPLES, _ENOUGH, _KEPT = 7, 5, 200
#: Waiting jobs that stand for all; and how the reasons begin for which jobs wait that start once they are given a node.
_MOST_WAITING = 20
_WAITS_FOR_NODES = ("Resources", "Priority", "ReqNodeNotAvail", "Nodes", "None")


def limit_of(job: JobRecord) -> float | None:
    """The time limit of a job in seconds; None without one."""
    limit = job.time_limit
    return limit.total_seconds() if isinstance(limit, timedelta) and limit < NO_LIMIT else None


@dataclass
class JobHistory:
    """How long jobs have lasted: those of the same user and name tell most, then those of the same partition."""

    _seen: set[Hashable] = field(default_factory=set)
    #: Limits and durations in seconds, by what jobs have in common.
    _ended: dict[Hashable, deque[tuple[float | None, float]]] = field(default_factory=dict)

    def see(self, jobs: Iterable[Job | AccountingJob]) -> None:
        """Note the jobs that have ended."""
        for job in jobs:
            end = job.ended if isinstance(job, AccountingJob) else job.ends
            if not (job.state.is_finished and job.started and end and end > job.started):
                continue
            if (job.id, job.started) not in self._seen:
                self._seen.add((job.id, job.started))
                for kind in _kinds(job):
                    said = (limit_of(job), (end - job.started).total_seconds())
                    self._ended.setdefault(kind, deque(maxlen=_KEPT)).append(said)

    def durations(self, job: JobRecord, ran: float = 0.0) -> tuple[float, ...]:
        """Seconds that a job may last which has run so long, each as likely; empty if no such job is known.

        A job with a limit is expected to use as much of it as others have used of theirs.
        """
        limit = limit_of(job)
        kinds = [self._ended[kind] for kind in _kinds(job) if kind in self._ended]
        similar = next((found for found in kinds if len(found) >= _ENOUGH), kinds[-1] if kinds else ())
        lasted = [
            min(seconds / theirs, 1.0) * limit if limit and theirs else min(seconds, limit or seconds)
            for theirs, seconds in similar
        ]
        if longer := sorted(seconds for seconds in lasted if seconds > ran):
            return tuple(longer[len(longer) * (2 * number + 1) // (2 * _SAMPLES)] for number in range(_SAMPLES))
        if limit:
            return (max(limit, ran),)
        # It has outlasted all others: as long again is as good a guess as any.
        return (2 * ran,) if lasted else ()


def _kinds(job: JobRecord) -> tuple[Hashable, ...]:
    return ((job.user, strip_key(job.name)), job.partition, None)


@dataclass(frozen=True)
class BusyNode:
    """Seconds until a node falls idle, each as likely; and if there is room for another job until then."""

    ends: Sequence[float]
    has_room: bool = False


@dataclass(frozen=True)
class WaitingJob:
    """A job that waits for nodes: its limit, and the seconds that it may last, each as likely."""

    limit: float | None
    lasts: Sequence[float]


def to_reserve(nodes: Mapping[str, BusyNode], count: int, left: float, waiting: Sequence[WaitingJob]) -> frozenset[str]:
    """The nodes to reserve now, so that ``count`` of them are idle in ``left`` seconds; none if it is too early.

    They are more than ``count`` if any that falls idle now is better than one that is expected to: the first to do so
    are kept. A node with room for other jobs is not reserved in addition, as this would leave the room empty.
    """
    kept, given = _costs(left, waiting)
    if not count or kept[-1] > given[-1]:
        return frozenset()

    def cost(end: float) -> float:
        step = round((left - end) / left * _STEPS) if left > 0 else 0
        return _LATE * (end - left) if end > left else min(kept[step], given[step])

    costs = {name: fmean(map(cost, node.ends)) for name, node in nodes.items()}
    ranked = sorted(nodes, key=costs.__getitem__)
    best, others = ranked[:count], ranked[count:]
    is_first_kept = kept[-1] < costs[best[-1]]
    return frozenset([*best, *(name for name in others if is_first_kept and not nodes[name].has_room)])


def _costs(left: float, waiting: Sequence[WaitingJob]) -> tuple[list[float], list[float]]:
    """What it costs that a node falls idle so many steps before it is to leave, if it is kept, and if it is given away.

    Kept, it takes only jobs that end in time by their limits; given away, it takes any. As it ends, the same is asked
    again.
    """
    jobs = [(one.limit, lasts, max(1, round(lasts / left * _STEPS))) for one in waiting for lasts in one.lasts if left]
    kept, given = [0.0], [0.0]
    for step in range(1, _STEPS + 1 if left > 0 else 1):
        seconds = left * step / _STEPS
        fitting, all_jobs = [], []
        for limit, lasts, steps in jobs:
            earlier = step - steps
            then = min(kept[earlier], given[earlier]) if earlier >= 0 else _LATE * max(0.0, lasts - seconds)
            all_jobs.append(then)
            if limit is not None and limit <= seconds:
                fitting.append(then)
        kept.append(fmean(fitting) if fitting else seconds)
        given.append(fmean(all_jobs) if all_jobs else seconds)
    return kept, given


def expected_to_go(
    loads: Sequence[NodeLoad], count: int, at: datetime, waiting: Sequence[Job], history: JobHistory, now: datetime
) -> tuple[frozenset[str], timedelta] | None:
    """``to_reserve`` for these nodes, by how long jobs have lasted; None if that is not known of some of them.

    Beside the nodes it is told how long the jobs last that wait for them.
    """
    nodes = {load.node.name: _busy_node(load, history, now) for load in loads}
    jobs = [WaitingJob(limit_of(job), history.durations(job)) for job in waiting[:_MOST_WAITING]]
    if not all(node.ends for node in nodes.values()) or not all(job.lasts for job in jobs):
        return None
    left = max(0.0, (at - now).total_seconds())
    lasts = sorted(seconds for job in jobs for seconds in job.lasts)
    return to_reserve(nodes, count, left, jobs), timedelta(seconds=round(lasts[len(lasts) // 2]))


def waiting_jobs(jobs: Iterable[Job], loads: Sequence[NodeLoad]) -> list[Job]:
    """The jobs that wait for nodes of the partitions of these, next ones first."""
    partitions = {partition for load in loads for partition in load.node.partitions}
    pending = [job for job in jobs if job.state.is_pending and not (job.is_held or job.reservation)]
    # Of a job that was submitted just now there is no reason yet.
    waiting = [job for job in pending if not job.reason or job.reason.startswith(_WAITS_FOR_NODES)]
    there = [job for job in waiting if not partitions or {*job.partition.split(",")} & partitions]
    return sorted(there, key=lambda job: -(job.priority or 0))


def _busy_node(load: NodeLoad, history: JobHistory, now: datetime) -> BusyNode:
    """A node that falls idle with the last of its jobs."""
    has_room = load.node.state.base is not NodeBase.ALLOCATED and load.node.gpus_used < load.node.gpus
    if not load.is_busy:
        return BusyNode((0.0,), has_room)
    ran = [(job, (now - job.started).total_seconds() if job.started else 0.0) for job in load.jobs]
    ends = [[max(0.0, lasts - so_far) for lasts in history.durations(job, so_far)] for job, so_far in ran]
    most = max(map(len, ends), default=0) if all(ends) else 0
    return BusyNode([max(one[number * len(one) // most] for one in ends) for number in range(most)], has_room)
