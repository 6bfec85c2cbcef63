"""Schedules proposed from a month, with and without demand: what each would have changed, and the best as code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from datetime import timedelta
from itertools import accumulate, combinations, pairwise
from typing import Any

from airflow_provider_soperator.capacity.allocation import Units, bounds_of
from airflow_provider_soperator.capacity.demand import Demand
from airflow_provider_soperator.capacity.loads import ServiceLoad
from airflow_provider_soperator.capacity.month import Month
from airflow_provider_soperator.capacity.replay import ByDemand, Replay, ReplayOutcome, SharedBlock, by_schedule, play
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window

#: Share of the time that the service may be below its target, by which a proposal is chosen.
MOST_BELOW = 0.001
#: Fewer days have no two weekends to make windows of, and no days after them.
LEAST_DAYS = 14
#: Share of minutes that fit into a number of units.
FITS = 0.9995
#: Hours of the shortest window: a lead may not be longer.
_SHORTEST = 2
_DAYS = {True: "mon-fri", False: "sat,sun"}
RULE = (
    f"the service at most {MOST_BELOW:.1%} of the time below its target, then the shortest wait; if none keeps that, "
    "the least time below"
)
SPLIT = "fixed split"
#: Characters of a line of code.
_WIDTH = 100


@dataclass(frozen=True)
class Proposal:
    """A schedule, with demand or without."""

    name: str
    schedule: CapacitySchedule
    demand: Demand | None = None


@dataclass(frozen=True)
class JudgedProposal:
    """A proposal, and what it comes to in the time that it was made of, and in the time after it."""

    proposal: Proposal
    made_of: ReplayOutcome
    after: ReplayOutcome


def advise(month: Month, block: SharedBlock, *others: Proposal) -> list[JudgedProposal]:
    """All proposals, and others to hold them against, the best first."""
    end = len(month.needs)
    parts = [month.part(0, end * 3 // 4), month.part(end * 3 // 4, end)]
    judged = [
        JudgedProposal(one, *(outcome(one, part, block) for part in parts))
        for one in [*others, *proposals(parts[0], block)]
    ]
    return sorted(judged, key=lambda one: (one.made_of.below * (one.made_of.below > MOST_BELOW), one.made_of.wait))


def proposals(month: Month, block: SharedBlock) -> list[Proposal]:
    """What fits this time: a fixed split, handovers at the best hours, and ranges within which demand decides."""
    hours: dict[tuple[bool, int], list[int]] = {}
    for minute, units in enumerate(month.needs):
        at = month.at(minute)
        hours.setdefault((at.weekday() < 5, at.hour), []).append(units)
    most = quantile(month.needs, FITS)
    always = [("daily 00:00 - 24:00", month.needs)]
    names = (block.queue.target, block.service.target)

    def numbers(times: Sequence[tuple[str, list[int]]], lead: str = "0m") -> CapacitySchedule:
        levels = [(when, max(block.least, min(block.highest, quantile(some, FITS)))) for when, some in times]
        return schedule([(when, block.nodes - level, level) for when, level in levels], lead)

    def ranges(times: Sequence[tuple[str, list[int]]], share: float, headroom: int) -> CapacitySchedule:
        highest = block.most_served(month.jobs, most, headroom)
        lowest = [(when, max(1, block.least, min(highest, quantile(some, share)))) for when, some in times]
        return schedule(
            [
                (when, {"min": block.nodes - highest, "max": block.nodes - low}, {"min": low, "max": highest})
                for when, low in lowest
            ]
        )

    def schedule(windows: Sequence[tuple[str, Units, Units]], lead: str = "0m") -> CapacitySchedule:
        return CapacitySchedule(
            timezone=str(month.start.tzinfo),
            windows=[Window(when, dict(zip(names, units, strict=True))) for when, *units in windows],
            gpus_per_unit=dict.fromkeys(names, block.gpus),
            limit=block.nodes * block.gpus,
            lead=lead,
        )

    found = [Proposal(SPLIT, numbers(always))]
    for count in (2, 3, 4):
        times = _times(hours, count)
        found += [Proposal(f"{count} windows a day, lead {lead}", numbers(times, lead)) for lead in ("1h", "2h")]
    # Only a load of requests has headroom.
    has_headroom = isinstance(block.service, ServiceLoad)
    for headroom in range(4) if has_headroom else (0,):
        found.append(Proposal(f"demand, headroom {headroom}", ranges(always, 0.0, headroom), spared(block, headroom)))
    for headroom in (1, 2) if has_headroom else (0,):
        floors = ranges(_times(hours, 3), 0.5, headroom)
        found.append(Proposal(f"demand above a median, headroom {headroom}", floors, spared(block, headroom)))
    return found


def spared(block: SharedBlock, headroom: int) -> Demand:
    """The demand of a block, with so many units of the service to spare."""
    loads = [replace(load, headroom=headroom) if isinstance(load, ServiceLoad) else load for load in block.demand.loads]
    return replace(block.demand, loads=loads)


def quantile(values: Iterable[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _times(hours: dict[tuple[bool, int], list[int]], count: int) -> list[tuple[str, list[int]]]:
    """The windows of weekdays and of weekends, up to so many a day, and the needs of the minutes in each.

    Of all hours at which they could begin those for which the fewest unit-hours are set aside.
    """
    found = []
    for weekday, days in _DAYS.items():
        levels = [quantile(hours[weekday, hour], FITS) for hour in range(24)]
        cuts = min(
            (
                (0, *between, 24)
                for number in range(count)
                for between in combinations(range(1, 24), number)
                if all(last - first >= _SHORTEST for first, last in pairwise((0, *between, 24)))
            ),
            key=lambda cuts: sum((last - first) * max(levels[first:last]) for first, last in pairwise(cuts)),
        )
        found += [
            (
                f"{days} {first:02}:00 - {last:02}:00",
                [one for hour in range(first, last) for one in hours[weekday, hour]],
            )
            for first, last in pairwise(cuts)
        ]
    return found


def outcome(proposal: Proposal, month: Month, block: SharedBlock) -> ReplayOutcome:
    """What a proposal comes to."""
    wished, served = _wished(proposal.schedule, month), block.service.target
    bounds = [bounds_of(one[served]) for one in wished]
    low, high = bounds[0]
    first = max(block.least, low, min(high, month.needs[0]))
    lead = int(proposal.schedule.lead_time.total_seconds()) // 60
    ahead, replay = min(lead, block.transfer), Replay(block, first)
    if proposal.demand:
        its = replace(block, demand=proposal.demand)
        return play(month, ByDemand(its, month.needs, lambda now: wished[min(now + ahead, len(wished) - 1)]), replay)
    # In a range a target keeps what it has.
    levels = list(accumulate(bounds, lambda level, one: max(one[0], min(one[1], level)), initial=first))[1:]
    return play(month, by_schedule(levels, lead, ahead), replay)


def _wished(schedule: CapacitySchedule, month: Month) -> list[Mapping[str, Units]]:
    """What is wished for in each minute."""
    start, end = month.at(0), month.at(len(month.needs))
    found: list[Mapping[str, Units]] = []
    for segment in schedule.segments(start, end):
        found += [segment.allocation] * int((min(segment.until, end) - max(segment.since, start)).total_seconds() / 60)
    return found


def code(proposal: Proposal, transfer: int) -> str:
    """The values of a proposal as code, to be pasted into the file of a DAG."""
    schedule, demand = proposal.schedule, proposal.demand
    lines = ["from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window", ""]
    lines.append(f"schedule = {source_of(schedule)}")
    if demand:
        loads = ", ".join(sorted({type(load).__name__ for load in demand.loads}))
        lines.insert(0, f"from airflow_provider_soperator.capacity.loads import {loads}")
        lines.insert(0, "from airflow_provider_soperator.capacity.demand import Demand")
        lines.append(f"demand = {source_of(demand)}")
    elif schedule.lead_time:
        lines.append(f'# In shift_args: "transfer": timedelta(minutes={transfer})')
    if any("timedelta(" in line for line in lines):
        lines[:0] = ["from datetime import timedelta", ""]
    return "\n".join(lines)


def source_of(value: Any, column: int = 0) -> str:
    """A value as code, without parameters that have their default, over several lines where one is too long.

    >>> print(source_of(Window("daily 00:00 - 24:00", {"training": 2})))
    Window(when="daily 00:00 - 24:00", allocation={"training": 2})
    """
    further = column + 4
    if is_dataclass(value) and not isinstance(value, type):
        begin, end = f"{type(value).__name__}(", ")"
        said = {one.name: getattr(value, one.name) for one in fields(value) if not _is_default(value, one)}
        parts = [f"{name}={source_of(one, further)}" for name, one in said.items()]
    elif isinstance(value, Mapping):
        begin, end = "{", "}"
        parts = [f"{json.dumps(name)}: {source_of(one, further)}" for name, one in value.items()]
    elif isinstance(value, (list, tuple)):
        begin, end, parts = "[", "]", [source_of(one, further) for one in value]
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
        return f"timedelta(seconds={seconds})" if seconds % 60 else f"timedelta(minutes={seconds / 60:.0f})"
    else:
        return json.dumps(value) if isinstance(value, str) else repr(value)
    line = f"{begin}{', '.join(parts)}{end}"
    if column + len(line) <= _WIDTH and "\n" not in line:
        return line
    pad = "\n" + " " * column
    return f"{begin}{''.join(f'{pad}    {part},' for part in parts)}{pad}{end}"


def _is_default(value: Any, one: Field[Any]) -> bool:
    said = getattr(value, one.name)
    if isinstance(value, Window) and said == value.when:
        return one.name == "name"
    return bool(said == (one.default if one.default_factory is MISSING else one.default_factory()))
