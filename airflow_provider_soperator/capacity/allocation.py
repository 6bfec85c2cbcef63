"""The desired allocation of a block: from a schedule, or as a user typed it into a form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.errors import CapacityError, CapacityMistake

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.schedule import CapacitySchedule
    from airflow_provider_soperator.capacity.targets.protocol import Target

_AMOUNT = re.compile(r"(\d+)(?: *(gpus?|[a-z]+))?", re.IGNORECASE)


@dataclass(frozen=True)
class DesiredAllocation:
    """Units of each target from a moment on, and until when, if that is known."""

    units: dict[str, int]
    at: datetime
    until: datetime | None
    why: str


class Superseded(CapacityError):
    """A newer allocation of the schedule is already in force."""


def scheduled_allocation(schedule: CapacitySchedule, at: datetime, now: datetime) -> DesiredAllocation:
    """The allocation of a schedule at a moment; a past one is due at once, or ``Superseded`` by a newer one."""
    segment, newest = schedule.at(at), schedule.last_change(now)
    if newest is not None and newest.at > at:
        raise Superseded(
            f"{segment.name} is superseded: {newest.after.name} is in force since {newest.at:%d %b %H:%M %Z}"
        )
    following = schedule.next_change(max(at, now))
    until = following.at if following else None
    return DesiredAllocation(dict(segment.allocation), max(at, now), until, f"{segment.name}, as scheduled")


def requested_allocation(desired: Any, targets: Sequence[Target], limit: int, at: datetime) -> DesiredAllocation:
    """The allocation that a user requests: units or GPUs of each target; one target may be left out, to get the rest.

    >>> from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
    >>> two = [SlurmNodesTarget(name=name, nodes="worker-[0-7]") for name in ("training", "inference")]
    >>> requested_allocation({"training": "32 gpus"}, two, 64, datetime.now()).units
    {'training': 4, 'inference': 4}
    """
    said = _mapping(desired)
    names = [target.name for target in targets]
    if unknown := sorted(set(said) - set(names)):
        raise CapacityMistake(f"unknown target {' and '.join(unknown)}", f"the targets are {', '.join(names)}")
    units = {target.name: _units(said[target.name], target) for target in targets if _is_said(said.get(target.name))}
    rest = [target for target in targets if target.name not in units]
    if len(rest) > 1 or not units:
        names_left = " and ".join(target.name for target in rest)
        raise CapacityMistake(f"no number for {names_left}", "give one for all targets but one")
    for target in rest:
        taken = sum(units[one.name] * one.gpus_per_unit for one in targets if one.name in units)
        units[target.name] = max(0, limit - taken) // target.gpus_per_unit
    return DesiredAllocation({name: units[name] for name in names}, at, None, "requested manually")


def is_requested(desired: Any) -> bool:
    """True if anything was requested; an empty form requests nothing."""
    return any(map(_is_said, _mapping(desired).values())) if _is_said(desired) else False


def _mapping(desired: Any) -> Mapping[str, Any]:
    if isinstance(desired, str):
        try:
            desired = json.loads(desired)
        except ValueError:
            raise CapacityMistake(f"desired must be a JSON object, got {desired!r}") from None
    if not isinstance(desired, Mapping):
        raise CapacityMistake(f"desired must map each target to its units, got {desired!r}")
    return desired


def _is_said(value: Any) -> bool:
    # A template renders None as the text "None".
    return value is not None and str(value).strip().lower() not in ("", "none", "null")


def _units(value: Any, target: Target) -> int:
    found = _AMOUNT.fullmatch(str(value).strip())
    if not found:
        raise CapacityMistake(f"{target.name}: expected a number of {target.units} or GPUs ('32 gpus'), got {value!r}")
    number, what = int(found[1]), (found[2] or "").lower()
    if what in ("gpu", "gpus"):
        if number % target.gpus_per_unit:
            raise CapacityMistake(
                f"{target.name}: {number} GPUs are not a multiple of the {target.gpus_per_unit} of its {target.units}"
            )
        return number // target.gpus_per_unit
    if what and what not in (target.units.lower(), target.units.lower().removesuffix("s")):
        raise CapacityMistake(f"{target.name}: expected {target.units} or GPUs, got {what}")
    return number
