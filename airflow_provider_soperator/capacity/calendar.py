"""Local times, durations, dates and weekly windows, as people write them."""

from __future__ import annotations

import re
from bisect import bisect_right
from calendar import monthrange
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

import pendulum
from pendulum import DateTime, Timezone

from airflow_provider_soperator.capacity.allocation import Units, checked_allocation
from airflow_provider_soperator.errors import CapacityMistake, name_remedy
from airflow_provider_soperator.values import moment_of

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_DAY_OF_YEAR = re.compile(r"\d\d-\d\d")
#: The year in which the dates of each year are kept; it has a 29 February.
_ANY_YEAR = 2000
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?")
_HOW_TO_WRITE_DATES = (
    'write "2026-12-24", "2026-12-25/2026-12-27" (whole days, the last one too), "12-25" (each year), or '
    '"2026-12-31T12:00/2027-01-02T08:00"'
)

DAY = 24 * 60
WEEK = 7 * DAY

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPOKEN = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")
_WHEN = re.compile(r"(\S+) +(\d?\d:\d\d) *- *(?:([a-z]+) +)?(\d?\d:\d\d)", re.IGNORECASE)
_HOW_TO_WRITE_WINDOWS = (
    'write "mon-fri 20:00 - 08:00", "sat,sun 10:00 - 18:00", "daily 22:00 - 06:00" or "fri 20:00 - mon 08:00"'
)

#: Begin and end in minutes of the week; the end may lie in the next week.
Span = tuple[int, int]


def zone(name: str) -> Timezone:
    """The time zone of this name, of the IANA database."""
    try:
        if isinstance(name, str):
            return pendulum.timezone(name)
    except (ValueError, OSError):  # the latter for the name of a folder of the database
        pass
    raise CapacityMistake(
        f"unknown time zone {name!r}",
        name_remedy(name, pendulum.timezones(), 'use a name of the IANA database, such as "Europe/Amsterdam"'),
    )


def instant(wall: datetime, zone: Timezone) -> DateTime:
    """The moment, in UTC, at which clocks first show this time, or jump over it.

    On the last Sunday of March 2026 Amsterdam's clocks went from 02:00 to 03:00 at 01:00 UTC; on that of October they
    showed 02:30 at 00:30 UTC, and again an hour later.

    >>> amsterdam = zone("Europe/Amsterdam")
    >>> instant(datetime(2026, 3, 29, 2, 30), amsterdam).isoformat()
    '2026-03-29T01:00:00+00:00'
    >>> instant(datetime(2026, 10, 25, 2, 30), amsterdam).isoformat()
    '2026-10-25T00:30:00+00:00'
    """
    moment = wall.replace(tzinfo=zone).astimezone(pendulum.UTC)
    if _shown(moment, zone) != wall:
        # Clocks jump over it between these two readings of it; no zone's rules are finer than a second.
        first = wall.replace(tzinfo=zone, fold=1).astimezone(pendulum.UTC)
        passed = range(int((moment - first).total_seconds()))
        after = bisect_right(passed, wall, key=lambda seconds: _shown(first + timedelta(seconds=seconds), zone))
        moment = first + timedelta(seconds=after)
    return pendulum.instance(moment)


def moment_by_clocks(zone: Timezone | None, what: str, said: datetime | str | None) -> datetime | None:
    """The moment of a person's date and time, which is by the clocks of the zone if it names none."""
    try:
        wall = datetime.fromisoformat(said.strip()) if isinstance(said, str) and zone else said
    except ValueError:
        wall = said
    if isinstance(wall, datetime) and wall.tzinfo is None and zone:
        return instant(wall, zone)
    return moment_of(what, said)


def _shown(moment: datetime, zone: Timezone) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def utc(moment: datetime) -> DateTime:
    """A moment in UTC, which compares correctly even when clocks are set back."""
    if moment.tzinfo is None:
        raise CapacityMistake(f"{moment.isoformat()} has no time zone", "add one, such as +01:00")
    return pendulum.instance(moment.astimezone(pendulum.UTC))


def seconds(duration: timedelta | str) -> int:
    """The seconds of a duration.

    >>> seconds("1h30m"), seconds(timedelta(minutes=30))
    (5400, 1800)
    """
    said = f"{duration!r} is not a duration"
    if isinstance(duration, timedelta):
        if duration >= timedelta(0) and not duration.microseconds:
            return int(duration.total_seconds())
        said = f"a duration must be a whole number of seconds >= 0, got {duration}"
    elif isinstance(duration, str) and duration and (found := _DURATION.fullmatch(duration)):
        return sum(int(number or 0) * size for number, size in zip(found.groups(), _UNITS.values(), strict=True))
    raise CapacityMistake(said, 'write "30m", "1h" or "1h30m"')


def duration_text(seconds: int) -> str:
    """A duration as text.

    >>> duration_text(5400), duration_text(0)
    ('1h30m', '0m')
    """
    text = ""
    for unit, size in _UNITS.items():
        number, seconds = divmod(seconds, size)
        text += f"{number}{unit}" if number else ""
    return text or "0m"


@dataclass(frozen=True, order=True)
class Dates:
    """The period of an exception, a holiday or an override, in one year or in each.

    >>> Dates.parse("2026-12-25/2026-12-27").end.isoformat()
    '2026-12-28T00:00:00'
    >>> [str(one.start.date()) for one in Dates.parse("12-31/01-01").within(range(2026, 2028))]
    ['2026-12-31', '2027-12-31']
    """

    start: datetime
    end: datetime
    #: As the user wrote it.
    text: str
    is_yearly: bool = False

    @classmethod
    def parse(cls, text: str, what: str = "exception") -> Dates:
        first, _, last = text.partition("/") if isinstance(text, str) else ("", "", "")
        last = last or first
        is_yearly = bool(_DAY_OF_YEAR.fullmatch(first) and _DAY_OF_YEAR.fullmatch(last))
        is_days = is_yearly or bool(_DATE.fullmatch(first) and _DATE.fullmatch(last))
        if not is_days and not (_TIME.fullmatch(first) and _TIME.fullmatch(last)):
            raise CapacityMistake(f"the {what} {text!r} is not a date or period", _HOW_TO_WRITE_DATES)
        if is_yearly:
            first, last = f"{_ANY_YEAR}-{first}", f"{_ANY_YEAR + (last < first)}-{last}"
        try:
            start, end = datetime.fromisoformat(first), datetime.fromisoformat(last) + timedelta(days=is_days)
        except ValueError as error:
            raise CapacityMistake(
                f"the {what} {text!r} has a date that does not exist ({error})", _HOW_TO_WRITE_DATES
            ) from None
        if end <= start:
            raise CapacityMistake(f"the {what} {text!r} ends before it begins", _HOW_TO_WRITE_DATES)
        return cls(start, end, text, is_yearly)

    def within(self, years: Iterable[int]) -> Iterator[Dates]:
        """The periods that begin in these years, or the only one."""
        if not self.is_yearly:
            yield self
            return
        for year in years:
            # One that begins on 29 February is missing in other years.
            with suppress(ValueError):
                start, last = self.start.replace(year=year), self.end - timedelta(days=1)
                its = year + last.year - self.start.year
                last = last.replace(year=its, day=min(last.day, monthrange(its, last.month)[1]))
                yield replace(self, start=start, end=last + timedelta(days=1))


def refuse_overlap(what: str, dated: Sequence[tuple[Dates, object]]) -> None:
    """Raise ``CapacityMistake`` if two periods overlap for which different things are said."""
    bounds = {bound.year for dates, _ in dated if not dates.is_yearly for bound in (dates.start, dates.end)}
    # What begins in the year before may last until then.
    years = sorted({begin for year in (_ANY_YEAR, *bounds) for begin in (year - 1, year)})
    laid = [(one, said) for dates, said in dated for one in dates.within(years)]
    laid.sort(key=lambda one: one[0])
    if not laid:
        return
    latest, its = laid[0]
    for one, said in laid[1:]:
        if one.start < latest.end and said != its:
            begin, end = one.start, min(one.end, latest.end)
            raise CapacityMistake(
                f"the {what}s {latest.text!r} and {one.text!r} overlap from {begin:%Y-%m-%d %H:%M} to "
                f"{end:%Y-%m-%d %H:%M}",
                "end one before the other begins",
            )
        if one.end > latest.end:
            latest, its = one, said


@dataclass(frozen=True)
class Window:
    """A part of each week, and the units of each target in it: Slurm nodes, or replicas of a service.

    A window whose end is not after its begin ends on the next day; one over several days names the day on which it
    ends. Times are of the wall clock, so a window is longer or shorter on a night on which clocks change.

    >>> night = Window("mon-fri 20:00 - 08:00", {"training": 8, "inference": 0}, name="night")
    >>> night.spans[0]
    (1200, 1920)
    >>> Window("fri 20:00 - mon 08:00", {"training": 8}).spans
    ((6960, 10560),)

    :param when: days and times, such as ``mon-fri 20:00 - 08:00``
    :param allocation: units of each target: a number, or a range such as ``{"min": 2, "max": 6}``
    :param name: name in exceptions, plans and pages; by default ``when``
    """

    when: str
    allocation: Mapping[str, Units] = field(hash=False)
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.when)
        object.__setattr__(self, "allocation", checked_allocation(self.allocation, f"{self.name!r}"))
        _ = self.spans  # raises if ``when`` cannot be parsed

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Parts of the week, one for each day on which the window begins."""
        found = _WHEN.fullmatch(self.when.strip()) if isinstance(self.when, str) else None
        if found is None:
            raise CapacityMistake(f"{self.when!r} is not a part of a week", _HOW_TO_WRITE_WINDOWS)
        days, start, end = self._days(found[1]), self._minutes(found[2]), self._minutes(found[4])
        if start == DAY:
            raise CapacityMistake(f"{self.when!r} begins at 24:00", "begin at 00:00 of the next day")
        if found[3] is None:
            return tuple((day * DAY + start, day * DAY + end + (DAY if end <= start else 0)) for day in days)
        if len(days) > 1:
            raise CapacityMistake(f"{self.when!r} begins on several days but ends on one", _HOW_TO_WRITE_WINDOWS)
        length = (self._day(found[3]) - days[0]) * DAY + end - start
        begins = days[0] * DAY + start
        return ((begins, begins + length + (WEEK if length <= 0 else 0)),)

    def _days(self, text: str) -> list[int]:
        found: set[int] = set()
        for part in ("mon-sun" if text.lower() == "daily" else text).split(","):
            first, _, last = part.partition("-")
            begin, end = self._day(first), self._day(last or first)
            found.update((begin + more) % 7 for more in range((end - begin) % 7 + 1))
        return sorted(found)

    def _day(self, text: str) -> int:
        if text.lower() not in _DAYS:
            raise CapacityMistake(f"unknown day {text!r} in {self.when!r}", f"days are {', '.join(_DAYS)}, or daily")
        return _DAYS.index(text.lower())

    def _minutes(self, text: str) -> int:
        hour, minute = map(int, text.split(":"))
        if minute > 59 or hour * 60 + minute > DAY:
            raise CapacityMistake(f"{text} in {self.when!r} is not a time of day", "times are 00:00 to 24:00")
        return hour * 60 + minute


def overlaps(windows: Iterable[Window]) -> dict[tuple[str, str], list[Span]]:
    """Pairs of windows that overlap, and the times at which they do, also over the end of the week."""
    found = defaultdict[tuple[str, str], list[Span]](list)
    for (_, end, name), (begin, its_end, other) in _neighbours(windows):
        if begin < end:
            found[name, other].append((begin, min(end, its_end)))
    return found


def gaps(windows: Iterable[Window]) -> list[Span]:
    """The parts of the week that no window covers; the windows may not overlap."""
    return [(end, begin) for (_, end, _), (begin, _, _) in _neighbours(windows) if end < begin]


def _neighbours(windows: Iterable[Window]) -> list[tuple[tuple[int, int, str], tuple[int, int, str]]]:
    """Each span with the one that begins next: if spans overlap at all, such neighbours do."""
    spans = sorted((begin, end, window.name) for window in windows for begin, end in window.spans)
    begin, end, name = spans[0]
    return list(zip(spans, [*spans[1:], (begin + WEEK, end + WEEK, name)], strict=True))


def in_words(spans: Sequence[Span]) -> str:
    """Parts of the week as text.

    >>> in_words([(480, 540), (480 + DAY, 540 + DAY)])
    'on Mondays and Tuesdays from 08:00 to 09:00'
    >>> in_words([(5 * DAY + 480, WEEK + 480)])
    'from Saturdays 08:00 to Mondays 08:00'
    """
    days: dict[str, list[int]] = {}
    said: list[str] = []
    for begin, end in sorted((begin % WEEK, begin % WEEK + end - begin) for begin, end in spans):
        day = begin // DAY
        if end <= (day + 1) * DAY:
            days.setdefault(f"{_clock(begin - day * DAY)} to {_clock(end - day * DAY)}", []).append(day)
        else:
            said.append(f"from {_SPOKEN[day]} {_clock(begin % DAY)} to {_SPOKEN[end // DAY % 7]} {_clock(end % DAY)}")
    same_day = []
    for when, which in days.items():
        *names, last = (_SPOKEN[day] for day in which)
        is_row = len(which) > 2 and which[-1] - which[0] == len(which) - 1
        on = f"{names[0]} to {last}" if is_row else " and ".join(filter(None, [", ".join(names), last]))
        same_day.append(f"on {on} from {when}")
    return ", ".join(same_day + said)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
