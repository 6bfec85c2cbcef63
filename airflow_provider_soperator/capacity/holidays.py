"""Lists of holidays in iCalendar's format, as dates of a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_provider_soperator.capacity.allocation import Units
from airflow_provider_soperator.errors import CapacityMistake


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
    return {_dates(event, whose): holds for event in calendar.walk("VEVENT")}


def _dates(event: Any, whose: str) -> str:
    start: date = event.decoded("DTSTART")
    rule = event.get("RRULE", {})
    plain = {"FREQ": "YEARLY", "INTERVAL": 1, "BYMONTH": start.month, "BYMONTHDAY": start.day}
    is_plain = all(list(said) == [plain.get(name)] for name, said in rule.items())
    if isinstance(start, datetime) or not is_plain or {"EXDATE", "RDATE"} & event.keys():
        raise CapacityMistake(
            f"{whose}: {event.get('SUMMARY', start)} is not whole days of one year, or of each year",
            "write its dates as exceptions of the schedule",
        )
    end = event.decoded("DTEND", None) or start + event.decoded("DURATION", timedelta(days=1))
    form = "%m-%d" if rule else "%Y-%m-%d"
    return "/".join(dict.fromkeys(day.strftime(form) for day in (start, max(start, end - timedelta(days=1)))))
