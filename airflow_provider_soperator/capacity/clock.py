"""Local wall times as moments, and durations as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from difflib import get_close_matches

import pendulum
from pendulum import DateTime, Timezone

from airflow_provider_soperator.capacity.errors import CapacityMistake

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}


def zone(name: str) -> Timezone:
    """The time zone of this name, of the IANA database."""
    try:
        if isinstance(name, str):
            return pendulum.timezone(name)
    except (ValueError, OSError):  # the latter for the name of a folder of the database
        pass
    near = get_close_matches(str(name), pendulum.timezones(), 1)
    raise CapacityMistake(
        f"there is no time zone {name!r}",
        f"did you mean {near[0]!r}?" if near else 'give a name of the IANA database, such as "Europe/Amsterdam"',
    )


def instant(wall: datetime, zone: Timezone) -> DateTime:
    """The moment, in UTC, at which the clocks first show this time, or have jumped over it.

    On the last Sunday of March 2026 Amsterdam's clocks went from 02:00 to 03:00 at 01:00 UTC; on that of October they
    showed 02:30 at 00:30 UTC, and again an hour later.

    >>> amsterdam = zone("Europe/Amsterdam")
    >>> instant(datetime(2026, 3, 29, 2, 30), amsterdam).isoformat()
    '2026-03-29T01:00:00+00:00'
    >>> instant(datetime(2026, 10, 25, 2, 30), amsterdam).isoformat()
    '2026-10-25T00:30:00+00:00'
    """
    moment = _by_offset_of(wall, wall, zone)
    if _shown(moment, zone) != wall:
        moment = _jump(_by_offset_of(wall.replace(fold=1), wall, zone), moment, wall, zone)
    return pendulum.instance(moment)


def _by_offset_of(what: datetime, wall: datetime, zone: Timezone) -> datetime:
    offset = what.replace(tzinfo=zone).utcoffset()
    assert offset is not None, "a zone always has one"
    return (wall - offset).replace(tzinfo=pendulum.UTC)


def _shown(moment: datetime, zone: Timezone) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _jump(before: datetime, after: datetime, wall: datetime, zone: Timezone) -> datetime:
    """When, between these moments, the clocks jumped over this time: no zone's rules are finer than a second."""
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=(after - before) // timedelta(seconds=2))
        if _shown(middle, zone) > wall:
            after = middle
        else:
            before = middle
    return after


def utc(moment: datetime) -> DateTime:
    """A moment in UTC, in which moments can be compared also when clocks are set back."""
    if moment.tzinfo is None:
        raise CapacityMistake(f"{moment.isoformat()} could be a moment anywhere", "give it a time zone")
    return pendulum.instance(moment.astimezone(pendulum.UTC))


def seconds(duration: timedelta | str) -> int:
    """How long that is.

    >>> seconds("1h30m"), seconds(timedelta(minutes=30))
    (5400, 1800)
    """
    if isinstance(duration, timedelta):
        if duration < timedelta(0) or duration.microseconds:
            raise CapacityMistake(f"{duration} is no whole number of seconds", 'write "30m", "1h" or "1h30m"')
        return int(duration.total_seconds())
    found = _DURATION.fullmatch(duration) if isinstance(duration, str) and duration else None
    if found is None:
        raise CapacityMistake(f"{duration!r} is no duration", 'write "30m", "1h" or "1h30m"')
    return sum(int(number or 0) * size for number, size in zip(found.groups(), _UNITS.values(), strict=True))


def duration_text(seconds: int) -> str:
    """A duration in few words.

    >>> duration_text(5400), duration_text(0)
    ('1h30m', '0m')
    """
    text = ""
    for unit, size in _UNITS.items():
        number, seconds = divmod(seconds, size)
        text += f"{number}{unit}" if number else ""
    return text or "0m"
