"""A month under several ways to divide a block between Slurm and inference, with the provider's own decision code.

A fixed split, a schedule, ranges with demand, and a division that knows two hours ahead what will be
needed, whose machines move no quicker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from airflow_provider_soperator.capacity.advice import FITS, advise, quantile
from airflow_provider_soperator.capacity.allocation import Units
from airflow_provider_soperator.capacity.demand import Demand
from airflow_provider_soperator.capacity.loads import QueueLoad, ServiceLoad
from airflow_provider_soperator.capacity.replay import (
    ByDemand,
    Replay,
    ReplayOutcome,
    SharedBlock,
    Way,
    by_schedule,
    play,
)
from benchmarks.table import Row
from benchmarks.trace.load import Load, load

#: Requests per second of a usual day's peak: half of the block.
PEAK = 110.0
#: GPUs of the block that jobs need on average.
BUSY = 0.62


def block(transfer: int = 10) -> SharedBlock:
    """A block of 32 nodes whose machines need so many minutes from one side to the other."""
    service = ServiceLoad(
        target="inference",
        arrivals="sum(rate(vllm:request_success_total[5m]))",
        service_time=4.0,
        max_requests=32,
        headroom=2,
    )
    queue = QueueLoad(target="training", min_work=timedelta(minutes=4 * transfer))
    return SharedBlock(nodes=32, gpus=8, transfer=transfer, demand=Demand([service, queue]))


BLOCK = block()


def fixed(units: int) -> Way:
    return lambda replay, now: (units, 0)


def clairvoyant(needs: list[int], transfer: int, sight: int = 120) -> Way:
    """It knows what will be needed: nodes are chosen in time, leave in time, and come back if it is worth it."""

    def way(replay: Replay, now: int) -> tuple[int, int]:
        soon = max(needs[now : now + 2 * transfer + 1])
        for at in range(now + 1, min(now + sight, len(needs))):
            if needs[at] > soon:
                return max(needs[at : at + 2 * transfer]), max(0, at - transfer - BLOCK.grace - 1 - now)
        return soon, 0

    return way


def ways(given: Load, block: SharedBlock = BLOCK, *, wrong: float = 0.0) -> dict[str, ReplayOutcome]:
    """The outcome of each way. ``wrong``: by how much the schedule and the metric are too low."""
    month = given.month(block.service)
    needs, seen = month.needs, given.month(block.service, wrong).needs
    most = min(block.highest, quantile(seen, FITS))
    clock = [month.at(minute) for minute in range(len(needs))]
    quarters = [(at.weekday() < 5, at.hour // 4) for at in clock]
    hours: dict[tuple[bool, int], list[int]] = {}
    for quarter, units in zip(quarters, seen, strict=True):
        hours.setdefault(quarter, []).append(units)
    windows = {key: min(block.highest, quantile(values, FITS)) for key, values in hours.items()}
    levels = [windows[quarter] for quarter in quarters]
    highest = block.most_served(month.jobs, most, block.headroom)
    wished: Mapping[str, Units] = {
        "training": {"min": block.nodes - highest, "max": block.nodes - 1},
        "inference": {"min": 1, "max": highest},
    }
    foreseen = [max(needs[now : now + block.grace + 2]) for now in range(len(needs))]
    free = replace(month, jobs=[replace(job, may_requeue=True) for job in month.jobs])
    bound = Replay(replace(block, transfer=0), min(block.nodes, needs[0]), checkpoint=1)

    def played(way: Way, serving: int) -> ReplayOutcome:
        return play(month, way, Replay(block, serving))

    return {
        "fixed split": played(fixed(most), most),
        "schedule": played(by_schedule(levels, 120, block.transfer), levels[0]),
        "demand": played(ByDemand(block, seen, lambda now: wished), levels[0]),
        "clairvoyant": played(clairvoyant(needs, block.transfer), levels[0]),
        "bound": play(free, lambda _, now: (foreseen[now], 0), bound),
    }


#: What is varied: the load of jobs, minutes of a transfer, and by how much forecast and metric are too low.
_USUAL = ("", BUSY, 10, 0.0)
_VARIED = [
    ("less load, ", BUSY * 0.8, 10, 0.0),
    ("more load, ", BUSY * 1.1, 10, 0.0),
    ("slow boots, ", BUSY, 23, 0.0),
    ("a tenth too low, ", BUSY, 10, 0.1),
]


def run(seed: int = 1, days: int = 28, *, full: bool = False) -> list[Row]:
    """The month; with ``full`` also under other loads, slow boots and a wrong forecast, and what is proposed for it."""
    rows: list[Row] = []
    for what, busy, transfer, wrong in [_USUAL, *(_VARIED if full else [])]:
        given = load(seed, gpus=BLOCK.nodes * BLOCK.gpus, busy=busy, peak=PEAK, days=days)
        found = ways(given, block(transfer), wrong=wrong)
        rows += [_row(f"{what}{name}", one, found, len(given.jobs)) for name, one in found.items()]
    return [*rows, *(proposed(seed, days) if full else [])]


def proposed(seed: int, days: int) -> list[Row]:
    """A row for each proposal, with what it comes to in the last quarter of the month."""
    month = load(seed, gpus=BLOCK.nodes * BLOCK.gpus, busy=BUSY, peak=PEAK, days=days).month(BLOCK.service)
    return [
        Row("trace", f"proposed: {one.proposal.name}", _figure(one.made_of), f"the week after: {_figure(one.after)}")
        for one in advise(month, BLOCK)
    ]


def _row(what: str, one: ReplayOutcome, found: Mapping[str, ReplayOutcome], jobs: int) -> Row:
    others = ", ".join(
        f"{name}: usage {one.usage / other.usage - 1:+.0%}, wait x{one.wait / max(other.wait, 0.1):.2f}"
        for name, other in found.items()
        if name in ("fixed split", "clairvoyant") and other is not one
    )
    met = None
    if what == "demand":
        met = one.usage >= 1.25 * found["fixed split"].usage and one.wait <= found["fixed split"].wait / 1.5
        met = met and one.below <= 0.001
    return Row("trace", what, _figure(one), f"{others} ({jobs} jobs)", met)


def _figure(one: ReplayOutcome) -> str:
    return (
        f"usage {one.usage:.1%}, wait {one.wait:.0f} min, below target {one.below:.2%} of the time, "
        f"{one.moves:.0f} moves a day, {one.requeued} jobs requeued, {one.lost:.0f} GPU-hours lost, "
        f"{one.limbo:.0f} in limbo"
    )
