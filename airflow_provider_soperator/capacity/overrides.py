"""Overrides: allocations that hold for a while whatever the schedule says, as people ask for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from pendulum import Timezone

from airflow_provider_soperator.capacity.allocation import Units, checked_allocation
from airflow_provider_soperator.capacity.calendar import Dates, instant
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.values import keep, kept

#: Seconds in which another run that has read the Variable before this one has written to it.
_SETTLED = 1.0
#: Most times that an override is written: it may be over by now, or a secrets backend hides the Variable.
_WRITES = 5


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


def check_words(why: str) -> None:
    """Raise ``CapacityMistake`` for words that cannot be the reason of a drain, where a shift puts them."""
    from airflow_provider_soperator.slurm.node_conditions import check_reason

    try:
        check_reason(why)
    except ValueError as error:
        raise CapacityMistake(str(error)) from None


def kept_overrides(key: str | None) -> list[Override]:
    """Those of an Airflow Variable: a JSON list of objects with the fields of an ``Override``."""
    found: list[dict[str, Any]] = []
    try:
        return [Override(**one) for one in (kept(key, found) if key else found)]
    except (TypeError, ValueError) as error:
        raise CapacityMistake(
            f"the Airflow Variable {key} is no list of overrides ({error})",
            'write [{"when": "2026-11-27T18:00/2026-11-29T18:00", "allocation": {"training": 6, "inference": 2}}]',
        ) from None


def keep_override(key: str, made: Override, now: datetime, zone: Timezone) -> None:
    """Add one to an Airflow Variable, and remove what is over."""
    # Airflow changes none in one step: another run may undo this.
    for _ in range(_WRITES):
        keep(key, written([*(one for one in kept_overrides(key) if one != made), made], now, zone))
        time.sleep(_SETTLED)
        if made in kept_overrides(key):
            break


def written(made: Iterable[Override], now: datetime, zone: Timezone) -> list[dict[str, Any]]:
    """What the Variable has of some overrides, without what is over."""
    return [asdict(one) for one in made if instant(one.dates.end, zone) > now]
