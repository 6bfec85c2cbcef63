"""What one way answers and what Slurm's own commands answer to the same question about the same cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any


def differences(one: Any, other: Any, unknown: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
    """The fields in which two records differ, but for those that the way cannot know."""
    names = [field.name for field in dataclasses.fields(one) if field.compare and field.name not in unknown]
    return {
        name: (getattr(one, name), getattr(other, name)) for name in names if getattr(one, name) != getattr(other, name)
    }


def all_differences(
    ones: Iterable[Any], others: Iterable[Any], key: str, unknown: Collection[str] = ()
) -> dict[Any, Any]:
    """The same for many records, which have a field of their own; what only one side has is a difference too."""
    left, right = ({getattr(record, key): record for record in records} for records in (ones, others))
    found: dict[Any, Any] = dict.fromkeys(left.keys() ^ right.keys(), "only one has it")
    for name in left.keys() & right.keys():
        if fields := differences(left[name], right[name], unknown):
            found[name] = fields
    return found
