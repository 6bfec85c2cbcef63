"""What holds from when to when: weekly windows one after the other, cut by exceptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from itertools import pairwise

from pendulum import DateTime, Timezone

from airflow_provider_soperator.capacity.clock import instant
from airflow_provider_soperator.capacity.weekly import Window

OTHERWISE = "otherwise"

#: As far as windows are laid out around what is asked for. A window that clocks jump over is missing for one week, so
#: what holds before it and after it may be longer than a week.
_MARGIN = 2


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One allocation, as long as one window, exception, or stretch between them holds. Moments are in UTC."""

    #: That of the window, ``otherwise``, or of an exception with an allocation of its own its dates.
    name: str
    allocation: Mapping[str, int] = field(hash=False)
    since: DateTime
    until: DateTime
    #: The dates of the exception that it is, as the schedule has them.
    exception: str | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """A handover: a moment from which on targets are to have something else than before."""

    at: DateTime
    #: When its shift begins: the lead before it.
    begins: DateTime
    before: Segment
    after: Segment


def lay_out(
    windows: Sequence[Window], otherwise: Mapping[str, int] | None, first: date, last: date, zone: Timezone
) -> list[Segment]:
    """What holds each week, without a gap, from some time before the first of these days until after the last."""
    laid: list[Segment] = []
    monday = datetime(first.year, first.month, first.day) - timedelta(days=first.weekday(), weeks=_MARGIN)
    spans = sorted(((span, window) for window in windows for span in window.spans), key=lambda one: one[0])
    while monday.date() <= last + timedelta(weeks=_MARGIN):
        for (begin, end), window in spans:
            since, until = (instant(monday + timedelta(minutes=minutes), zone) for minutes in (begin, end))
            if since == until:
                continue  # clocks jump over it
            if otherwise is not None and laid and laid[-1].until < since:
                laid.append(Segment(name=OTHERWISE, allocation=otherwise, since=laid[-1].until, until=since))
            laid.append(Segment(name=window.name, allocation=window.allocation, since=since, until=until))
        monday += timedelta(weeks=1)
    return laid


def cut(segments: Sequence[Segment], exceptions: Iterable[Segment]) -> list[Segment]:
    """What the exceptions leave of these segments, and the exceptions among them, in order."""
    first, last = segments[0].since, segments[-1].until
    near = [one for one in exceptions if first < one.until and one.since < last]
    left = list(near)
    for segment in segments:
        since = segment.since
        for exception in near:
            if segment.since < exception.until and exception.since < segment.until:
                if since < exception.since:
                    left.append(replace(segment, since=since, until=exception.since))
                since = exception.until
        if since < segment.until:
            left.append(replace(segment, since=since))
    return sorted(left, key=lambda one: one.since)


def handovers(segments: Sequence[Segment], lead: timedelta) -> Iterator[Change]:
    """Where, in these segments, the allocation really changes."""
    for before, after in pairwise(segments):
        if before.allocation != after.allocation:
            yield Change(at=after.since, begins=after.since - lead, before=before, after=after)
