"""A naive model of a schedule, which walks from minute to minute and looks at the clock on the wall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window

MINUTE = timedelta(minutes=1)
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEK = 7 * 24 * 60

#: Days on which clocks are changed, and the times on the wall that are left out or come twice, by time zone.
CHANGES = {
    "Europe/Amsterdam": (("2026-03-29", "02:00", "03:00"), ("2026-10-25", "02:00", "03:00")),
    "America/New_York": (("2026-03-08", "02:00", "03:00"), ("2026-11-01", "01:00", "02:00")),
    "America/Havana": (("2026-03-08", "00:00", "01:00"), ("2026-11-01", "00:00", "01:00")),
    "Australia/Lord_Howe": (("2026-10-04", "02:00", "02:30"), ("2026-04-05", "01:30", "02:00")),
    "Asia/Kolkata": (("2026-06-07", "02:00", "03:00"),),  # where nothing happens
}

Allocation = Mapping[str, int]
#: From when to when, and what holds then.
Dated = tuple[datetime, datetime, Allocation]


@dataclass(frozen=True)
class Week:
    """What holds in each week, and on some dates instead."""

    #: When something else begins to hold, in minutes since Monday, and what; None: what holds otherwise.
    begins: tuple[tuple[int, Allocation | None], ...]
    otherwise: Allocation
    exceptions: tuple[Dated, ...]
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
            exceptions={f"{one:%Y-%m-%dT%H:%M}/{other:%Y-%m-%dT%H:%M}": said for one, other, said in self.exceptions},
            lead=self.lead,
        )

    def holds(self, wall: datetime) -> Allocation:
        for start, end, allocation in self.exceptions:
            if start <= wall < end:
                return allocation
        minute = (wall.weekday() * 24 + wall.hour) * 60 + wall.minute
        newest = max((one for one in self.begins if one[0] <= minute), default=self.begins[-1], key=lambda one: one[0])
        return self.otherwise if newest[1] is None else newest[1]

    def walk(self, start: datetime, end: datetime) -> list[tuple[datetime, Allocation]]:
        """What holds in each minute. A time that the wall has shown is over, though clocks are set back before it."""
        zone, latest = ZoneInfo(self.zone), datetime.min
        held = []
        for minute in range((end - start) // MINUTE):
            moment = start + minute * MINUTE
            latest = max(latest, moment.astimezone(zone).replace(tzinfo=None))
            held.append((moment, self.holds(latest)))
        return held


def handovers(held: list[tuple[datetime, Allocation]]) -> list[tuple[datetime, Allocation]]:
    """The minutes with which something else begins."""
    return [now for before, now in pairwise(held) if before[1] != now[1]]


def clock(minute: int) -> str:
    return f"{DAYS[minute // 60 // 24]} {minute // 60 % 24:02}:{minute % 60:02}"


allocations = st.sampled_from([{"training": units, "inference": 3 - units} for units in range(4)])


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
    bounds = sorted(draw(st.lists(around, max_size=6, unique=True)))
    dated = [(start, end, draw(allocations)) for start, end in zip(bounds[::2], bounds[1::2], strict=False)]
    ends = [*begins[1:], begins[0] + WEEK]
    lengths = [end - begin for begin, end in zip(begins, ends, strict=True)]
    lengths += [(end - start) // MINUTE for start, end, _ in dated]
    return Week(
        begins=tuple(zip(begins, what, strict=True)),
        otherwise=draw(allocations),
        exceptions=tuple(dated),
        zone=zone,
        change=first.replace(hour=12, minute=0, tzinfo=timezone.utc),
        lead=draw(st.integers(0, min(*lengths, 120))) * MINUTE,
    )
