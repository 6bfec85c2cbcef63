"""The schedule of a capacity block: a value for DAG files, which the timetable, planner and pages read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import pendulum
from pendulum import DateTime, Timezone

from airflow_provider_soperator.capacity import calendar
from airflow_provider_soperator.capacity.allocation import Units, bounds_of, checked_allocation, least_gpus
from airflow_provider_soperator.capacity.calendar import Dates, gaps, in_words, instant, overlaps, refuse_overlap
from airflow_provider_soperator.capacity.calendar import Window as Window
from airflow_provider_soperator.capacity.overrides import Override, check_words, kept_overrides
from airflow_provider_soperator.errors import CapacityMistake, name_remedy

#: Every weekly change occurs in this time, even one that clocks jump over once.
_TWO_WEEKS = timedelta(days=15)
#: Weeks that are laid out before and after the requested time. A window that clocks jump over is missing for one week,
#: so the segment around it may be longer than a week.
_MARGIN = 2
#: Years around a moment in which the dates of each year are looked for: 29 February may be missing for eight.
_NEAR = 9
#: Years in which handovers are compared with the lead. In any, clocks change on the same days of the week; over nine,
#: each date comes on each of them.
_ANY_YEAR, _ANY_YEARS = 2026, range(2026, 2035)
OTHERWISE = "otherwise"

#: Dates, and the name and the allocation that hold then.
Dated = tuple[Dates, str, Mapping[str, Units]]


@dataclass(frozen=True, kw_only=True)
class ScheduleSegment:
    """An allocation, for as long as one window, exception, or gap between windows lasts. Moments are in UTC."""

    #: The window's name, ``otherwise``, the dates of an exception with its own allocation, or who overrides it and why.
    name: str
    allocation: Mapping[str, Units] = field(hash=False)
    since: DateTime
    until: DateTime
    #: The dates of the exception, holiday or override, as the schedule has them.
    exception: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleChange:
    """A handover: a moment at which the allocation changes."""

    at: DateTime
    #: When its shift begins: the lead before it, or at once if what was asked for since is the cause.
    begins: DateTime
    before: ScheduleSegment
    after: ScheduleSegment


@dataclass(frozen=True, kw_only=True)
class CapacitySchedule:
    """Units of each target in each week, and dates with another allocation.

    Overrides come before exceptions, those before holidays, and these before windows. A schedule that could never be
    carried out is rejected here, with ``CapacityMistake``.

    >>> nights = CapacitySchedule(
    ...     timezone="Europe/Amsterdam",
    ...     windows=[Window("mon-fri 20:00 - 08:00", {"training": 8, "inference": 0}, name="night")],
    ...     otherwise={"training": 4, "inference": 4},
    ...     exceptions={"2026-12-24": "night", "2026-12-25/2026-12-27": {"training": 0, "inference": 8}},
    ...     gpus_per_unit={"training": 8, "inference": 8},
    ...     limit=64,
    ...     lead="30m",
    ... )
    >>> change = nights.next_change(datetime.fromisoformat("2026-11-21T12:00+01:00"))
    >>> change.at.isoformat(), change.begins.isoformat(), change.after.name
    ('2026-11-23T19:00:00+00:00', '2026-11-23T18:30:00+00:00', 'night')
    >>> nights.at(change.at).allocation
    {'training': 8, 'inference': 0}
    >>> CapacitySchedule.read(nights.describe()) == nights
    True

    :param timezone: time zone of all times here, by its name in the IANA database
    :param windows: allocations in parts of each week
    :param otherwise: allocation outside of all windows; without it they must cover the week
    :param exceptions: by dates (``2026-12-24``, ``2026-12-25/2026-12-27``: whole days; ``12-25``: each year) or times
        (``2026-12-31T12:00/2027-01-02T08:00``) an allocation, the name of a window whose allocation holds then, or
        ``otherwise``
    :param holidays: the same for days on which no exception is, such as those of ``capacity.holidays.read_holidays``
    :param overrides: allocations that hold for a while, whatever else is said
    :param gpus_per_unit: GPUs of one unit of each target
    :param limit: GPUs of the block; the schedule may not need more
    :param lead: time before a handover at which its shift begins: ``30m``, ``1h``, or a ``timedelta``
    """

    timezone: str
    windows: Sequence[Window]
    otherwise: Mapping[str, Units] | None = field(default=None, hash=False)
    exceptions: Mapping[str, str | Mapping[str, Units]] = field(default_factory=dict, hash=False)
    holidays: Mapping[str, str | Mapping[str, Units]] = field(default_factory=dict, hash=False)
    overrides: Sequence[Override] = ()
    gpus_per_unit: Mapping[str, int] = field(default_factory=dict, hash=False)
    limit: int | None = None
    lead: timedelta | str = "0m"

    def __post_init__(self) -> None:
        # All fields become plain JSON values, so that equal schedules compare equal however they were written.
        normal: dict[str, Any] = {
            "windows": tuple(self.windows),
            "otherwise": None if self.otherwise is None else checked_allocation(self.otherwise, OTHERWISE),
            "overrides": tuple(self.overrides),
            "gpus_per_unit": dict(self.gpus_per_unit),
            "lead": calendar.duration_text(calendar.seconds(self.lead)),
        }
        for what, dated in (("exception", self.exceptions), ("holiday", self.holidays)):
            normal[f"{what}s"] = {
                dates: holds if isinstance(holds, str) else checked_allocation(holds, f"the {what} {dates!r}")
                for dates, holds in dated.items()
            }
        for name, value in normal.items():
            object.__setattr__(self, name, value)
        _ = self.zone
        self._check_windows()
        for what, level in self._levels.items():
            refuse_overlap(what, [(dates, allocation) for dates, _, allocation in level])
        self._check_targets()
        self._check_lead()

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of all targets."""
        return tuple(self.windows[0].allocation)

    @cached_property
    def zone(self) -> Timezone:
        return calendar.zone(self.timezone)

    @cached_property
    def lead_time(self) -> timedelta:
        return timedelta(seconds=calendar.seconds(self.lead))

    def at(self, moment: datetime) -> ScheduleSegment:
        """The segment at a moment."""
        moment = calendar.utc(moment)
        return next(one for one in reversed(self._around(moment, moment)) if one.since <= moment)

    def segments(self, start: datetime, end: datetime) -> list[ScheduleSegment]:
        """The segments between two moments, in order; the first and the last are not cut off."""
        start, end = calendar.utc(start), calendar.utc(end)
        return [one for one in self._around(start, end) if one.since < end and start < one.until]

    def changes(self, start: datetime, end: datetime) -> Iterator[ScheduleChange]:
        """All handovers from one moment (inclusive) to another (exclusive)."""
        start, end = calendar.utc(start), calendar.utc(end)
        planned = {after.since for _, after in self.planned._handovers(start, end)}
        for before, after in self._handovers(start, end):
            if start <= (at := after.since) < end:
                begins = at - self.lead_time if at in planned else at
                yield ScheduleChange(at=at, begins=begins, before=before, after=after)

    def next_change(self, moment: datetime) -> ScheduleChange | None:
        """The first handover after a moment; None if there is none."""
        moment = calendar.utc(moment)
        # Without a bound of an exception, a time this long without a change means that there is none.
        starts = (moment, *(bound for bound in self._bounds(moment) if bound > moment))
        found = (change for start in starts for change in self.changes(start, start + _TWO_WEEKS))
        return next((change for change in found if change.at > moment), None)

    def last_change(self, moment: datetime) -> ScheduleChange | None:
        """The newest handover up to a moment; None if there is none."""
        moment = calendar.utc(moment)
        ends = (moment, *(bound for bound in reversed(self._bounds(moment)) if bound < moment))
        found = (list(self.changes(end - _TWO_WEEKS, end + datetime.resolution)) for end in ends)
        return next((changes[-1] for changes in found if changes), None)

    def override(
        self, units: Mapping[str, Units], since: datetime, until: datetime | None, by: str, because: str
    ) -> Override:
        """The override for what a person wants, until a named end, or the next handover whose shift has not begun."""
        following = self.next_change(since)
        while following and following.begins <= since:
            following = self.next_change(following.at)
        end = until or (following.at if following else since + timedelta(weeks=1))
        if end <= since:
            raise CapacityMistake(f"until must be after {since}, got {end}")
        if (due := self.due(since)) and end <= due.at:
            said = f"until={end}: the shift to {due.after.name} has begun, and has the block until its handover"
            raise CapacityMistake(f"{said} at {due.at}", "let it end later")
        begins, wall = (moment.astimezone(self.zone).replace(tzinfo=None, fold=0) for moment in (since, end))
        if instant(wall, self.zone) < end:
            said = f"until={end}: clocks show {wall:%H:%M} twice then, and an override ends by the first"
            raise CapacityMistake(said, "end it when the hour is over")
        # When clocks show an hour for the second time, those that have begun by now are later on them.
        begun = [one.dates.start for one in self.overrides if instant(one.dates.start, self.zone) <= since]
        when = "/".join(f"{moment:%Y-%m-%dT%H:%M:%S}" for moment in (max([begins, *begun]), wall))
        # What is pasted has line breaks and other blanks.
        made = Override(when, units, by, " ".join(because.split()))
        check_words(made.name)
        return made

    def due(self, moment: datetime) -> ScheduleChange | None:
        """The newest handover whose shift is due to begin by a moment: it supersedes all older ones."""
        due = self.last_change(calendar.utc(moment) + self.lead_time)
        # What was asked for since has no lead.
        while due and due.begins > moment:
            due = self.last_change(due.at - datetime.resolution)
        return due

    def refuse_over_commitment(self, gpus: Mapping[str, int], limit: int) -> None:
        """Raise ``CapacityMistake`` if an allocation needs more than ``limit``; ``gpus`` are the GPUs of one unit."""
        if missing := sorted(set(self.targets) - set(gpus)):
            said = f"the GPUs of one unit of {' and '.join(missing)} are unknown"
            raise CapacityMistake(said, "give gpus_per_unit= for each target")
        for whose, allocation in self.allocations():
            needed = sum(least_gpus(allocation, gpus).values())
            if needed > limit:
                terms = " + ".join(f"{name} {bounds_of(units)[0]} x {gpus[name]}" for name, units in allocation.items())
                said = f"{whose} needs {needed} GPUs ({terms}), but the block has {limit}"
                raise CapacityMistake(said, "give fewer units to a target")

    def refuse_late(self, transfer: timedelta) -> None:
        """Raise ``CapacityMistake`` if a machine needs longer than the lead: each handover would be late."""
        if timedelta(0) < self.lead_time < transfer:
            said = f"the transfer of a machine takes {transfer}, but the schedule's lead is {self.lead_time}"
            raise CapacityMistake(said, "make the lead longer, or each handover is late")

    def describe(self) -> dict[str, Any]:
        """Plain values, which JSON can carry."""
        return {name: list(said) if isinstance(said, tuple) else said for name, said in asdict(self).items()}

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> CapacitySchedule:
        """The schedule that ``describe`` has written."""
        windows, overrides = [Window(**one) for one in said["windows"]], [Override(**one) for one in said["overrides"]]
        return cls(**{**said, "windows": windows, "overrides": overrides})

    def as_kept(self, variable: str | None, now: datetime) -> CapacitySchedule:
        """This schedule with the overrides that an Airflow Variable keeps."""
        kept = kept_overrides(variable)
        try:
            return self.overridden(kept, now)
        except CapacityMistake as error:
            where = f"remove it from the Airflow Variable {variable}, as `airflow soperator override DAG --remove` does"
            raise CapacityMistake(error.said, where) from None

    def overridden(self, more: Iterable[Override], now: datetime) -> CapacitySchedule:
        """This schedule with further overrides: of all that were added, the one that began last comes before others.

        None is compared with the lead, as those who ask for one want it at once. Those that are over ``now`` are left
        out if one could not be carried out: the schedule may have been edited since.
        """
        planned = self.planned
        made = copy(planned)
        for name in [name for name in vars(made) if name.startswith("_")]:
            del vars(made)[name]
        more = sorted([*self.overrides[len(planned.overrides) :], *more], key=lambda one: one.dates.start)
        object.__setattr__(made, "overrides", (*planned.overrides, *more))
        object.__setattr__(made, "planned", planned)
        try:
            made._check_targets()
        except CapacityMistake:
            lasting = [one for one in more if instant(one.dates.end, self.zone) > now]
            if lasting == more:
                raise
            return planned.overridden(lasting, now)
        return made

    @cached_property
    def planned(self) -> CapacitySchedule:
        """The schedule without what was asked for since: shifts begin ahead of its handovers alone."""
        return self

    @cached_property
    def _levels(self) -> dict[str, list[Dated]]:
        """What is said for dates, by what it is; what comes later comes before."""
        return {
            "holiday": self._named("holiday", self.holidays),
            "exception": self._named("exception", self.exceptions),
            "override": [(one.dates, one.name, one.allocation) for one in self.overrides],
        }

    def _named(self, what: str, dated: Mapping[str, str | Mapping[str, Units]]) -> list[Dated]:
        """Dates, name and allocation of each exception or holiday."""
        named: dict[str, Mapping[str, Units]] = {window.name: window.allocation for window in self.windows}
        if self.otherwise is not None:
            named[OTHERWISE] = self.otherwise
        found: list[Dated] = []
        for text, holds in dated.items():
            name, allocation = (holds, named.get(holds)) if isinstance(holds, str) else (text, holds)
            dates = Dates.parse(text, what)
            if allocation is None:
                raise CapacityMistake(
                    f"the {what} {text!r} names an unknown window {name!r}",
                    name_remedy(name, named, f"the windows are {', '.join(map(repr, named))}"),
                )
            found.append((dates, name, allocation))
        return found

    def _dated(self, years: Iterable[int]) -> Iterator[ScheduleSegment]:
        """What is said for dates of these years, without what clocks jump over; what comes later comes before."""
        for one, name, units in chain(*self._levels.values()):
            for dates in one.within(years):
                since, until = instant(dates.start, self.zone), instant(dates.end, self.zone)
                if since < until:
                    yield ScheduleSegment(name=name, allocation=units, since=since, until=until, exception=one.text)

    def _bounds(self, moment: DateTime) -> list[DateTime]:
        """The moments at which dates begin and end, in order."""
        years = range(moment.year - _NEAR, moment.year + _NEAR + 1)
        return sorted(bound for one in self._dated(years) for bound in (one.since, one.until))

    def _around(self, start: DateTime, end: DateTime) -> list[ScheduleSegment]:
        """The segments between two moments, and at least one before and one after them."""
        first, last = (moment.in_timezone(self.zone).date() for moment in (start, end))
        laid = _lay_out(self.windows, self.otherwise, first, last, self.zone)
        return _cut(laid, self._dated(range(first.year - 1, last.year + 2)))

    def _handovers(self, start: DateTime, end: DateTime) -> Iterator[tuple[ScheduleSegment, ScheduleSegment]]:
        """The segments before and after each change of the allocation, near these moments."""
        return (two for two in pairwise(self._around(start, end)) if two[0].allocation != two[1].allocation)

    def allocations(self) -> Iterator[tuple[str, Mapping[str, Units]]]:
        """The name of each allocation in a message, and the allocation."""
        for window in self.windows:
            yield repr(window.name), window.allocation
        if self.otherwise is not None:
            yield OTHERWISE, self.otherwise
        for what, level in self._levels.items():
            for dates, _, allocation in level:
                yield f"the {what} {dates.text!r}", allocation

    def _check_windows(self) -> None:
        if not self.windows:
            raise CapacityMistake("a schedule needs at least one window", "add windows=")
        names = Counter(window.name for window in self.windows)
        if names.total() > len(names):
            raise CapacityMistake(f"two windows have the name {names.most_common(1)[0][0]!r}", "give each its own name")
        if OTHERWISE in names:
            said = f"the window name {OTHERWISE!r} is reserved for times outside all windows"
            raise CapacityMistake(said, "rename it")
        for (one, other), spans in overlaps(self.windows).items():
            both = f"{one!r} overlaps itself" if one == other else f"{one!r} and {other!r} overlap"
            raise CapacityMistake(f"{both} {in_words(spans)}", "end one before the other begins")
        if self.otherwise is None and (open_times := gaps(self.windows)):
            remedy = "add one, or set otherwise= for all such times"
            raise CapacityMistake(f"no window covers the time {in_words(open_times)}", remedy)

    def _check_targets(self) -> None:
        first = repr(self.windows[0].name)
        known = [("gpus_per_unit", self.gpus_per_unit)] if self.gpus_per_unit else []
        for whose, named in (*self.allocations(), *known):
            for target in sorted(set(named) ^ set(self.targets)):
                has, lacks = (whose, first) if target in named else (first, whose)
                raise CapacityMistake(
                    f"{has} names the target {target!r}, but {lacks} does not",
                    "name all targets everywhere, with 0 units where they have none",
                )
        if self.limit is not None:
            self.refuse_over_commitment(self.gpus_per_unit, self.limit)

    def _check_lead(self) -> None:
        """Refuse a lead with which one shift would begin before the window of another ends."""
        spans = [(span, repr(window.name)) for window in self.windows for span in window.spans]
        if self.otherwise is not None:
            spans += [(span, f"{OTHERWISE} {in_words([span])}") for span in gaps(self.windows)]
        (begin, end), whose = min(spans, key=lambda one: one[0][1] - one[0][0])
        self._refuse_lead(timedelta(minutes=end - begin), whose)
        years = {_ANY_YEAR}
        for dates, _, _ in chain(*self._levels.values()):
            years.update(_ANY_YEARS if dates.is_yearly else (dates.start.year, dates.end.year))
        for year in sorted(years) if self.lead_time else ():
            self._check_lead_in(year)

    def _check_lead_in(self, year: int) -> None:
        """Compare the lead with what dates, and changed clocks, leave of windows."""
        handovers = self._handovers(pendulum.datetime(year, 1, 1), pendulum.datetime(year + 1, 1, 1))
        for one, following in pairwise(after for _, after in handovers):
            # Words are made only if they are needed: this is done each time that a schedule is read.
            if one.since.timestamp() + self.lead_time.total_seconds() > following.since.timestamp():
                since, until = (moment.in_timezone(self.zone) for moment in (one.since, following.since))
                whose = f"{one.name!r} from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M}"
                self._refuse_lead(until - since, whose)

    def _refuse_lead(self, lasts: timedelta, whose: str) -> None:
        if self.lead_time > lasts:
            said = f"{whose}, which lasts {calendar.duration_text(int(lasts.total_seconds()))}"
            remedy = "shorten the lead, or lengthen the window"
            raise CapacityMistake(f"the lead of {self.lead} is longer than {said}", remedy)


def _lay_out(
    windows: Sequence[Window], otherwise: Mapping[str, Units] | None, first: date, last: date, zone: Timezone
) -> list[ScheduleSegment]:
    """Lay out windows without gaps, from before the first of these days until after the last."""
    laid: list[ScheduleSegment] = []
    monday = datetime(first.year, first.month, first.day) - timedelta(days=first.weekday(), weeks=_MARGIN)
    spans = sorted(((span, window) for window in windows for span in window.spans), key=lambda one: one[0])
    while monday.date() <= last + timedelta(weeks=_MARGIN):
        for (begin, end), window in spans:
            since, until = (instant(monday + timedelta(minutes=minutes), zone) for minutes in (begin, end))
            if since == until:
                continue  # clocks jump over it
            if otherwise is not None and laid and laid[-1].until < since:
                laid.append(ScheduleSegment(name=OTHERWISE, allocation=otherwise, since=laid[-1].until, until=since))
            laid.append(ScheduleSegment(name=window.name, allocation=window.allocation, since=since, until=until))
        monday += timedelta(weeks=1)
    return laid


def _cut(segments: list[ScheduleSegment], dated: Iterable[ScheduleSegment]) -> list[ScheduleSegment]:
    """Replace parts of segments, which follow one another, by what is said for dates, one after another."""
    first, last = segments[0].since, segments[-1].until
    for one in dated:
        if first < one.until and one.since < last:
            begin = max(0, bisect_right(segments, one.since, key=lambda each: each.since) - 1)
            end = max(0, bisect_left(segments, one.until, key=lambda each: each.since) - 1)
            head, tail = segments[begin], segments[end]
            segments[begin : end + 1] = [
                *([replace(head, until=one.since)] if head.since < one.since else []),
                one,
                *([replace(tail, since=one.until)] if one.until < tail.until else []),
            ]
    return segments
