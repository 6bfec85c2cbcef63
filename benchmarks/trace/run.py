"""A month under several ways to divide a block between Slurm and inference, with the provider's own decision code.

A fixed split, a schedule, ranges with demand, and a division that knows two hours ahead what will be
needed, whose machines move no quicker.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.capacity.allocation import Units, bounds_of
from airflow_provider_soperator.capacity.demand import Demand, decide
from airflow_provider_soperator.capacity.loads import Need, QueueLoad, ServiceLoad
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job as SlurmJob
from airflow_provider_soperator.slurm.states import JobState
from benchmarks.table import Row
from benchmarks.trace.load import DAY, Job, Month, month
from benchmarks.trace.world import GRACE, NODE, World

#: Requests per second of a usual day's peak: half of the block.
PEAK = 110.0
#: GPUs of the block that jobs need on average.
BUSY = 0.62
PENDING, RUNNING = JobState.parse("PENDING"), JobState.parse("RUNNING")


@dataclass(frozen=True)
class Block:
    """Nodes with their GPUs, the minutes that a machine needs to go and to come, and the service that has the rest."""

    nodes: int = 32
    gpus: int = NODE
    gone: int = 3
    boot: int = 7
    #: Seconds of a request, and requests that a node serves at a time.
    seconds: float = 4.0
    max_requests: int = 32

    @property
    def transfer(self) -> int:
        return self.gone + self.boot

    @property
    def highest(self) -> int:
        """Most nodes of inference: an eighth of the block is left to Slurm."""
        return self.nodes - math.ceil(self.nodes / 8)

    def most_served(self, jobs: Iterable[Job], most: int, headroom: int) -> int:
        """Most nodes of inference in a range: those of its highest need, and some to spare.

        The largest job that fits beside that need fits beside what is to spare, too: else it waits until a night.
        """
        sizes = {math.ceil(job.gpus / self.gpus) for job in jobs}
        largest = max((size for size in sizes if size <= self.nodes - most), default=0)
        return min(self.highest, most + headroom, max(most, self.nodes - largest))

    def service(self, headroom: int = 0) -> ServiceLoad:
        return ServiceLoad(
            target="inference",
            arrivals="sum(rate(vllm:request_success_total[5m]))",
            service_time=self.seconds,
            max_requests=self.max_requests,
            headroom=headroom,
        )

    def demand(self, headroom: int = 2) -> Demand:
        queue = QueueLoad(target="training", min_work=timedelta(minutes=4 * self.transfer))
        return Demand([self.service(headroom), queue])

    def needs(self, requests: Iterable[float]) -> list[int]:
        service = self.service()
        return [service.need(rate, self.seconds).units or 0 for rate in requests]

    def world(self, serving: int) -> World:
        return World(self.nodes, serving, boot=self.boot, gone=self.gone, gpus=self.gpus)


BLOCK = Block()
#: A moment to count from: the decision needs only what has passed.
_EPOCH = datetime(2026, 9, 7, tzinfo=timezone.utc)


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
    jobs = [replace(job) for job in loaded.jobs]
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
    gpus = world.size * world.gpus * end
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


def fixed(units: int) -> Way:
    return lambda world, now: (units, 0)


def by_schedule(levels: Sequence[int], lead: int, transfer: int) -> Way:
    """Nodes are chosen a lead before a handover, and leave a transfer before it."""

    def way(world: World, now: int) -> tuple[int, int]:
        then = levels[min(now + lead, len(levels) - 1)]
        return (then, lead - transfer) if then > levels[now] else (levels[now], 0)

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
    """The provider's decision, each minute, within what is wished for; ``needs`` are of inference, by its metric."""

    def __init__(
        self, block: Block, demand: Demand, needs: Sequence[int], wished: Callable[[int], Mapping[str, Units]]
    ) -> None:
        self.block, self.demand, self.needs, self.wished = block, demand, needs, wished
        self.gpus = {"training": block.gpus, "inference": block.gpus}
        self.state: dict[str, Any] = {}

    def __call__(self, world: World, now: int) -> tuple[int, int]:
        at, wished = _EPOCH + timedelta(minutes=now), self.wished(now)
        needs: dict[str, Need] = {}
        for load in self.demand.loads:
            if isinstance(load, ServiceLoad):
                needs[load.target] = Need(self.needs[now] + load.headroom, "")
            elif isinstance(load, QueueLoad):
                most = bounds_of(wished[load.target])[1]
                needs[load.target] = load.need(self._queue(world, load, now), self.block.gpus, most, at)
        limit = self.block.nodes * self.block.gpus
        return decide(self.demand, needs, wished, world.has, self.gpus, limit, self.state, at).units["inference"], 0

    def _queue(self, world: World, load: QueueLoad, now: int) -> Iterable[SlurmJob]:
        """The jobs that count; those that count alike are elements of one array, which reads as quickly as one job."""
        if busy := sum(bool(node.jobs) for node in world.nodes):
            yield SlurmJob(id=JobId(1), state=RUNNING, tres=f"gres/gpu={world.running()}", nodelist=f"n[1-{busy}]")
        soon, late = (int(some.total_seconds()) // 60 for some in (load.min_wait, load.max_wait))
        alike: dict[tuple[int, int], list[int]] = {}
        for job in world.pending():
            waited = now - job.since
            if waited < soon:
                continue
            kind = (job.gpus, late if waited >= late else soon)
            if kind in alike:
                seen = alike[kind]
                seen[0] += 1
                seen[1] += job.limit
            else:
                alike[kind] = [1, job.limit]
        for number, ((gpus, waited), (count, minutes)) in enumerate(alike.items(), 2):
            # Of whole minutes, so that their sum is exact.
            limit, longer = divmod(minutes, count)
            for elements, each in ((longer, limit + 1), (count - longer, limit)):
                if elements:
                    yield SlurmJob(
                        id=JobId(number, elements=f"1-{elements}"),
                        state=PENDING,
                        reason="Resources",
                        submitted=_EPOCH + timedelta(minutes=now - waited),
                        time_limit=timedelta(minutes=each),
                        tres=f"gres/gpu={gpus}",
                    )


def quantile(values: Iterable[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def ways(loaded: Month, block: Block = BLOCK, *, headroom: int = 2, wrong: float = 0.0) -> dict[str, Outcome]:
    """The outcome of each way. ``wrong``: by how much the schedule and the metric are too low."""
    needs = block.needs(loaded.requests)
    seen = block.needs(rate * (1 - wrong) for rate in loaded.requests) if wrong else needs
    most = min(block.highest, quantile(seen, 0.9995))
    clock = [loaded.at(minute) for minute in range(len(needs))]
    quarters = [(at.weekday() < 5, at.hour // 4) for at in clock]
    hours: dict[tuple[bool, int], list[int]] = {}
    for quarter, units in zip(quarters, seen, strict=True):
        hours.setdefault(quarter, []).append(units)
    windows = {key: min(block.highest, quantile(values, 0.9995)) for key, values in hours.items()}
    levels = [windows[quarter] for quarter in quarters]
    highest = block.most_served(loaded.jobs, most, headroom)
    wished: Mapping[str, Units] = {
        "training": {"min": block.nodes - highest, "max": block.nodes - 1},
        "inference": {"min": 1, "max": highest},
    }
    foreseen = [max(needs[now : now + GRACE + 2]) for now in range(len(needs))]
    free = replace(loaded, jobs=[replace(job, may_requeue=True) for job in loaded.jobs])
    bound = World(block.nodes, min(block.nodes, needs[0]), boot=0, gone=0, gpus=block.gpus, checkpoint=1)
    demand = ByDemand(block, block.demand(headroom), seen, lambda now: wished)

    def played(way: Way, serving: int) -> Outcome:
        return play(loaded, needs, way, block.world(serving))

    return {
        "fixed split": played(fixed(most), most),
        "schedule": played(by_schedule(levels, 120, block.transfer), levels[0]),
        "demand": played(demand, levels[0]),
        "clairvoyant": played(clairvoyant(needs, block.transfer), levels[0]),
        "bound": play(free, needs, lambda _, now: (foreseen[now], 0), bound),
    }


#: What is varied: the load of jobs, minutes of a boot, and by how much forecast and metric are too low.
_USUAL = ("", BUSY, BLOCK.boot, 0.0)
_VARIED = [
    ("less load, ", BUSY * 0.8, BLOCK.boot, 0.0),
    ("more load, ", BUSY * 1.1, BLOCK.boot, 0.0),
    ("slow boots, ", BUSY, 20, 0.0),
    ("a tenth too low, ", BUSY, BLOCK.boot, 0.1),
]


def run(seed: int = 1, days: int = 28, *, full: bool = False) -> list[Row]:
    """The month; with ``full`` also how its figures move with load, boots and a wrong forecast."""
    rows: list[Row] = []
    for what, busy, boot, wrong in [_USUAL, *(_VARIED if full else [])]:
        loaded = month(seed, gpus=BLOCK.nodes * BLOCK.gpus, busy=busy, peak=PEAK, days=days)
        rows += compared(loaded, replace(BLOCK, boot=boot), what, wrong)
    return rows


def compared(loaded: Month, block: Block, what: str = "", wrong: float = 0.0) -> list[Row]:
    """A row for each way."""
    found = ways(loaded, block, wrong=wrong)
    return [_row(f"{what}{name}", one, found, len(loaded.jobs)) for name, one in found.items()]


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
