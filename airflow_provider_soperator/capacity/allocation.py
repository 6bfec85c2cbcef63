"""Allocations: units that each target is to have, as numbers or ranges, and the goal within these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_provider_soperator.errors import CapacityMistake, name_remedy

#: What one target is to have: a number of units, or a range with ``min`` and ``max``.
Units = int | Mapping[str, int]


def checked_allocation(allocation: object, whose: str) -> dict[str, Units]:
    """An allocation, checked: whole numbers of units, or ranges of them, by target."""
    if not isinstance(allocation, Mapping) or not allocation:
        raise CapacityMistake(
            f"{whose}: expected units by target, got {allocation!r}", 'write {"training": 8, "inference": 0}'
        )
    for target, units in allocation.items():
        is_range = isinstance(units, Mapping)
        for number in units.values() if is_range else [units]:
            if not isinstance(target, str) or not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise CapacityMistake(f"{whose}: units of {target!r} must be a whole number >= 0, got {number!r}")
        if is_range and (set(units) != {"min", "max"} or units["max"] < units["min"]):
            raise CapacityMistake(
                f"{whose}: the range of {target!r} must have min <= max, got {units!r}", 'write {"min": 2, "max": 6}'
            )
    return {target: dict(units) if isinstance(units, Mapping) else units for target, units in allocation.items()}


def refuse_unknown_targets(said: Iterable[object], targets: Sequence[str], problem: str = "unknown target") -> None:
    if unknown := sorted(map(str, {*said} - {*targets})):
        remedy = name_remedy(unknown[0], targets, f"the targets are {', '.join(targets)}")
        raise CapacityMistake(f"{problem} {' and '.join(unknown)}", remedy)


def bounds_of(units: Units) -> tuple[int, int]:
    """The fewest and the most units."""
    return (units, units) if isinstance(units, int) else (units["min"], units["max"])


def least_gpus(allocation: Mapping[str, Units], gpus: Mapping[str, int]) -> dict[str, int]:
    """The fewest GPUs of each target, with the GPUs of one unit of each."""
    return {name: bounds_of(units)[0] * gpus[name] for name, units in allocation.items()}


def units_text(allocation: Mapping[str, Units]) -> str:
    """An allocation as text: ``training 2 to 6, inference 2``."""
    return ", ".join(f"{name} {' to '.join(map(str, sorted({*bounds_of(one)})))}" for name, one in allocation.items())


def counted(number: int, units: str) -> str:
    """
    >>> counted(1, "nodes"), counted(4, "nodes")
    ('1 node', '4 nodes')
    """
    return f"{number} {one_of(units) if number == 1 else units}"


def one_of(units: str) -> str:
    return units.removesuffix("s")


def is_within(goal: Mapping[str, int], wished: Mapping[str, Units]) -> bool:
    """True if a goal is what is wished for."""
    bounds = {target: bounds_of(units) for target, units in wished.items()}
    return goal.keys() == bounds.keys() and all(low <= goal[name] <= high for name, (low, high) in bounds.items())


def goal_of(wished: Mapping[str, Units], has: Mapping[str, int], gpus: Mapping[str, int], limit: int) -> dict[str, int]:
    """Units of each target: in a range as many as it has, as far as the block of ``limit`` GPUs has room for all."""
    bounds = {target: bounds_of(units) for target, units in wished.items()}
    goal = {target: min(max(has[target], low), high) for target, (low, high) in bounds.items()}
    while (over := sum(units * gpus[target] for target, units in goal.items()) - limit) > 0:
        spare = {target: (goal[target] - low) * gpus[target] for target, (low, _) in bounds.items()}
        # The target with most above its minimum gives first.
        giver = max(spare, key=spare.__getitem__)
        if not spare[giver]:
            raise CapacityMistake(
                f"{units_text(wished)} needs {limit + over} GPUs at least, but the block has {limit}",
                "wish for less, or extend the block",
            )
        goal[giver] -= 1
    return goal
