"""What is wrong with a schedule is said when it is made, in the words that it is written in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.capacity.overrides import Override
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.errors import CapacityMistake

NIGHT = Window("mon-fri 20:00 - 08:00", {"training": 8, "inference": 0}, name="night")
DAY = Window("mon-fri 08:00 - 20:00", {"training": 4, "inference": 4}, name="day")
OTHERWISE = {"training": 4, "inference": 4}


def refused(**fields: Any) -> str:
    """What is said to a schedule that is right but for these fields."""
    right: dict[str, Any] = {"timezone": "Europe/Amsterdam", "windows": [NIGHT, DAY], "otherwise": OTHERWISE}
    CapacitySchedule(**right)
    with pytest.raises(CapacityMistake) as said:
        CapacitySchedule(**{**right, **fields})
    return str(said.value)


def window(when: str, name: str = "") -> Window:
    return Window(when, {"training": 1, "inference": 1}, name)


@pytest.mark.parametrize(
    ("zone", "said"),
    [
        ("Europe/Amsterdm", "unknown time zone 'Europe/Amsterdm': did you mean 'Europe/Amsterdam'?"),
        ("CEST/CET", "unknown time zone 'CEST/CET': "),
        ("Europe", "unknown time zone 'Europe': "),
        ("", "unknown time zone '': use a name of the IANA database, such as \"Europe/Amsterdam\""),
        (2, "unknown time zone 2: "),
    ],
)
def test_time_zones(zone: str, said: str) -> None:
    assert refused(timezone=zone).startswith(said)


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        (
            [NIGHT, window("mon-fri 07:00 - 20:00", "day")],
            "'night' and 'day' overlap on Tuesdays to Fridays from 07:00 to 08:00: ",
        ),
        ([NIGHT, window("sat 06:00 - 10:00", "early")], "'night' and 'early' overlap on Saturdays from 06:00 to 08:00"),
        (
            [window("sun 20:00 - mon 09:00", "late"), window("mon 08:00 - 12:00", "early")],
            "'late' and 'early' overlap on Mondays from 08:00 to 09:00",
        ),
        (
            [window("fri 18:00 - mon 08:00", "weekend"), window("sat,sun 10:00 - 12:00", "noon")],
            "'weekend' and 'noon' overlap on Saturdays from 10:00 to 12:00",
        ),
        (
            [window("fri 18:00 - mon 08:00", "weekend"), window("sat 20:00 - sun 08:00", "night")],
            "'weekend' and 'night' overlap from Saturdays 20:00 to Sundays 08:00",
        ),
        (
            [window("mon 08:00 - mon 08:00"), window("wed 08:00 - 09:00", "w")],
            "'mon 08:00 - mon 08:00' and 'w' overlap",
        ),
        ([NIGHT, NIGHT], "two windows have the name 'night': give each its own name"),
        ([window("mon 08:00 - 09:00", "otherwise")], "the window name 'otherwise' is reserved"),
        ([], "a schedule needs at least one window"),
    ],
)
def test_windows_that_do_not_go_together(windows: list[Window], said: str) -> None:
    assert refused(windows=windows).startswith(said)


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ([NIGHT, DAY], "no window covers the time from Saturdays 08:00 to Mondays 08:00: add one, or set otherwise="),
        (
            [window("mon,wed,fri 00:00 - 24:00"), window("sat 00:00 - mon 00:00")],
            "no window covers the time on Tuesdays and Thursdays from 00:00 to 24:00: ",
        ),
        ([window("tue 10:00 - sun 23:30")], "no window covers the time from Sundays 23:30 to Tuesdays 10:00: "),
        ([window("daily 00:00 - 23:00")], "no window covers the time on Mondays to Sundays from 23:00 to 24:00: "),
    ],
)
def test_gaps(windows: list[Window], said: str) -> None:
    assert refused(windows=windows, otherwise=None).startswith(said)


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("weekdays 08:00 - 20:00", "unknown day 'weekdays' in 'weekdays 08:00 - 20:00': days are mon, tue,"),
        ("mon 8 - 20", "'mon 8 - 20' is not a part of a week: write "),
        ("mon-fri 08:00", "'mon-fri 08:00' is not a part of a week: write "),
        ("mon 08:00 - someday 10:00", "unknown day 'someday' in "),
        ("mon 08:60 - 10:00", "08:60 in 'mon 08:60 - 10:00' is not a time of day"),
        ("mon 08:00 - 24:30", "24:30 in 'mon 08:00 - 24:30' is not a time of day"),
        ("mon 24:00 - tue 08:00", "'mon 24:00 - tue 08:00' begins at 24:00"),
        ("mon-wed 08:00 - fri 08:00", "'mon-wed 08:00 - fri 08:00' begins on several days but ends on one"),
        ("", "'' is not a part of a week"),
        (None, "None is not a part of a week"),
    ],
)
def test_windows_that_cannot_be_read(when: str, said: str) -> None:
    with pytest.raises(CapacityMistake) as refusal:
        window(when)
    assert str(refusal.value).startswith(said)


@pytest.mark.parametrize(
    ("allocation", "said"),
    [
        ({"training": -1}, "'day': units of 'training' must be a whole number >= 0, got -1"),
        ({"training": 1.5}, "'day': units of 'training' must be a whole number >= 0, got 1.5"),
        ({"training": "4"}, "'day': units of 'training' must be a whole number >= 0, got '4'"),
        ({"training": True}, "'day': units of 'training' must be a whole number >= 0, got True"),
        ({}, "'day': expected units by target, got {}"),
        (4, "'day': expected units by target, got 4"),
    ],
)
def test_allocations_that_are_none(allocation: Any, said: str) -> None:
    with pytest.raises(CapacityMistake) as refusal:
        Window("mon 08:00 - 20:00", allocation, name="day")
    assert str(refusal.value).startswith(said)


def test_targets_that_are_not_named_everywhere() -> None:
    remedy = ": name all targets everywhere, with 0 units where they have none"
    other = Window("sat 08:00 - 20:00", {"training": 8}, name="saturday")
    said = "'night' names the target 'inference', but 'saturday' does not"
    assert refused(windows=[NIGHT, other]) == said + remedy
    said = "otherwise names the target 'batch', but 'night' does not"
    assert refused(otherwise={**OTHERWISE, "batch": 1}) == said + remedy
    said = "the exception '2026-12-24' names the target 'serving', but 'night' does not"
    assert refused(exceptions={"2026-12-24": {**OTHERWISE, "serving": 1}}) == said + remedy
    assert refused(gpus_per_unit={"training": 8, "inferenc": 8}).startswith("gpus_per_unit names the target 'inferenc'")


@pytest.mark.parametrize(
    ("exceptions", "said"),
    [
        (
            {"2026-12-24": "nigth"},
            "the exception '2026-12-24' names an unknown window 'nigth': did you",
        ),
        (
            {"2026-12-24": "xmas"},
            "the exception '2026-12-24' names an unknown window 'xmas': the windows are",
        ),
        ({"24.12.2026": "night"}, "the exception '24.12.2026' is not a date or period: write "),
        ({"2026-02-30": "night"}, "the exception '2026-02-30' has a date that does not exist ("),
        (
            {"2026-12-24T25:00/2026-12-26T08:00": "day"},
            "the exception '2026-12-24T25:00/2026-12-26T08:00' has a date",
        ),
        (
            {"2026-12-24/2026-12-26T08:00": "night"},
            "the exception '2026-12-24/2026-12-26T08:00' is not a date or period: write ",
        ),
        ({"2026-12-24T08:00": "night"}, "the exception '2026-12-24T08:00' ends before it begins"),
        ({"2026-12-24T08:00+01:00/2026-12-25T08:00+01:00": "night"}, "the exception '2026-12-24T08:00+01:00/2026-"),
        ({"2026-12-26/2026-12-24": "night"}, "the exception '2026-12-26/2026-12-24' ends before it begins"),
        (
            {"2026-12-24/2026-12-26": "night", "2026-12-26": "day"},
            "the exceptions '2026-12-24/2026-12-26' and '2026-12-26' overlap from 2026-12-26 00:00 to 2026-12-27 00:00",
        ),
        ({"12-31/01-02": "night", "01-02": "day"}, "the exceptions '12-31/01-02' and '01-02' overlap from "),
        ({"2026-12-24": {}}, "the exception '2026-12-24': expected units by target, got {}"),
    ],
)
def test_exceptions(exceptions: dict[str, Any], said: str) -> None:
    assert refused(exceptions=exceptions).startswith(said)


def test_an_exception_as_otherwise_where_there_is_none() -> None:
    always = window("daily 00:00 - 24:00", "always")
    with pytest.raises(CapacityMistake, match="names an unknown window 'otherwise': the windows are 'always'"):
        CapacitySchedule(timezone="UTC", windows=[always], exceptions={"2026-12-24": "otherwise"})


def test_more_than_the_block_has() -> None:
    gpus = {"training": 8, "inference": 4}
    said = (
        "'night' needs 64 GPUs (training 8 x 8 + inference 0 x 4), but the block has 60: give fewer units to a target"
    )
    assert refused(gpus_per_unit=gpus, limit=60) == said
    exceptions = {"2026-12-24": {"training": 8, "inference": 1}}
    full = {"gpus_per_unit": gpus, "limit": 64}
    assert refused(**full, exceptions=exceptions).startswith("the exception '2026-12-24' needs 68 GPUs")
    assert refused(**full, otherwise={"training": 4, "inference": 9}).startswith("otherwise needs 68 GPUs")
    CapacitySchedule(timezone="UTC", windows=[NIGHT, DAY], otherwise=OTHERWISE, **full)


def test_a_limit_for_units_of_unknown_size() -> None:
    assert refused(limit=64) == (
        "the GPUs of one unit of inference and training are unknown: give gpus_per_unit= for each target"
    )


@pytest.mark.parametrize(
    ("lead", "said"),
    [
        (
            "12h1m",
            "the lead of 12h1m is longer than 'night', which lasts 12h: shorten the lead, or lengthen the window",
        ),
        (timedelta(days=3), "the lead of 3d is longer than 'night', which lasts 12h"),
        ("half an hour", "'half an hour' is not a duration: write "),
        ("", "'' is not a duration"),
        (30, "30 is not a duration"),
        (timedelta(minutes=-1), "a duration must be a whole number of seconds >= 0, got -1 day, 23:59:00"),
        (timedelta(seconds=1.5), "a duration must be a whole number of seconds >= 0, got 0:00:01.500000"),
    ],
)
def test_leads(lead: Any, said: str) -> None:
    assert refused(lead=lead).startswith(said)


def test_a_lead_longer_than_what_lies_between_windows() -> None:
    lunch = [window("daily 00:00 - 12:00", "morning"), window("daily 13:00 - 24:00", "afternoon")]
    said = "the lead of 2h is longer than otherwise on Mondays from 12:00 to 13:00, which lasts 1h"
    assert refused(windows=lunch, lead="2h").startswith(said)
    short = {"2026-12-24T10:00/2026-12-24T11:00": "night"}
    said = "the lead of 2h is longer than 'night' from 2026-12-24 10:00 to 2026-12-24 11:00, which lasts 1h"
    assert refused(exceptions=short, lead="2h").startswith(said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"exceptions": {"2026-12-24T00:00/2026-12-24T07:00": "day"}},
            "'night' from 2026-12-24 07:00 to 2026-12-24 08:00, which lasts 1h",
        ),
        (
            {"holidays": {"12-24": OTHERWISE}, "windows": [window("mon-sun 22:30 - 08:00", "night")]},
            "'night' from 2025-12-23 22:30 to 2025-12-24 00:00, which lasts 1h30m",
        ),
        (
            {"overrides": [Override("2026-12-24T00:00/2026-12-24T01:59", OTHERWISE)]},
            "'override' from 2026-12-24 00:00 to 2026-12-24 01:59, which lasts 1h59m",
        ),
        # On one day a year clocks leave an hour less of it.
        (
            {"windows": [window("sun 01:00 - 03:30", "early")]},
            "'early' from 2026-03-29 01:00 to 2026-03-29 03:30, which lasts 1h30m",
        ),
    ],
)
def test_a_lead_longer_than_what_is_left_of_a_window(fields: dict[str, Any], said: str) -> None:
    assert refused(**fields, lead="2h").startswith(f"the lead of 2h is longer than {said}: shorten the lead")


def test_what_is_left_of_a_window_may_be_short_where_nothing_is_handed_over() -> None:
    exceptions = {"2026-12-24T00:00/2026-12-24T07:00": NIGHT.allocation}
    CapacitySchedule(
        timezone="Europe/Amsterdam", windows=[NIGHT], otherwise=OTHERWISE, exceptions=exceptions, lead="2h"
    )
