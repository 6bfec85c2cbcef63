"""The desired allocation of a block: by a schedule, or as a user has typed it into a form."""

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
    """Units of each target from a moment on, and for how long, if that is known."""

    units: dict[str, int]
    at: datetime
    until: datetime | None
    why: str


class Superseded(CapacityError):
    """A newer allocation of the schedule is in force by now."""


def scheduled_allocation(schedule: CapacitySchedule, at: datetime, now: datetime) -> DesiredAllocation:
    """The allocation of a schedule at a moment; one that is past is due at once, unless a newer one is in force."""
    segment, newest = schedule.at(at), schedule.last_change(now)
    if newest is not None and newest.at > at:
        raise Superseded(f"since {newest.at:%d %b %H:%M %Z} {newest.after.name} is in force, and not {segment.name}")
    following = schedule.next_change(max(at, now))
    until = following.at if following else None
    return DesiredAllocation(dict(segment.allocation), max(at, now), until, f"{segment.name}, as scheduled")


def requested_allocation(desired: Any, targets: Sequence[Target], limit: int, at: datetime) -> DesiredAllocation:
    """The allocation that a user asks for: units, or GPUs, of each target; one that is not named gets the rest.

    >>> from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
    >>> two = [SlurmNodesTarget(name=name, nodes="worker-[0-7]") for name in ("training", "inference")]
    >>> requested_allocation({"training": "32 gpus"}, two, 64, datetime.now()).units
    {'training': 4, 'inference': 4}
    """
    said = _mapping(desired)
    names = [target.name for target in targets]
    if unknown := sorted(set(said) - set(names)):
        raise CapacityMistake(f"there is no target {' and '.join(unknown)}", f"the targets are {', '.join(names)}")
    units = {target.name: _units(said[target.name], target) for target in targets if _is_said(said.get(target.name))}
    rest = [target for target in targets if target.name not in units]
    if len(rest) > 1 or not units:
        names_left = " and ".join(target.name for target in rest)
        raise CapacityMistake(f"nothing is said of {names_left}", "all but one need a number")
    for target in rest:
        taken = sum(units[one.name] * one.gpus_per_unit for one in targets if one.name in units)
        units[target.name] = max(0, limit - taken) // target.gpus_per_unit
    return DesiredAllocation({name: units[name] for name in names}, at, None, "asked for by hand")


def is_requested(desired: Any) -> bool:
    """Tell if anything was asked for; an empty form asks for nothing."""
    return any(map(_is_said, _mapping(desired).values())) if _is_said(desired) else False


def _mapping(desired: Any) -> Mapping[str, Any]:
    if isinstance(desired, str):
        try:
            desired = json.loads(desired)
        except ValueError:
            raise CapacityMistake(f"desired={desired!r} is no JSON object") from None
    if not isinstance(desired, Mapping):
        raise CapacityMistake(f"desired={desired!r} does not say how many units each target shall have")
    return desired


def _is_said(value: Any) -> bool:
    # A template renders None as a word.
    return value is not None and str(value).strip().lower() not in ("", "none", "null")


def _units(value: Any, target: Target) -> int:
    found = _AMOUNT.fullmatch(str(value).strip())
    if not found:
        raise CapacityMistake(f"{target.name}: {value!r} is no number of {target.units}, nor of GPUs ('32 gpus')")
    number, what = int(found[1]), (found[2] or "").lower()
    if what in ("gpu", "gpus"):
        if number % target.gpus_per_unit:
            raise CapacityMistake(
                f"{target.name}: {number} GPUs cannot be had, as its {target.units} have {target.gpus_per_unit} each"
            )
        return number // target.gpus_per_unit
    if what and what not in (target.units.lower(), target.units.lower().removesuffix("s")):
        raise CapacityMistake(f"{target.name}: it has {target.units}, not {what}")
    return number
