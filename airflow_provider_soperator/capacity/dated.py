"""Dates on which something else holds than in other weeks, as the clocks on the wall show them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from airflow_provider_soperator.capacity.errors import CapacityMistake

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?")
_HOW = (
    'write "2026-12-24", "2026-12-25/2026-12-27" (whole days, the last one too), or "2026-12-31T12:00/2027-01-02T08:00"'
)


@dataclass(frozen=True, order=True)
class Dates:
    """From when to when an exception holds.

    >>> Dates.parse("2026-12-25/2026-12-27").end.isoformat()
    '2026-12-28T00:00:00'
    """

    start: datetime
    end: datetime
    #: As the user wrote it.
    text: str

    @classmethod
    def parse(cls, text: str) -> Dates:
        first, _, last = text.partition("/") if isinstance(text, str) else ("", "", "")
        last = last or first
        try:
            if _DATE.fullmatch(first) and _DATE.fullmatch(last):
                start, end = datetime.fromisoformat(first), datetime.fromisoformat(last) + timedelta(days=1)
            elif _TIME.fullmatch(first) and _TIME.fullmatch(last):
                start, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
            else:
                raise CapacityMistake(f"the exception {text!r} is at no date", _HOW)
        except ValueError as error:
            if isinstance(error, CapacityMistake):
                raise
            raise CapacityMistake(f"the exception {text!r} is at a date that no calendar has ({error})", _HOW) from None
        if end <= start:
            raise CapacityMistake(f"the exception {text!r} ends before it has begun", _HOW)
        return cls(start, end, text)


def refuse_overlap(exceptions: Iterable[Dates]) -> None:
    for one, other in pairwise(sorted(exceptions)):
        if other.start < one.end:
            begin, end = other.start, min(one.end, other.end)
            raise CapacityMistake(
                f"the exceptions {one.text!r} and {other.text!r} overlap from {begin:%Y-%m-%d %H:%M} to "
                f"{end:%Y-%m-%d %H:%M}",
                "let one end before the other begins",
            )
