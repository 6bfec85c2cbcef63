"""A naive model of a schedule, which walks from minute to minute and looks at the clock on the wall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cache
from itertools import accumulate, pairwise
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from airflow_provider_soperator.capacity.allocation import Units
from airflow_provider_soperator.capacity.overrides import Override
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.errors import CapacityMistake

MINUTE = timedelta(minutes=1)
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEK = 7 * 24 * 60
#: Minutes are counted from this Monday on.
MONDAY = datetime(2026, 1, 5)

#: Days on which clocks are changed, and the times on the wall that are left out or come twice, by time zone.
CHANGES = {
    "Europe/Amsterdam": (("2026-03-29", "02:00", "03:00"), ("2026-10-25", "02:00", "03:00")),
    "America/New_York": (("2026-03-08", "02:00", "03:00"), ("2026-11-01", "01:00", "02:00")),
    "America/Havana": (("2026-03-08", "00:00", "01:00"), ("2026-11-01", "00:00", "01:00")),
    "Australia/Lord_Howe": (("2026-10-04", "02:00", "02:30"), ("2026-04-05", "01:30", "02:00")),
    "Asia/Kolkata": (("2026-06-07", "02:00", "03:00"),),  # where nothing happens
}

Allocation = Mapping[str, Units]
#: From when to when, and what holds then.
Dated = tuple[datetime, datetime, Allocation]


@dataclass(frozen=True)
class Week:
    """What holds in each week, and on some dates instead."""

    #: When something else begins to hold, in minutes since Monday, and what; None: what holds otherwise.
    begins: tuple[tuple[int, Allocation | None], ...]
    otherwise: Allocation
    #: Days of each year, as a month and a day.
    holidays: tuple[tuple[int, int, Allocation], ...]
    exceptions: tuple[Dated, ...]
    overrides: tuple[Dated, ...]
    zone: str
    #: Noon, UTC, of a day on which clocks are changed.
    change: datetime
    lead: timedelta

    def schedule(self) -> CapacitySchedule:
        ends = [begin for begin, _ in self.begins[1:]] + [self.begins[0][0]]
        return CapacitySchedule(
            timezone=self.zone,
            windows=[
                Window(f"{clock(begin)} - {clock(end)}", allocation)
                for (begin, allocation), end in zip(self.begins, ends, strict=True)
                if allocation is not None
            ],
            otherwise=self.otherwise,
            holidays={f"{month:02}-{day:02}": said for month, day, said in self.holidays},
            exceptions={period(one, other): said for one, other, said in self.exceptions},
            overrides=[Override(period(one, other), said) for one, other, said in self.overrides],
            lead=self.lead,
        )

    def holds_on_wall(self, first: int, last: int) -> list[Allocation]:
        """What holds in each minute that the wall shows, from one to another, both in minutes since ``MONDAY``."""
        ends = [begin for begin, _ in self.begins[1:]] + [self.begins[0][0] + WEEK]
        week: list[Allocation] = []
        for (begin, allocation), end in zip(self.begins, ends, strict=True):
            week += [self.otherwise if allocation is None else allocation] * (end - begin)
        begun = first - self.begins[0][0]
        wall = [week[minute % WEEK] for minute in range(begun, begun + last - first + 1)]
        for minute in range(len(wall)):
            day = MONDAY + (first + minute) * MINUTE
            for month, number, allocation in self.holidays:
                if (day.month, day.day) == (month, number):
                    wall[minute] = allocation
        for start, end, allocation in (*self.exceptions, *self.overrides):
            since, until = (max((moment - MONDAY) // MINUTE, first) - first for moment in (start, end))
            wall[since:until] = [allocation] * len(wall[since:until])
        return wall

    def walk(self, start: datetime, end: datetime) -> list[Allocation]:
        """What holds in each minute. A time that the wall has shown is over, though clocks are set back before it."""
        first, last = ((moment.replace(tzinfo=None) - MONDAY) // MINUTE for moment in (start, end))
        hours = [minute for hour in range(first // 60, last // 60 + 1) for minute in walls(self.zone, hour)]
        begun = first // 60 * 60
        latest = list(accumulate(hours[first - begun : last - begun], max))
        wall = self.holds_on_wall(latest[0], latest[-1])
        return [wall[minute - latest[0]] for minute in latest]


@cache
def walls(zone: str, hour: int) -> list[int]:
    """What the wall shows in each minute of an hour, which is counted in UTC, as the wall's minutes are in its time."""
    moments = [MONDAY.replace(tzinfo=timezone.utc) + (hour * 60 + minute) * MINUTE for minute in range(60)]
    return [(one.astimezone(ZoneInfo(zone)).replace(tzinfo=None) - MONDAY) // MINUTE for one in moments]


def handovers(start: datetime, held: list[Allocation]) -> list[tuple[datetime, Allocation]]:
    """The minutes with which something else begins, where the first one is that of the start."""
    return [
        (start + minute * MINUTE, now)
        for minute, (before, now) in enumerate(pairwise(held), 1)
        if before is not now and before != now
    ]


def period(start: datetime, end: datetime) -> str:
    return f"{start:%Y-%m-%dT%H:%M}/{end:%Y-%m-%dT%H:%M}"


def clock(minute: int) -> str:
    return f"{DAYS[minute // 60 // 24]} {minute // 60 % 24:02}:{minute % 60:02}"


allocations: st.SearchStrategy[Allocation] = st.sampled_from(
    [
        *({"training": units, "inference": 3 - units} for units in range(3)),
        {"training": {"min": 0, "max": 2}, "inference": 1},
    ]
)


@st.composite
def weeks(draw: st.DrawFn) -> Week:
    zone = draw(st.sampled_from(sorted(CHANGES)))
    first, last = (
        datetime.fromisoformat(f"{day}T{time}")
        for day, *times in [draw(st.sampled_from(CHANGES[zone]))]
        for time in times
    )
    # The time around the change is worth more than others.
    near = st.integers(-20, (last - first) // MINUTE + 20)
    monday = first.replace(hour=0, minute=0) - timedelta(days=first.weekday())
    minutes = st.one_of(
        st.integers(0, WEEK // 15 - 1).map(lambda quarter: quarter * 15),
        near.map(lambda minute: ((first - monday) // MINUTE + minute) % WEEK),
    )
    begins = sorted(draw(st.lists(minutes, min_size=2, max_size=8, unique=True)))
    what = [draw(allocations), *(draw(st.one_of(st.none(), allocations)) for _ in begins[1:])]
    around = st.one_of(st.integers(-4 * 24 * 60, 4 * 24 * 60), near).map(lambda minute: first + minute * MINUTE)
    exceptions, overrides = (
        tuple((start, end, draw(allocations)) for start, end in zip(bounds[::2], bounds[1::2], strict=False))
        for bounds in [sorted(draw(st.lists(around, max_size=most, unique=True))) for most in (6, 4)]
    )
    days = draw(st.lists(st.integers(-3, 3), max_size=2, unique=True).map(sorted))
    dates = [first + timedelta(days=day) for day in days]
    week = Week(
        begins=tuple(zip(begins, what, strict=True)),
        otherwise=draw(allocations),
        holidays=tuple((date.month, date.day, draw(allocations)) for date in dates),
        exceptions=exceptions,
        overrides=overrides,
        zone=zone,
        change=first.replace(hour=12, minute=0, tzinfo=timezone.utc),
        lead=draw(st.integers(0, 120)) * MINUTE,
    )
    try:
        week.schedule()
    except CapacityMistake:
        # Somewhere too little is left for the lead.
        return replace(week, lead=timedelta(0))
    return week
