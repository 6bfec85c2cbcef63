"""A schedule as a band: what is wished for and what was, at places in percent of some days; and where two collide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations

from airflow_provider_soperator.board.capacity_dags import CapacityDag
from airflow_provider_soperator.capacity.allocation import Units, least_gpus, units_text
from airflow_provider_soperator.capacity.calendar import instant
from airflow_provider_soperator.capacity.overrides import Override
from airflow_provider_soperator.capacity.schedule import ScheduleChange
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

#: What a band shows before now, and after.
BEFORE, AFTER = timedelta(days=2), timedelta(days=5)
#: Units of the drawing from the bottom of a band to its top.
HEIGHT = 40.0


#: The GPUs of a target in a part of a band: its number, which decides the colour, the top and the height.
Bar = tuple[int, float, float]


@dataclass(frozen=True, kw_only=True)
class BandPart:
    """A window, or what was in one; places and widths are in percent of the band."""

    name: str
    #: All about it, in words.
    said: str
    x: float
    width: float
    bars: Sequence[Bar]
    is_override: bool = False


@dataclass(frozen=True, kw_only=True)
class Band:
    """A schedule over some days."""

    wished: Sequence[BandPart]
    was: Sequence[BandPart]
    #: Times at which shifts begin, until their handovers: places and widths.
    leads: Sequence[tuple[float, float]]
    #: Midnights in the time zone of the schedule: places and names of days.
    days: Sequence[tuple[float, str]]
    now: float
    #: The next handover, and the one after it.
    change: ScheduleChange | None
    then: ScheduleChange | None
    #: Those that hold, or are to come.
    overrides: Sequence[Override]


def band(dag: CapacityDag, now: datetime) -> Band:
    """Draw the schedule of a DAG around a moment."""
    start, end = now - BEFORE, now + AFTER
    schedule, gpus = dag.schedule, dag.gpus

    def x(moment: datetime) -> float:
        passed = moment.timestamp() - start.timestamp()
        return round(100 * min(1.0, max(0.0, passed / (BEFORE + AFTER).total_seconds())), 2)

    segments = schedule.segments(start, end)
    past = [one for one in dag.reports if one["measured_hours"] and datetime.fromisoformat(one["until"]) > start]
    average = [{target: hours / one["measured_hours"] for target, hours in one["gpu_hours"].items()} for one in past]
    amounts = [least_gpus(one.allocation, gpus) for one in segments]
    most = max(schedule.limit or 0, *(sum(one.values()) for one in [*amounts, *average]), 1)

    def bars(has: Mapping[str, float]) -> list[Bar]:
        found, top = [], HEIGHT
        for number, target in enumerate(dag.schedule.targets):
            height = round(HEIGHT * has.get(target, 0) / most, 2)
            top -= height
            found.append((number, round(top, 2), height))
        return [bar for bar in found if bar[2]]

    def part(
        name: str, since: datetime, until: datetime, said: str, has: Mapping[str, float], *, more: bool
    ) -> BandPart:
        times = " to ".join(f"{moment.astimezone(schedule.zone):%a %H:%M}" for moment in (since, until))
        at = x(since)
        width = round(x(until) - at, 2)
        return BandPart(name=name, said=f"{name}, {times}: {said}", x=at, width=width, bars=bars(has), is_override=more)

    overrides = {one.when for one in schedule.overrides}
    wished = [
        part(one.name, one.since, one.until, units_text(one.allocation), has, more=one.exception in overrides)
        for one, has in zip(segments, amounts, strict=True)
    ]
    was = [
        part(
            one["window"],
            datetime.fromisoformat(one["since"]),
            datetime.fromisoformat(one["until"]),
            ", ".join(f"{target} {gpus:.1f} GPUs" for target, gpus in has.items())
            + f" on average, {one['idle_gpu_hours']:g} GPU-hours idle",
            has,
            more=False,
        )
        for one, has in zip(past, average, strict=True)
    ]
    changes, change = list(schedule.changes(start, end)), schedule.next_change(now)
    return Band(
        wished=wished,
        was=was,
        leads=[(x(one.begins), round(x(one.at) - x(one.begins), 2)) for one in changes if one.begins < one.at],
        days=[(x(day), f"{day.astimezone(schedule.zone):%a %d}") for day in _midnights(dag, start, end)],
        now=x(now),
        change=change,
        then=schedule.next_change(change.at) if change else None,
        overrides=[one for one in schedule.overrides if instant(one.dates.end, schedule.zone) > now],
    )


def _midnights(dag: CapacityDag, start: datetime, end: datetime) -> Iterator[datetime]:
    day = start.astimezone(dag.schedule.zone).replace(hour=0, minute=0, second=0, microsecond=0)
    while (day := (day + timedelta(hours=36)).replace(hour=0)) < end:
        yield day


def conflicts(
    dags: Iterable[CapacityDag], blocks: Mapping[str, CapacityBlock], now: datetime, ahead: timedelta = AFTER
) -> list[str]:
    """What cannot be as schedules wish, within the days of a band or others: of DAGs that are not paused."""
    active, said = [dag for dag in dags if not dag.is_paused], []
    for one, other in combinations(active, 2):
        if one.order and other.order and (shared := _shared(one, other)):
            said.append(
                f"{one.dag_id} and {other.dag_id} both move {shared}{_where_they_differ(one, other, now, ahead)}."
            )
    for dag in active:
        said += _beyond(dag, blocks.get(dag.dag_id), now, ahead)
    return said


def _places(one: CapacityDag, other: CapacityDag) -> list[tuple[str, str]]:
    """The places that hold GPUs which two DAGs both move, by the name that each has for it."""
    theirs = {place: name for name, place in other.order.places.items()} if other.order else {}
    mine = one.order.places if one.order else {}
    return [(name, theirs[place]) for name, place in mine.items() if place in theirs]


def _shared(one: CapacityDag, other: CapacityDag) -> str:
    """What two DAGs both move: places that hold GPUs, or else the block."""
    if one.order is None or other.order is None:
        return ""
    names = [name for name, _ in _places(one, other)]
    return " and ".join(names) or (f"block {one.order.block}" if one.order.block == other.order.block else "")


def _where_they_differ(one: CapacityDag, other: CapacityDag, now: datetime, ahead: timedelta) -> str:
    """The first moment from which on two schedules wish for different sizes of what they share."""
    same = _places(one, other) or [(name, name) for name in one.schedule.targets if name in other.schedule.targets]
    moments = {now} | {change.at for dag in (one, other) for change in dag.schedule.changes(now, now + ahead)}
    for moment in sorted(moments):
        wishes: list[Mapping[str, Units]] = [dag.schedule.at(moment).allocation for dag in (one, other)]
        if any(wishes[0].get(mine) != wishes[1].get(theirs) for mine, theirs in same):
            when = "now" if moment == now else f"from {moment.astimezone(one.schedule.zone):%a %d %b %H:%M} on"
            return f", and wish for different sizes {when}"
    return ""


def _beyond(dag: CapacityDag, block: CapacityBlock | None, now: datetime, ahead: timedelta) -> Iterator[str]:
    """The first window that needs more GPUs than the block has, or will have."""
    if block is None:
        return
    for segment in dag.schedule.segments(now, now + ahead):
        needs, begin = sum(least_gpus(segment.allocation, dag.gpus).values()), max(segment.since, now)
        for since in (begin, max(begin, block.next_change_at or begin)):
            if since < segment.until and needs > block.limit_at(since):
                when = f"{since.astimezone(dag.schedule.zone):%a %d %b %H:%M}"
                yield f"From {when} on {dag.dag_id} wishes for {needs} GPUs, and the block has {block.limit_at(since)}."
                return
