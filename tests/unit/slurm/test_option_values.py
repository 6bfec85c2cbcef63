"""Memory and time in Slurm's notation."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm import option_values


@pytest.mark.parametrize(
    ("given", "written"),
    [("16G", "16G"), ("16GB", "16GB"), ("16GiB", "16384M"), ("1.5T", "1572864M"), ("0", "0"), (0, "0M"), ("1k", "1k")],
)
def test_memory(given: int | str, written: str) -> None:
    assert option_values.memory_text(given) == written


@pytest.mark.parametrize("wrong", ["", "G", "16 gigs", "-1", "1e3", "16P", "1G\n2", -1])
def test_memory_that_is_none(wrong: int | str) -> None:
    with pytest.raises(ValueError, match=r"is not an amount of memory|must be >= 0"):
        option_values.memory_text(wrong)


@pytest.mark.parametrize(("text", "megabytes"), [("1K", 1), ("1025K", 2), ("2048K", 2), ("3M", 3), ("7", 7)])
def test_kilobytes_are_rounded_up(text: str, megabytes: int) -> None:
    assert option_values.in_megabytes(text) == megabytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("5:30", 330),
        ("1:00:00", 3600),
        ("2-3", 2 * 86400 + 3 * 3600),
        ("2-3:4", 2 * 86400 + 3 * 3600 + 240),
        ("2-3:4:5", 2 * 86400 + 3 * 3600 + 245),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert option_values.in_seconds(text) == seconds
    assert option_values.duration_text(text) == text


@pytest.mark.parametrize("wrong", ["2h", "1:2:3:4", "-5", "", "1-", "soon", "1 day", timedelta(seconds=-1), -1])
def test_durations_that_are_none(wrong: timedelta | int | str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|must be >= 0"):
        option_values.duration_text(wrong)


@pytest.mark.parametrize("text", ["UNLIMITED", "infinite", "-1"])
def test_no_limit(text: str) -> None:
    assert option_values.is_unlimited(text)
    assert option_values.duration_text(text) == text


@given(st.integers(0, 10**7))
def test_a_written_timedelta_lasts_as_long(seconds: int) -> None:
    length = timedelta(seconds=seconds)
    assert option_values.in_seconds(option_values.duration_text(length)) == seconds
    assert option_values.in_minutes(length) == -(-seconds // 60)


def test_moments() -> None:
    berlin = timezone(timedelta(hours=1))
    assert option_values.moment_text(datetime(2030, 1, 1, 1, tzinfo=berlin)) == "uts1893456000"
    assert option_values.moment_text(datetime(2030, 1, 1, 1)) == "2030-01-01T01:00:00"
    assert option_values.moment_text("teatime") == "teatime"
    assert option_values.moment_text(timedelta(hours=1)) == "now+3600seconds"


@pytest.mark.parametrize(
    "text", ["2030-01-01 01:00:00+01:00", "2030-01-01T00:00:00Z", "2029-12-31 23:59:59.500000+00:00"]
)
def test_a_date_that_a_template_has_rendered_to_text_keeps_its_zone(text: str) -> None:
    assert option_values.moment_text(text) == "uts1893456000"


@pytest.mark.parametrize("text", ["16:00", "now+1hour", "2030-01-01T00:00:00", "010130", "2030-01-01"])
def test_slurms_own_notation_of_a_moment_is_left_as_it_is(text: str) -> None:
    assert option_values.moment_text(text) == text
