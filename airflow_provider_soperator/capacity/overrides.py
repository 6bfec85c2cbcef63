"""Overrides: allocations that hold for a while whatever the schedule says, as people ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pendulum import Timezone

from airflow_provider_soperator.capacity.allocation import Units, checked_allocation
from airflow_provider_soperator.capacity.calendar import Dates, instant
from airflow_provider_soperator.errors import CapacityMistake

_WEEK = timedelta(weeks=1)


@dataclass(frozen=True)
class Override:
    """An allocation from one moment to another, by whom and why.

        Override("2026-11-27T18:00/2026-11-29T18:00", {"training": 6, "inference": 2}, by="ann", because="the deadline")

    :param when: dates or times in the time zone of the schedule, as for exceptions
    :param allocation: units of each target, or ranges of them
    :param by: who asked for it
    :param because: why
    """

    when: str
    allocation: Mapping[str, Units] = field(hash=False)
    by: str = ""
    because: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.when, str) or ("T" in self.when and not self.when.partition("/")[2]):
            raise CapacityMistake(f"the override {self.when!r} has no end", 'write "2026-11-27T18:00/2026-11-29T18:00"')
        if self.dates.is_yearly:
            raise CapacityMistake(f"the override {self.when!r} comes back each year", "name the year")
        object.__setattr__(self, "allocation", checked_allocation(self.allocation, f"the override {self.when!r}"))

    @cached_property
    def dates(self) -> Dates:
        return Dates.parse(self.when, "override")

    @property
    def name(self) -> str:
        """The override in plans and pages."""
        return " ".join(filter(None, ["override", self.by and f"by {self.by}", self.because and f"({self.because})"]))


def override_of(
    allocation: Mapping[str, Units], since: datetime, until: datetime | None, zone: Timezone, by: str, because: str
) -> Override:
    """The override from one moment to another, or for a week."""
    end = until or since + _WEEK
    if end <= since:
        raise CapacityMistake(f"until must be after {since}, got {end}")
    when = "/".join(f"{moment.astimezone(zone):%Y-%m-%dT%H:%M:%S}" for moment in (since, end))
    return Override(when, allocation, by, because)


def read_overrides(text: str | None, whose: str) -> list[Override]:
    """The overrides of an Airflow Variable: a JSON list of objects with the fields of an ``Override``."""
    remedy = 'write [{"when": "2026-11-27T18:00/2026-11-29T18:00", "allocation": {"training": 6, "inference": 2}}]'
    try:
        said = json.loads(text) if text and text.strip() else []
    except ValueError as error:
        raise CapacityMistake(f"{whose} is not JSON: {error}", remedy) from None
    known = {one.name for one in fields(Override)}
    if not isinstance(said, list) or not all(
        isinstance(one, dict) and {"when", "allocation"} <= set(one) <= known for one in said
    ):
        raise CapacityMistake(f"{whose}: expected a list of overrides, got {text!r}", remedy)
    return [Override(**one) for one in said]


def write_overrides(overrides: Iterable[Override], now: datetime, zone: Timezone) -> str:
    """The text that ``read_overrides`` reads, without what is over."""
    left: list[dict[str, Any]] = [asdict(one) for one in overrides if instant(one.dates.end, zone) > now]
    return json.dumps(left)
