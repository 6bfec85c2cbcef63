"""Lists of holidays in iCalendar's format, as dates of a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_provider_soperator.capacity.allocation import Units
from airflow_provider_soperator.errors import CapacityMistake

#: What is repeated by a rule that is more than a day of each year is listed until then.
_HORIZON = datetime(2040, 1, 1)


def read_holidays(ical: str | Path, holds: str | Mapping[str, Units]) -> dict[str, str | Mapping[str, Units]]:
    """Dates of a list of holidays, for ``CapacitySchedule(holidays=...)``.

        holidays=read_holidays(Path(__file__).with_name("holidays.ics"), "weekend")

    Events of whole days count, also such as come back each year. Install the package with its extra ``holidays``.

    :param ical: text of the list, or the path of its file
    :param holds: allocation on these days, the name of a window whose allocation holds then, or ``otherwise``
    """
    whose = f"the holidays in {ical}" if isinstance(ical, Path) else "the list of holidays"
    try:
        from icalendar import Calendar
    except ImportError:
        raise CapacityMistake(
            f"{whose} cannot be read without icalendar", "install airflow-provider-soperator[holidays]"
        ) from None
    try:
        calendar = Calendar.from_ical(ical.read_text(encoding="utf-8") if isinstance(ical, Path) else ical)
    except (OSError, ValueError) as error:
        raise CapacityMistake(f"{whose} cannot be read: {error}", "use a file or text in iCalendar's format") from None
    return {dates: holds for event in calendar.walk("VEVENT") for dates in _dates(event, whose)}


def _dates(event: Any, whose: str) -> Iterator[str]:
    start: date = event.decoded("DTSTART")
    if isinstance(start, datetime):
        raise CapacityMistake(
            f"{whose}: {event.get('SUMMARY', start)} is not a whole day", "write it as an exception of the schedule"
        )
    end = event.decoded("DTEND", None) or start + event.decoded("DURATION", timedelta(days=1))
    last = max(start, end - timedelta(days=1))
    if "RRULE" not in event:
        yield _text(start, last, "%Y-%m-%d")
    elif _is_each_year(event["RRULE"], start) and "EXDATE" not in event:
        yield _text(start, last, "%m-%d")
    else:
        from dateutil.rrule import rrulestr

        without = event.get("EXDATE", [])
        dropped = {one.dt for each in (without if isinstance(without, list) else [without]) for one in each.dts}
        midnight = datetime.combine(start, datetime.min.time())
        for found in rrulestr(event["RRULE"].to_ical().decode(), dtstart=midnight, ignoretz=True).between(
            midnight, _HORIZON, inc=True
        ):
            if found.date() not in dropped:
                yield _text(found.date(), found.date() + (last - start), "%Y-%m-%d")


def _text(start: date, last: date, form: str) -> str:
    first, end = start.strftime(form), last.strftime(form)
    return first if first == end else f"{first}/{end}"


def _is_each_year(rule: Mapping[str, Any], start: date) -> bool:
    """True for a rule that says no more than the day of its first event."""
    plain = {"FREQ": "YEARLY", "INTERVAL": 1, "BYMONTH": start.month, "BYMONTHDAY": start.day}
    return rule.get("FREQ") == ["YEARLY"] and all(
        name in plain and list(said) == [plain[name]] for name, said in rule.items() if name != "WKST"
    )
