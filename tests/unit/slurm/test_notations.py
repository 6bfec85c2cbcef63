"""Durations and points in time: read as Slurm prints them, written as it takes them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm.notations import (
    Duration,
    NoDuration,
    format_time,
    parse_duration,
    parse_minutes,
    parse_seconds,
    parse_time,
)
from airflow_provider_soperator.slurm.option_values import duration_text

seconds = st.integers(0, 10**9).map(lambda number: timedelta(seconds=number))


@given(seconds)
def test_durations_are_read_as_they_are_written(duration: timedelta) -> None:
    assert parse_duration(duration_text(duration)) == duration


@given(seconds)
def test_durations_are_read_as_squeue_prints_them(duration: timedelta) -> None:
    days, rest = divmod(int(duration.total_seconds()), 86400)
    hours, minutes, rest = rest // 3600, rest // 60 % 60, rest % 60
    if days:
        printed = f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    elif hours:
        printed = f"{hours}:{minutes:02}:{rest:02}"
    else:
        printed = f"{minutes}:{rest:02}"
    assert parse_duration(printed) == duration


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("1-02:03:04", timedelta(days=1, hours=2, minutes=3, seconds=4)),
        ("03:04", timedelta(minutes=3, seconds=4)),
        ("00:01.500", timedelta(seconds=1.5)),
        ("UNLIMITED", NoDuration.UNLIMITED),
        ("INFINITE", NoDuration.UNLIMITED),
        ("Partition_Limit", NoDuration.PARTITION_LIMIT),
        ("INVALID", NoDuration.UNKNOWN),
        ("NONE", NoDuration.UNKNOWN),
        ("", NoDuration.UNKNOWN),
    ],
)
def test_notations_of_durations(text: str, duration: Duration) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["5", "1:2:3:4", "-1:00", "soon", "1-2"])
def test_what_no_command_prints_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_numbers_of_minutes_and_seconds() -> None:
    assert parse_minutes("90") == timedelta(hours=1.5)
    assert parse_minutes("UNLIMITED") is NoDuration.UNLIMITED
    assert parse_seconds("90") == timedelta(seconds=90)
    assert parse_seconds("") is None


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(ZoneInfo("Europe/Amsterdam"))))
def test_points_in_time_survive_the_way_there_and_back(when: datetime) -> None:
    given_to_slurm = format_time(when)
    assert given_to_slurm.startswith("uts")
    back = parse_time(given_to_slurm[3:])
    assert back == when.astimezone(timezone.utc).replace(microsecond=0)


@pytest.mark.parametrize("text", ["Unknown", "N/A", "None", "NONE", "(null)", "", "0"])
def test_no_time(text: str) -> None:
    assert parse_time(text) is None


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        format_time(datetime(2026, 11, 21))
    with pytest.raises(ValueError, match="not a time"):
        parse_time("tomorrow")
