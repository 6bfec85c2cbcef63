"""Statistics of a cluster at one moment: its queue, nodes, GPUs by user, and fair shares."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from airflow_provider_soperator.slurm.cluster_records import Node, Share
from airflow_provider_soperator.slurm.job_records import Job, resource
from airflow_provider_soperator.slurm.node_conditions import WORDS
from airflow_provider_soperator.slurm.notations import duration_in_words
from airflow_provider_soperator.slurm.states import JobBase, JobFlag, NodeFlag
from airflow_provider_soperator.values import storable

#: The states of jobs in the statistics; jobs that have ended are not counted.
PENDING, CONFIGURING, RUNNING, SUSPENDED, COMPLETING = JOB_STATES = (
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
)

#: Reasons by the user's own choice: such waiting times say nothing about the cluster.
_BY_CHOICE = frozenset({"BeginTime", "Dependency", "DependencyNeverSatisfied"})
_WAITS = ("median", "p90", "longest")
_TYPED_GPUS = re.compile(r"(?:^|,)gpu(?::([^:,=()]+))?:(\d+)")


@dataclass(frozen=True)
class JobLoad:
    """Jobs, and the nodes and GPUs that they have or, if pending, ask for. Each array element counts as a job."""

    jobs: int = 0
    nodes: int = 0
    gpus: int = 0

    def __add__(self, other: JobLoad) -> JobLoad:
        return JobLoad(self.jobs + other.jobs, self.nodes + other.nodes, self.gpus + other.gpus)


@dataclass(frozen=True)
class WaitTimes:
    """Seconds that pending jobs have waited so far, without held jobs and others that could not start anyway."""

    jobs: int = 0
    median: float = 0.0
    p90: float = 0.0
    longest: float = 0.0


@dataclass(frozen=True)
class Gpus:
    """GPUs by use; each is counted once, so ``total`` is the sum of the others."""

    total: int = 0
    #: Used by jobs.
    allocated: int = 0
    #: Free for jobs at once.
    idle: int = 0
    #: Free, on nodes that are on and drained.
    drained: int = 0
    booting: int = 0
    #: On nodes that are powered down or about to be; there may be no machine.
    off: int = 0
    #: On nodes that are down or do not respond.
    down: int = 0

    def __add__(self, other: Gpus) -> Gpus:
        return Gpus(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def on(self) -> int:
        return self.allocated + self.idle + self.drained


@dataclass(frozen=True)
class UserLoad:
    """The load of one user: running, and waiting."""

    user: str
    has: JobLoad
    waits_for: JobLoad


@dataclass(frozen=True, kw_only=True)
class SlurmStats:
    """All statistics."""

    at: datetime
    #: By partition and state. A job for several partitions is counted in the first one.
    queue: Mapping[str, Mapping[str, JobLoad]]
    #: Number of pending jobs by reason.
    reasons: Mapping[str, int]
    waits: WaitTimes
    #: Number of nodes by state, in the words of ``NodeStateSensor``; a node can be in several.
    nodes: Mapping[str, int]
    gpus: Gpus
    #: A node is counted in each of its partitions.
    gpus_by_partition: Mapping[str, Gpus]
    gpus_by_type: Mapping[str, Gpus]
    #: Users with the most GPUs first.
    users: Sequence[UserLoad]
    #: Shares of users with the most usage first; None without accounting.
    shares: Sequence[Share] | None

    def to_dict(self) -> dict[str, Any]:
        # JSON has no infinity, the level of users without usage.
        plain: dict[str, Any] = storable(asdict(self) | {"at": self.at.isoformat()})
        return plain


def snapshot(
    jobs: Iterable[Job], nodes: Iterable[Node], shares: Iterable[Share] | None, now: datetime, top: int = 10
) -> SlurmStats:
    """Statistics from the queue, the nodes and the shares, with the ``top`` users."""
    nodes = list(nodes)
    queued = [(_state(job), job, _load(job)) for job in jobs if not job.state.is_finished]
    partitions = {name for node in nodes for name in node.partitions} | {_partition(job) for _, job, _ in queued}
    queue = {partition: dict.fromkeys(JOB_STATES, JobLoad()) for partition in sorted(partitions)}
    reasons: Counter[str] = Counter()
    for state, job, load in queued:
        queue[_partition(job)][state] += load
        if state == PENDING:
            reasons[job.reasons[0] or "None"] += load.jobs
    by_partition: defaultdict[str, Gpus] = defaultdict(Gpus)
    by_type: defaultdict[str, Gpus] = defaultdict(Gpus)
    total = Gpus()
    for node in nodes:
        total += (gpus := _gpus(node, node.gpus, node.gpus_used))
        for partition in node.partitions:
            by_partition[partition] += gpus
        used = _by_type(node.gres_used)
        for kind, count in _by_type(node.gres).items():
            by_type[kind] += _gpus(node, count, used[kind])
    return SlurmStats(
        at=now,
        queue=queue,
        reasons=dict(reasons.most_common()),
        waits=_waits(queued, now),
        nodes={"total": len(nodes), **{word: sum(map(is_so, nodes)) for word, is_so in WORDS.items()}},
        gpus=total,
        gpus_by_partition=dict(by_partition),
        gpus_by_type=dict(by_type),
        users=_users(queued)[:top],
        shares=None if shares is None else _most_used(shares)[:top],
    )


def _state(job: Job) -> str:
    if not job.state.is_active:
        return PENDING
    if JobFlag.COMPLETING in job.state.flags:
        return COMPLETING
    if job.state.is_configuring:
        return CONFIGURING
    return SUSPENDED if job.state.base is JobBase.SUSPENDED else RUNNING


def _partition(job: Job) -> str:
    return job.partition.partition(",")[0]


def _load(job: Job) -> JobLoad:
    jobs = job.count
    return JobLoad(jobs, jobs * int(resource(job.tres, "node") or 0), jobs * job.gpus)


def _waits(queued: Iterable[tuple[str, Job, JobLoad]], now: datetime) -> WaitTimes:
    waited: list[float] = []
    for state, job, load in queued:
        if state == PENDING and job.submitted and not job.is_held and not {*job.reasons} <= _BY_CHOICE:
            waited += [job.waited(now).total_seconds()] * load.jobs
    if not waited:
        return WaitTimes()
    waited.sort()
    # The smallest value that nine of ten do not exceed.
    p90 = waited[math.ceil(len(waited) * 0.9) - 1]
    return WaitTimes(len(waited), statistics.median(waited), p90, waited[-1])


def _gpus(node: Node, total: int, used: int) -> Gpus:
    free = max(0, total - used)
    return Gpus(total=used + free, allocated=used) + Gpus(**{_place(node): free})


def _place(node: Node) -> str:
    """The field of ``Gpus`` for free GPUs of a node."""
    if node.is_off or node.is_going_off:
        return "off"
    if node.is_coming_up:
        return "booting"
    if node.is_usable:
        return "idle"
    return "drained" if node.is_up and node.state.has(NodeFlag.DRAIN) else "down"


def _by_type(gres: str) -> Counter[str]:
    """GPUs by type; those without a type are ``gpu``.

    >>> _by_type("gpu:h100:8(S:0-1),gpu:2,shard:4")
    Counter({'h100': 8, 'gpu': 2})
    """
    found: Counter[str] = Counter()
    for kind, count in _TYPED_GPUS.findall(gres):
        found[kind or "gpu"] += int(count)
    return found


def _users(queued: Iterable[tuple[str, Job, JobLoad]]) -> list[UserLoad]:
    has: defaultdict[str, JobLoad] = defaultdict(JobLoad)
    waits_for: defaultdict[str, JobLoad] = defaultdict(JobLoad)
    for state, job, load in queued:
        (waits_for if state == PENDING else has)[job.user] += load
    found = [UserLoad(user, has[user], waits_for[user]) for user in {*has, *waits_for}]
    return sorted(found, key=lambda one: (-one.has.gpus, -one.waits_for.gpus, -one.has.jobs, one.user))


def _most_used(shares: Iterable[Share]) -> list[Share]:
    users = (share for share in shares if share.user)
    return sorted(users, key=lambda share: (-share.usage, share.fair_share or 0.0, share.user, share.account))


#: A gauge: its name, value and tags.
Gauge = tuple[str, float, dict[str, str]]


def gauges(stats: SlurmStats) -> Iterator[Gauge]:
    """All gauges, also those that are zero, as a gauge keeps its last value."""
    for partition, states in stats.queue.items():
        for state, load in states.items():
            for what, value in asdict(load).items():
                yield f"queue.{what}", value, {"partition": partition, "state": state}
    for name in _WAITS:
        yield f"queue.wait_seconds.{name}", getattr(stats.waits, name), {}
    for state, nodes in stats.nodes.items():
        yield "nodes", nodes, {"state": state}
    for state, gpus in asdict(stats.gpus).items():
        yield "gpus", gpus, {"state": state}
    for partition, found in stats.gpus_by_partition.items():
        for state, gpus in asdict(found).items():
            yield "partition.gpus", gpus, {"partition": partition, "state": state}


def table(stats: SlurmStats) -> str:
    """The statistics as lines for people.

    >>> from datetime import datetime, timezone
    >>> print(table(snapshot([], [], None, datetime(2026, 11, 22, tzinfo=timezone.utc))))
    2026-11-22 00:00:00+00:00
    Queue: empty
    GPUs: none
    Nodes: none
    Fair shares: no accounting
    """
    return "\n".join(
        [
            str(stats.at.replace(microsecond=0)),
            *_queue_lines(stats),
            *_gpu_lines(stats),
            f"Nodes: {_counts(stats.nodes.items())}",
            *_user_lines(stats),
            *_share_lines(stats),
        ]
    )


def _queue_lines(stats: SlurmStats) -> list[str]:
    rows = [
        [partition, state, str(load.jobs), str(load.nodes), str(load.gpus)]
        for partition, states in stats.queue.items()
        for state, load in states.items()
        if load.jobs
    ]
    if not rows:
        return ["Queue: empty"]
    lines = ["Queue", *_aligned(["partition", "state", "jobs", "nodes", "GPUs"], rows)]
    if stats.reasons:
        lines.append(f"  waiting for: {_counts(stats.reasons.items())}")
    if stats.waits.jobs:
        waits = stats.waits
        spans = ", ".join(f"{name} {duration_in_words(getattr(waits, name))}" for name in _WAITS)
        lines.append(f"  wait times: {spans} ({waits.jobs} jobs that could start)")
    return lines


def _gpu_lines(stats: SlurmStats) -> list[str]:
    if not stats.gpus.total:
        return ["GPUs: none"]
    all_of_them = [("all", stats.gpus), *stats.gpus_by_partition.items()]
    # A single type would repeat the total.
    all_of_them += stats.gpus_by_type.items() if len(stats.gpus_by_type) > 1 else []
    rows = [[name, str(one.on), *map(str, asdict(one).values())] for name, one in all_of_them if one.total]
    return ["GPUs", *_aligned(["", "on", *asdict(stats.gpus)], rows)]


def _user_lines(stats: SlurmStats) -> list[str]:
    if not stats.users:
        return []
    rows = [[one.user, _load_text(one.has), _load_text(one.waits_for)] for one in stats.users]
    return ["Users", *_aligned(["user", "has", f"{PENDING.lower()}"], rows)]


def _load_text(load: JobLoad) -> str:
    return f"{load.gpus} GPUs, {load.jobs} jobs" if load.jobs else "-"


def _share_lines(stats: SlurmStats) -> list[str]:
    if stats.shares is None:
        return ["Fair shares: no accounting"]
    rows = [
        [
            *(share.user, share.account, "of parent" if share.shares is None else str(share.shares)),
            *(_part_text(share.normal_usage), _part_text(share.fair_share), _part_text(share.level)),
        ]
        for share in stats.shares
    ]
    return ["Fair shares", *_aligned(["user", "account", "shares", "used", "fair share", "level"], rows)]


def _part_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _counts(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts if count) or "none"


def _aligned(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    numeric = [all(row[place].isdecimal() for row in rows) for place in range(len(head))]
    return [
        ("  " + "  ".join(
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(row, widths, numeric, strict=True)
        )).rstrip()
        for row in (head, *rows)
    ]  # fmt: skip
