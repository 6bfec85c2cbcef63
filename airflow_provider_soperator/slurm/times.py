"""Slurm's durations and points in time, as its commands print them and as they want to be given them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from enum import Enum

#: An environment in which Slurm's commands print seconds since 1970, so that no time zone can be mistaken.
EPOCHS = {"SLURM_TIME_FORMAT": "%s"}

_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.(\d+))?")
_NO_TIME = {"", "0", "unknown", "n/a", "none", "(null)", "invalid", "infinite", "now"}


class NoDuration(Enum):
    """What Slurm says where a duration could stand."""

    UNLIMITED = "UNLIMITED"
    #: As long as the partition allows.
    PARTITION_LIMIT = "Partition_Limit"
    UNKNOWN = "UNKNOWN"


_WORDS = {
    "unlimited": NoDuration.UNLIMITED,
    "infinite": NoDuration.UNLIMITED,
    "partition_limit": NoDuration.PARTITION_LIMIT,
    "not_set": NoDuration.PARTITION_LIMIT,
    "none": NoDuration.UNKNOWN,
    "invalid": NoDuration.UNKNOWN,
    "unknown": NoDuration.UNKNOWN,
    "n/a": NoDuration.UNKNOWN,
    "(null)": NoDuration.UNKNOWN,
    "": NoDuration.UNKNOWN,
}

Duration = timedelta | NoDuration


def parse_duration(text: str) -> Duration:
    """Read a duration as commands print it: ``[days-][hours:]minutes:seconds``, or a word.

    >>> str(parse_duration("1-02:03:04")), str(parse_duration("03:04"))
    ('1 day, 2:03:04', '0:03:04')
    >>> parse_duration("UNLIMITED")
    <NoDuration.UNLIMITED: 'UNLIMITED'>
    """
    text = text.strip()
    word = _WORDS.get(text.lower())
    if word:
        return word
    found = _DURATION.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no duration that Slurm would print")
    days, hours, minutes, seconds, fraction = found.groups(default="0")
    return timedelta(
        days=int(days),
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(seconds),
        microseconds=int(fraction.ljust(6, "0")[:6]),
    )


def parse_minutes(text: str) -> Duration:
    """Read a duration that a command prints as a number of minutes, or as a word."""
    text = text.strip()
    return timedelta(minutes=int(text)) if text.isdecimal() else parse_duration(text)


def parse_seconds(text: str) -> timedelta | None:
    """Read a duration that a command prints as a number of seconds; None where it has none."""
    text = text.strip()
    return timedelta(seconds=int(text)) if text.isdecimal() else None


def format_duration(duration: timedelta) -> str:
    """Write a duration as every Slurm command and option takes it. Rounded up to whole seconds.

    >>> format_duration(timedelta(days=1, hours=2, seconds=5))
    '1-02:00:05'
    """
    seconds = -((-duration) // timedelta(seconds=1))
    if seconds < 0:
        raise ValueError(f"{duration} lies in the past")
    days, rest = divmod(seconds, 86400)
    return f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def parse_time(text: str, tz: tzinfo = timezone.utc) -> datetime | None:
    """Read a point in time: seconds since 1970, or a local time of the cluster, whose time zone is given.

    None where Slurm knows none (yet).

    >>> parse_time("1795255263").isoformat(), parse_time("N/A")
    ('2026-11-21T10:01:03+00:00', None)
    """
    text = text.strip()
    if text.lower() in _NO_TIME:
        return None
    if text.isdecimal():
        return datetime.fromtimestamp(int(text), tz)
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=tz)
    except ValueError:
        raise ValueError(f"{text!r} is no time that Slurm would print") from None


def format_time(when: datetime) -> str:
    """Write a point in time as every Slurm command takes it, whatever the time zone of its host.

    >>> format_time(datetime(2026, 11, 21, 10, tzinfo=timezone.utc))
    'uts1795255200'
    """
    if when.tzinfo is None:
        raise ValueError(f"{when.isoformat()} has no time zone")
    return f"uts{int(when.timestamp())}"
