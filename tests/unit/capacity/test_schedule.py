"""Schedules: what holds when, in exact moments, and as plain values."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import datetime, timedelta

import pytest

from airflow_provider_soperator.capacity.calendar import Dates
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, ScheduleChange, Window
from airflow_provider_soperator.errors import CapacityMistake

NIGHT = {"training": 8, "inference": 0}
DAY = {"training": 4, "inference": 4}
WEEKEND = {"training": 6, "inference": 2}
HOLIDAY = {"training": 0, "inference": 8}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def utc(text: str) -> datetime:
    return moment(f"{text}+00:00")


@pytest.fixture(scope="module")
def nights() -> CapacitySchedule:
    return CapacitySchedule(
        timezone="Europe/Amsterdam",
        windows=[
            Window("mon-thu 20:00 - 08:00", NIGHT, name="night"),
            Window("mon-fri 08:00 - 20:00", DAY, name="day"),
        ],
        otherwise=WEEKEND,
        exceptions={
            "2026-12-24": "night",
            "2026-12-25/2026-12-27": HOLIDAY,
            "2026-12-31T12:00/2027-01-02T08:00": "otherwise",
        },
        gpus_per_unit={"training": 8, "inference": 8},
        limit=64,
        lead="30m",
    )


def weekly(zone: str, *windows: str, **more: object) -> CapacitySchedule:
    """Windows in which there is one unit, and none otherwise."""
    return CapacitySchedule(
        timezone=zone,
        windows=[Window(when, {"training": 1}) for when in windows],
        otherwise={"training": 0},
        **more,  # type: ignore[arg-type]
    )


def told(changes: list[ScheduleChange]) -> list[tuple[str, str]]:
    return [(f"{one.at:%a %m-%d %H:%M}", one.after.name) for one in changes]


def test_a_week(nights: CapacitySchedule) -> None:
    changes = list(nights.changes(utc("2026-11-23T00:00"), utc("2026-11-30T00:00")))
    assert told(changes) == [
        ("Mon 11-23 07:00", "day"),
        ("Mon 11-23 19:00", "night"),
        ("Tue 11-24 07:00", "day"),
        ("Tue 11-24 19:00", "night"),
        ("Wed 11-25 07:00", "day"),
        ("Wed 11-25 19:00", "night"),
        ("Thu 11-26 07:00", "day"),
        ("Thu 11-26 19:00", "night"),
        ("Fri 11-27 07:00", "day"),
        ("Fri 11-27 19:00", "otherwise"),
    ]
    assert all(one.at - one.begins == timedelta(minutes=30) for one in changes)
    assert all(one.before.until == one.at == one.after.since for one in changes)


def test_what_holds_at_a_moment(nights: CapacitySchedule) -> None:
    weekend = nights.at(moment("2026-11-28T15:00+09:00"))
    assert (weekend.name, weekend.allocation) == ("otherwise", WEEKEND)
    assert (weekend.since, weekend.until) == (utc("2026-11-27T19:00"), utc("2026-11-30T07:00"))
    # At the handover itself the new window holds.
    assert nights.at(utc("2026-11-30T07:00")).name == "day"
    assert nights.at(utc("2026-11-30T06:59:59")).name == "otherwise"


def test_exceptions(nights: CapacitySchedule) -> None:
    changes = list(nights.changes(utc("2026-12-23T12:00"), utc("2027-01-04T12:00")))
    assert told(changes) == [
        # The night before the 24th goes on for the whole of it.
        ("Wed 12-23 19:00", "night"),
        ("Thu 12-24 23:00", "2026-12-25/2026-12-27"),
        ("Sun 12-27 23:00", "otherwise"),
        ("Mon 12-28 07:00", "day"),
        ("Mon 12-28 19:00", "night"),
        ("Tue 12-29 07:00", "day"),
        ("Tue 12-29 19:00", "night"),
        ("Wed 12-30 07:00", "day"),
        ("Wed 12-30 19:00", "night"),
        ("Thu 12-31 07:00", "day"),
        ("Thu 12-31 11:00", "otherwise"),
        ("Mon 01-04 07:00", "day"),
    ]
    eve = nights.at(utc("2026-12-24T12:00"))
    assert (eve.name, eve.exception, eve.allocation) == ("night", "2026-12-24", NIGHT)
    assert (eve.since, eve.until) == (utc("2026-12-23T23:00"), utc("2026-12-24T23:00"))
    assert nights.at(utc("2026-12-26T12:00")).allocation == HOLIDAY


@pytest.mark.parametrize(
    ("days", "first", "last"),
    [
        ("02-27/03-01", ["2027-02-27", "2028-02-27"], ["2027-03-01", "2028-03-01"]),
        ("02-27/02-29", ["2027-02-27", "2028-02-27"], ["2027-02-28", "2028-02-29"]),
        ("12-31/02-28", ["2026-12-31", "2027-12-31"], ["2027-02-28", "2028-02-28"]),
        ("12-31/03-01", ["2026-12-31", "2027-12-31"], ["2027-03-01", "2028-03-01"]),
    ],
)
def test_days_of_each_year_end_with_their_last_one_whether_or_not_it_has_a_29_february(
    days: str, first: list[str], last: list[str]
) -> None:
    periods = list(Dates.parse(days).within(int(one[:4]) for one in first))
    assert [f"{one.start:%Y-%m-%d}" for one in periods] == first
    assert [f"{one.end - timedelta(days=1):%Y-%m-%d}" for one in periods] == last


def test_what_a_page_draws(nights: CapacitySchedule) -> None:
    drawn = nights.segments(utc("2026-12-23T20:00"), utc("2026-12-28T06:00"))
    assert [(one.name, one.exception) for one in drawn] == [
        ("night", None),
        ("night", "2026-12-24"),
        ("2026-12-25/2026-12-27", "2026-12-25/2026-12-27"),
        ("otherwise", None),
    ]
    # The first and the last one are told whole.
    assert drawn[0].since == utc("2026-12-23T19:00")
    assert drawn[-1].until == utc("2026-12-28T07:00")


def test_the_next_change_and_the_last(nights: CapacitySchedule) -> None:
    friday, saturday, monday = utc("2026-11-27T19:00"), utc("2026-11-28T12:00"), utc("2026-11-30T07:00")
    following, newest = nights.next_change(saturday), nights.last_change(saturday)
    assert following is not None
    assert newest is not None
    assert (following.at, following.before.allocation, following.after.allocation) == (monday, WEEKEND, DAY)
    assert newest.at == friday
    # One that happens at this very moment is over.
    assert nights.last_change(monday) == following
    assert nights.next_change(friday) == following


def test_a_change_is_due_when_its_shift_is_to_begin(nights: CapacitySchedule) -> None:
    before, begun = nights.due(utc("2026-11-30T06:29:59")), nights.due(utc("2026-11-30T06:30"))
    assert before is not None
    assert begun is not None
    assert (before.at, begun.at) == (utc("2026-11-27T19:00"), utc("2026-11-30T07:00"))


def test_windows_with_the_same_allocation_are_no_handover() -> None:
    schedule = weekly("UTC", "mon 08:00 - tue 08:00", "tue 08:00 - wed 20:00")
    changes = schedule.changes(utc("2026-11-23T00:00"), utc("2026-11-30T00:00"))
    assert told(list(changes)) == [("Mon 11-23 08:00", "mon 08:00 - tue 08:00"), ("Wed 11-25 20:00", "otherwise")]


def test_a_schedule_in_which_only_exceptions_change_anything() -> None:
    always = Window("mon 00:00 - mon 00:00", DAY)
    fixed = CapacitySchedule(timezone="UTC", windows=[always])
    assert fixed.next_change(utc("2026-11-21T00:00")) is None
    assert fixed.last_change(utc("2026-11-21T00:00")) is None
    assert fixed.due(utc("2026-11-21T00:00")) is None
    once = CapacitySchedule(timezone="UTC", windows=[always], exceptions={"2030-05-01/2030-07-31": HOLIDAY})
    begin, end = utc("2030-05-01T00:00"), utc("2030-08-01T00:00")
    for when, expected in [("2026-11-21", begin), ("2030-05-01", end), ("2030-06-15", end)]:
        change = once.next_change(utc(f"{when}T00:00"))
        assert change is not None
        assert change.at == expected
    assert once.next_change(end) is None
    for when, expected in [("2030-06-15", begin), ("2040-01-01", end)]:
        change = once.last_change(utc(f"{when}T00:00"))
        assert change is not None
        assert change.at == expected
    assert once.last_change(utc("2030-04-30T23:59")) is None


@pytest.mark.parametrize(
    ("zone", "window", "day", "begins", "ends"),
    [
        # 02:00 to 03:00 was jumped over at 01:00 UTC.
        ("Europe/Amsterdam", "sun 02:30 - 06:00", "2026-03-29", "2026-03-29T01:00", "2026-03-29T04:00"),
        ("Europe/Amsterdam", "sat 20:00 - sun 02:30", "2026-03-29", "2026-03-28T19:00", "2026-03-29T01:00"),
        ("Europe/Amsterdam", "sat 20:00 - sun 08:00", "2026-03-29", "2026-03-28T19:00", "2026-03-29T06:00"),
        # 02:00 to 03:00 was there at 00:00 UTC, and again an hour later.
        ("Europe/Amsterdam", "sun 02:30 - 06:00", "2026-10-25", "2026-10-25T00:30", "2026-10-25T05:00"),
        ("Europe/Amsterdam", "sun 01:00 - 02:30", "2026-10-25", "2026-10-24T23:00", "2026-10-25T00:30"),
        ("Europe/Amsterdam", "sat 20:00 - sun 08:00", "2026-10-25", "2026-10-24T18:00", "2026-10-25T07:00"),
        ("America/New_York", "sun 02:30 - 06:00", "2026-03-08", "2026-03-08T07:00", "2026-03-08T10:00"),
        ("America/New_York", "sun 01:30 - 06:00", "2026-11-01", "2026-11-01T05:30", "2026-11-01T11:00"),
        # Midnight was jumped over.
        ("America/Havana", "sun 00:00 - 06:00", "2026-03-08", "2026-03-08T05:00", "2026-03-08T10:00"),
        # Half an hour: 02:00 to 02:30 was jumped over at 15:30 UTC; 01:30 to 02:00 was there twice.
        ("Australia/Lord_Howe", "sun 02:15 - 06:00", "2026-10-04", "2026-10-03T15:30", "2026-10-03T19:00"),
        ("Australia/Lord_Howe", "sun 01:45 - 06:00", "2026-04-05", "2026-04-04T14:45", "2026-04-04T19:30"),
    ],
)
def test_when_clocks_are_changed(zone: str, window: str, day: str, begins: str, ends: str) -> None:
    around = utc(f"{day}T00:00")
    start, end = weekly(zone, window).changes(around - timedelta(days=2), around + timedelta(days=2))
    assert (start.at, end.at) == (utc(begins), utc(ends))


def test_a_window_that_clocks_jump_over_is_left_out_once() -> None:
    schedule = weekly("Europe/Amsterdam", "sun 02:10 - 02:50")
    change = schedule.next_change(utc("2026-03-25T00:00"))
    assert change is not None
    assert change.at == utc("2026-04-05T00:10")
    assert change.before.since == utc("2026-03-22T01:50")
    assert schedule.at(utc("2026-03-30T12:00")) == change.before


def test_a_whole_day_on_which_clocks_are_changed() -> None:
    always = Window("daily 00:00 - 24:00", DAY)
    schedule = CapacitySchedule(timezone="Europe/Amsterdam", windows=[always], exceptions={"2026-10-25": HOLIDAY})
    day = schedule.at(utc("2026-10-25T12:00"))
    assert day.until - day.since == timedelta(hours=25)


def test_plain_values(nights: CapacitySchedule) -> None:
    text = json.dumps(nights.describe())
    again = CapacitySchedule.read(json.loads(text))
    assert again == nights
    assert hash(again) == hash(nights)
    assert json.dumps(again.describe()) == text
    assert pickle.loads(pickle.dumps(nights)) == copy.deepcopy(nights) == nights


def test_nobody_changes_a_schedule_by_what_it_was_made_from() -> None:
    allocation = dict(DAY)
    schedule = CapacitySchedule(timezone="UTC", windows=[Window("daily 00:00 - 24:00", allocation)])
    allocation["training"] = 100
    assert schedule.windows[0].allocation == DAY


@pytest.mark.parametrize(
    ("lead", "text"),
    [("30m", "30m"), ("90m", "1h30m"), ("1h", "1h"), (timedelta(seconds=90), "1m30s"), ("0s", "0m"), ("1d", "1d")],
)
def test_leads(lead: str | timedelta, text: str) -> None:
    schedule = weekly("UTC", "mon 08:00 - thu 08:00", lead=lead)
    assert schedule.lead == text
    change = schedule.next_change(utc("2026-11-21T00:00"))
    assert change is not None
    assert change.at - change.begins == schedule.lead_time


def test_a_moment_without_a_zone_is_refused(nights: CapacitySchedule) -> None:
    with pytest.raises(CapacityMistake, match="has no time zone: add one"):
        nights.at(datetime(2026, 11, 21))
