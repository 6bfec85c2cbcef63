"""Windows that come back each week, in minutes since Monday 00:00 as the clocks on the wall show it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from airflow_provider_soperator.capacity.errors import CapacityMistake

DAY = 24 * 60
WEEK = 7 * DAY

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPOKEN = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")
_WHEN = re.compile(r"(\S+) +(\d?\d:\d\d) *- *(?:([a-z]+) +)?(\d?\d:\d\d)", re.IGNORECASE)
_HOW = 'write "mon-fri 20:00 - 08:00", "sat,sun 10:00 - 18:00", "daily 22:00 - 06:00" or "fri 20:00 - mon 08:00"'

#: From when to when, in minutes of the week; the end may lie in the next one.
Span = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """A part of each week, and how many units each target has in it: nodes of Slurm, replicas of a service.

    A window that ends at or before the time at which it begins ends on the next day; one over several days says on
    which it ends. Times are those of the wall clock, so a window is longer or shorter in a night in which clocks are
    changed.

    >>> night = Window("mon-fri 20:00 - 08:00", {"training": 8, "inference": 0}, name="night")
    >>> night.spans[0]
    (1200, 1920)
    >>> Window("fri 20:00 - mon 08:00", {"training": 8}).spans
    ((6960, 10560),)
    """

    when: str
    allocation: Mapping[str, int] = field(hash=False)
    #: What people, and exceptions, call it.
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.when)
        object.__setattr__(self, "allocation", checked(self.allocation, f"{self.name!r}"))
        _ = self.spans  # what cannot be read is refused here

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Its parts of the week, one for each day on which it begins."""
        found = _WHEN.fullmatch(self.when.strip()) if isinstance(self.when, str) else None
        if found is None:
            raise CapacityMistake(f"{self.when!r} is no part of a week", _HOW)
        days, start, end = self._days(found[1]), self._minutes(found[2]), self._minutes(found[4])
        if start == DAY:
            raise CapacityMistake(f"{self.when!r} begins at 24:00", "begin at 00:00 of the day after")
        if found[3] is None:
            return tuple((day * DAY + start, day * DAY + end + (DAY if end <= start else 0)) for day in days)
        if len(days) > 1:
            raise CapacityMistake(f"{self.when!r} begins on several days, and ends on one", _HOW)
        length = (self._day(found[3]) - days[0]) * DAY + end - start
        begins = days[0] * DAY + start
        return ((begins, begins + length + (WEEK if length <= 0 else 0)),)

    def _days(self, text: str) -> list[int]:
        if text.lower() == "daily":
            return list(range(7))
        found: set[int] = set()
        for part in text.split(","):
            first, _, last = part.partition("-")
            begin = self._day(first)
            end = self._day(last) if last else begin
            found.update((begin + more) % 7 for more in range((end - begin) % 7 + 1))
        return sorted(found)

    def _day(self, text: str) -> int:
        if text.lower() not in _DAYS:
            raise CapacityMistake(f"{text!r} in {self.when!r} is no day", f"days are {', '.join(_DAYS)}, or daily")
        return _DAYS.index(text.lower())

    def _minutes(self, text: str) -> int:
        hour, minute = map(int, text.split(":"))
        if minute > 59 or hour * 60 + minute > DAY:
            raise CapacityMistake(f"{text} in {self.when!r} is no time of day", "times are 00:00 to 24:00")
        return hour * 60 + minute


def checked(allocation: object, whose: str) -> dict[str, int]:
    """An allocation that is one: whole numbers of units, by target."""
    if not isinstance(allocation, Mapping) or not allocation:
        raise CapacityMistake(
            f"{whose} has {allocation!r} where units of targets are to be", 'write {"training": 8, "inference": 0}'
        )
    for target, units in allocation.items():
        if not isinstance(target, str) or not isinstance(units, int) or isinstance(units, bool) or units < 0:
            raise CapacityMistake(f"{whose} gives {units!r} units to {target!r}", "give a whole number of them, or 0")
    return dict(allocation)


def overlaps(windows: Iterable[Window]) -> dict[tuple[str, str], list[Span]]:
    """Which windows hold at the same time, and when, also over the end of the week."""
    found: dict[tuple[str, str], list[Span]] = {}
    for (_, end, name), (begin, its_end, other) in _neighbours(windows):
        if begin < end:
            found.setdefault((name, other), []).append((begin, min(end, its_end)))
    return found


def gaps(windows: Iterable[Window]) -> list[Span]:
    """The parts of the week that no window covers; nothing may overlap."""
    return [(end, begin) for (_, end, _), (begin, _, _) in _neighbours(windows) if end < begin]


def _neighbours(windows: Iterable[Window]) -> list[tuple[tuple[int, int, str], tuple[int, int, str]]]:
    """Each span with the one that begins next. What overlaps with anything overlaps with that."""
    spans = sorted((begin, end, window.name) for window in windows for begin, end in window.spans)
    begin, end, name = spans[0]
    return list(zip(spans, [*spans[1:], (begin + WEEK, end + WEEK, name)], strict=True))


def in_words(spans: Sequence[Span]) -> str:
    """Parts of the week for people to read.

    >>> in_words([(480, 540), (480 + DAY, 540 + DAY)])
    'on Mondays and Tuesdays from 08:00 to 09:00'
    >>> in_words([(5 * DAY + 480, WEEK + 480)])
    'from Saturdays 08:00 to Mondays 08:00'
    """
    days: dict[tuple[str, str], list[int]] = {}
    said: list[str] = []
    for begin, end in sorted((begin % WEEK, begin % WEEK + end - begin) for begin, end in spans):
        day = begin // DAY
        if end <= (day + 1) * DAY:
            days.setdefault((_clock(begin - day * DAY), _clock(end - day * DAY)), []).append(day)
        else:
            said.append(f"from {_SPOKEN[day]} {_clock(begin % DAY)} to {_SPOKEN[end // DAY % 7]} {_clock(end % DAY)}")
    same_day = [f"on {_days_in_words(which)} from {begin} to {end}" for (begin, end), which in days.items()]
    return ", ".join(same_day + said)


def _days_in_words(days: Sequence[int]) -> str:
    names = [_SPOKEN[day] for day in days]
    if len(days) > 2 and days[-1] - days[0] == len(days) - 1:
        return f"{names[0]} to {names[-1]}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
