"""Amounts of memory and time, written as Slurm reads them."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

#: What people write for "no limit"; Slurm reads all three.
UNLIMITED = frozenset({"unlimited", "infinite", "-1"})

_MEBIBYTES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_MEMORY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?:(?P<unit>[KMGT])(?P<binary>i)?B?)?", re.IGNORECASE)
_DURATION = re.compile(
    r"(?:(?P<days>\d+)-(?P<dhours>\d+)(?::(?P<dminutes>\d+)(?::(?P<dseconds>\d+))?)?)"
    r"|(?:(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+))"
    r"|(?:(?P<only_minutes>\d+)(?::(?P<only_seconds>\d+))?)"
)


def megabytes(amount: int | str) -> int:
    """Memory in the unit that Slurm counts in; a number without a unit is in megabytes, as in Slurm.

    >>> megabytes("16G"), megabytes("1.5GiB"), megabytes(512)
    (16384, 1536, 512)
    """
    if isinstance(amount, int):
        if amount < 0:
            raise ValueError(f"{amount} is negative")
        return amount
    found = _MEMORY.fullmatch(amount.strip())
    if found is None:
        raise ValueError(f"{amount!r} is no amount of memory: write a whole number and K, M, G or T, such as 16G")
    return math.ceil(float(found["number"]) * _MEBIBYTES[(found["unit"] or "M").upper()])


def memory(amount: int | str) -> str:
    """An amount of memory as an option's value. What Slurm can read stays as the user wrote it.

    >>> memory("16G"), memory("1.5G"), memory(512)
    ('16G', '1536M', '512M')
    """
    if isinstance(amount, str) and re.fullmatch(r"\d+(?:[KMGT]B?)?", amount, re.IGNORECASE):
        return amount
    return f"{megabytes(amount)}M"


def is_unlimited(amount: timedelta | int | str) -> bool:
    return isinstance(amount, str) and amount.lower() in UNLIMITED


def seconds(amount: timedelta | int | str) -> int:
    """A limited duration in seconds; a number is in minutes, as in Slurm.

    >>> seconds("1-12"), seconds("90"), seconds("90:30"), seconds(timedelta(hours=2))
    (129600, 5400, 5430, 7200)
    """
    if isinstance(amount, timedelta):
        whole = math.ceil(amount.total_seconds())
    elif isinstance(amount, int):
        whole = amount * 60
    else:
        found = _DURATION.fullmatch(amount)
        if found is None:
            raise ValueError(f"{amount!r} is no duration: write minutes, H:MM:SS, D-HH or D-HH:MM:SS")
        part = {name: int(digits or 0) for name, digits in found.groupdict().items()}
        hours = part["days"] * 24 + part["dhours"] + part["hours"]
        minutes = hours * 60 + part["dminutes"] + part["minutes"] + part["only_minutes"]
        whole = minutes * 60 + part["dseconds"] + part["seconds"] + part["only_seconds"]
    if whole < 0:
        raise ValueError(f"{amount} is negative")
    return whole


def minutes(amount: timedelta | int | str) -> int:
    """A limited duration in minutes, rounded up as Slurm does."""
    return -(-seconds(amount) // 60)


def duration(amount: timedelta | int | str) -> str:
    """A duration as an option's value.

    >>> duration(timedelta(days=1, hours=2)), duration(90), duration("1-12")
    ('1-02:00:00', '90', '1-12')
    """
    if isinstance(amount, str):
        if not is_unlimited(amount):
            seconds(amount)  # refuses what Slurm would read as something else, such as "2h"
        return amount
    if isinstance(amount, int):
        return str(minutes(amount))
    whole = seconds(amount)
    days, rest = divmod(whole, 86_400)
    return f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def moment(when: datetime | timedelta | str) -> str:
    """A point in time as an option's value: a date, a time from now, or what Slurm itself reads ("16:00", "teatime").

    A date with a zone goes as seconds since the epoch, which mean the same whatever zone the cluster is in; a date
    without one is the cluster's wall clock.

    >>> moment(timedelta(minutes=10)), moment(datetime(2030, 1, 2, 3, 4, 5))
    ('now+600seconds', '2030-01-02T03:04:05')
    >>> from datetime import timezone
    >>> moment(datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    'uts1893553445'
    """
    if isinstance(when, str):
        return when
    if isinstance(when, timedelta):
        return f"now+{seconds(when)}seconds"
    if when.tzinfo is not None:
        return f"uts{math.ceil(when.timestamp())}"
    return when.strftime("%Y-%m-%dT%H:%M:%S")
