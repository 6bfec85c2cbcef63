"""A month under several ways to divide a block between Slurm and inference, with the provider's own decision code.

A fixed split, a schedule, ranges with demand, and a division that knows two hours ahead what will be
needed, whose machines move no quicker.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial

from airflow_provider_soperator.capacity.demand import Demand, decide
from airflow_provider_soperator.capacity.loads import Need, QueueLoad, ServiceLoad
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job as SlurmJob
from airflow_provider_soperator.slurm.states import JobState
from benchmarks.table import Row
from benchmarks.trace.load import DAY, Job, Month, month
from benchmarks.trace.world import GRACE, NODE, World

#: Nodes of the block, and minutes that a machine needs to go and to come.
NODES, GONE, BOOT = 32, 3, 7
#: Seconds of a request.
SECONDS = 4.0
#: Requests per second of a usual day's peak: half of the block.
PEAK = 110.0
#: GPUs of the block that jobs need on average.
BUSY = 0.62
START = datetime(2026, 9, 7, tzinfo=timezone.utc)
SERVICE = ServiceLoad(target="inference", arrivals="rate", service_time=SECONDS, max_requests=32)
GPUS = {"training": NODE, "inference": NODE}
PENDING, RUNNING = JobState.parse("PENDING"), JobState.parse("RUNNING")


@dataclass
class Outcome:
    """The figures of one month under one way."""

    usage: float
    training: float
    wait: float
    below: float
    moves: float
    requeued: int
    lost: float
    limbo: float


#: The units of inference in a minute, and the minutes ahead of which nodes are chosen.
Way = Callable[[World, int], tuple[int, int]]


def play(loaded: Month, needs: list[int], way: Way, world: World) -> Outcome:
    """Play a month."""
    jobs = [_fresh(job) for job in loaded.jobs]
    coming = iter(jobs)
    following = next(coming, None)
    for now, needed in enumerate(needs):
        while following and following.submitted <= now:
            world.submit(following, now)
            following = next(coming, None)
        wanted, ahead = way(world, now)
        world.tick(now, wanted, needed, ahead)
    end, found = len(needs), world.figures
    for job in world.pending():
        job.waited += end - job.since
    gpus = world.size * NODE * end
    return Outcome(
        usage=(found.used + found.served) / gpus,
        training=found.used / 60,
        wait=statistics.fmean(job.waited for job in jobs),
        below=found.below / end,
        moves=found.moves / (end / DAY),
        requeued=found.requeued,
        lost=found.lost / 60,
        limbo=found.limbo / 60,
    )


def _fresh(job: Job) -> Job:
    return Job(job.id, job.submitted, job.gpus, job.minutes, job.limit, job.may_requeue, since=job.submitted)


def fixed(units: int) -> Way:
    return lambda world, now: (units, 0)


def by_schedule(level: Callable[[int], int], lead: int, transfer: int) -> Way:
    """Nodes are chosen a lead before a handover, and leave a transfer before it."""

    def way(world: World, now: int) -> tuple[int, int]:
        then = level(now + lead)
        return (then, lead - transfer) if then > level(now) else (level(now), 0)

    return way


def clairvoyant(needs: list[int], transfer: int, sight: int = 120) -> Way:
    """It knows what will be needed: nodes are chosen in time, leave in time, and come back if it is worth it."""

    def way(world: World, now: int) -> tuple[int, int]:
        soon = max(needs[now : now + 2 * transfer + 1])
        for at in range(now + 1, min(now + sight, len(needs))):
            if needs[at] > soon:
                return max(needs[at : at + 2 * transfer]), max(0, at - transfer - GRACE - 1 - now)
        return soon, 0

    return way


class ByDemand:
    """The provider's decision, each minute."""

    def __init__(self, demand: Demand, requests: list[float], lowest: int, highest: int) -> None:
        self.demand, self.requests = demand, requests
        self.wished: Mapping[str, Mapping[str, int]] = {
            "training": {"min": NODES - highest, "max": NODES - lowest},
            "inference": {"min": lowest, "max": highest},
        }
        self.state: dict[str, object] = {}
        self.records: dict[tuple[int, int], SlurmJob] = {}

    def __call__(self, world: World, now: int) -> tuple[int, int]:
        at = START + timedelta(minutes=now)
        needs: dict[str, Need] = {}
        for load in self.demand.loads:
            if isinstance(load, ServiceLoad):
                needs[load.target] = load.need(self.requests[now], SECONDS)
            elif isinstance(load, QueueLoad):
                needs[load.target] = load.need(self._queue(world), NODE, NODES, at)
        decision = decide(self.demand, needs, self.wished, world.has, GPUS, NODES * NODE, self.state, at)
        return decision.units["inference"], 0

    def _queue(self, world: World) -> Iterable[SlurmJob]:
        if busy := sum(bool(node.jobs) for node in world.nodes):
            yield SlurmJob(id=JobId(1), state=RUNNING, tres=f"gres/gpu={world.running()}", nodelist=f"n[1-{busy}]")
        for job in world.pending():
            key = (job.id, job.since)
            if key not in self.records:
                self.records[key] = SlurmJob(
                    id=JobId(job.id + 2),
                    state=PENDING,
                    reason="Resources",
                    submitted=START + timedelta(minutes=job.since),
                    time_limit=timedelta(minutes=job.limit),
                    tres=f"gres/gpu={job.gpus}",
                )
            yield self.records[key]


def quantile(values: Iterable[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def ways(loaded: Month, *, boot: int = BOOT, headroom: int = 2, wrong: float = 0.0) -> dict[str, Outcome]:
    """The outcome of each way. ``wrong``: by how much the schedule and the metric are too low."""
    needs = [(SERVICE.need(rate, SECONDS).units or 0) for rate in loaded.requests]
    seen = [rate * (1 - wrong) for rate in loaded.requests]
    most = quantile([(SERVICE.need(rate, SECONDS).units or 0) for rate in seen], 0.9995)
    transfer = GONE + boot
    world = partial(World, NODES, boot=boot, gone=GONE)
    hours: dict[tuple[bool, int], list[int]] = {}
    for minute, rate in enumerate(seen):
        quarter = (minute // DAY % 7 < 5, minute % DAY // 240)
        hours.setdefault(quarter, []).append(SERVICE.need(rate, SECONDS).units or 0)
    windows = {key: quantile(values, 0.9995) for key, values in hours.items()}

    def level(minute: int) -> int:
        return windows[minute // DAY % 7 < 5, minute % DAY // 240]

    service = replace(SERVICE, headroom=headroom)
    demand = Demand([service, QueueLoad(target="training", min_work=timedelta(minutes=4 * transfer))])
    lowest, highest = 1, min(NODES - 4, most + headroom)
    foreseen = [max(needs[now : now + GRACE + 2]) for now in range(len(needs))]
    free = Month([_requeued(job) for job in loaded.jobs], loaded.requests)
    return {
        "fixed split": play(loaded, needs, fixed(most), world(most)),
        "schedule": play(loaded, needs, by_schedule(level, 120, transfer), world(level(0))),
        "demand": play(loaded, needs, ByDemand(demand, seen, lowest, highest), world(level(0))),
        "clairvoyant": play(loaded, needs, clairvoyant(needs, transfer), world(level(0))),
        "bound": play(
            free, needs, lambda _, now: (foreseen[now], 0), World(NODES, needs[0], boot=0, gone=0, checkpoint=1)
        ),
    }


def _requeued(job: Job) -> Job:
    return Job(job.id, job.submitted, job.gpus, job.minutes, job.limit, True, since=job.submitted)


#: What is varied: the load of jobs, minutes of a boot, and by how much forecast and metric are too low.
_USUAL = ("", BUSY, BOOT, 0.0)
_VARIED = [
    ("less load, ", BUSY * 0.8, BOOT, 0.0),
    ("more load, ", BUSY * 1.1, BOOT, 0.0),
    ("slow boots, ", BUSY, 20, 0.0),
    ("a tenth too low, ", BUSY, BOOT, 0.1),
]


def run(seed: int = 1, days: int = 28, *, full: bool = False) -> list[Row]:
    """The month; with ``full`` also how its figures move with load, boots and a wrong forecast."""
    rows: list[Row] = []
    for what, busy, boot, wrong in [_USUAL, *(_VARIED if full else [])]:
        loaded = month(seed, gpus=NODES * NODE, busy=busy, peak=PEAK, days=days)
        found = ways(loaded, boot=boot, wrong=wrong)
        rows += [_row(f"{what}{name}", one, found, len(loaded.jobs)) for name, one in found.items()]
    return rows


def _row(what: str, one: Outcome, found: Mapping[str, Outcome], jobs: int) -> Row:
    figure = (
        f"usage {one.usage:.1%}, wait {one.wait:.0f} min, below target {one.below:.2%} of the time, "
        f"{one.moves:.0f} moves a day, {one.requeued} jobs requeued, {one.lost:.0f} GPU-hours lost, "
        f"{one.limbo:.0f} in limbo"
    )
    others = ", ".join(
        f"{name}: usage {one.usage / other.usage - 1:+.0%}, wait x{one.wait / max(other.wait, 0.1):.2f}"
        for name, other in found.items()
        if name in ("fixed split", "clairvoyant") and other is not one
    )
    met = None
    if what == "demand":
        met = one.usage >= 1.25 * found["fixed split"].usage and one.wait <= found["fixed split"].wait / 1.5
        met = met and one.below <= 0.001
    return Row("trace", what, figure, f"{others} ({jobs} jobs)", met)
