"""Conditions to wait for on a capacity block: free GPUs, a state, and a limit that does not fall."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

STATES = ("allocating", "active", "shutting", "inactive")


@dataclass(frozen=True, kw_only=True)
class BlockAwaited:
    """Conditions that a block has to meet, all of them.

    >>> BlockAwaited(min_free_gpus=8).lacks(CapacityBlock(id="b", limit=16, usage=12), datetime.now())
    '4 of its 16 GPUs are free, expected 8'
    >>> BlockAwaited(min_free_gpus=4).lacks(CapacityBlock(id="b", limit=16, usage=12), datetime.now())
    ''
    """

    min_free_gpus: int | None = None
    #: None for any.
    target_state: str | None = "active"
    #: The period from now in which no fall of the limit may be announced.
    stable_for: timedelta | None = None

    def __post_init__(self) -> None:
        if self.target_state is not None and self.target_state not in STATES:
            raise CapacityMistake(
                f"unknown target_state {self.target_state!r}", f"use one of {', '.join(STATES)}, or None for any"
            )
        if self.min_free_gpus is not None and self.min_free_gpus < 1:
            raise CapacityMistake(
                f"min_free_gpus must be >= 1, got {self.min_free_gpus}", "omit it if no GPUs have to be free"
            )

    def lacks(self, block: CapacityBlock, now: datetime) -> str:
        """The condition that the block does not meet; empty if it meets all. An unknown value does not meet any."""
        if self.target_state is not None and block.state != self.target_state:
            return f"it is {block.state}, expected {self.target_state}"
        if self.min_free_gpus is not None and block.free is None:
            return "the number of free GPUs is unknown at present"
        if self.min_free_gpus is not None and block.free is not None and block.free < self.min_free_gpus:
            return f"{block.free} of its {block.limit} GPUs are free, expected {self.min_free_gpus}"
        if self.stable_for is not None and block.next_change_at is not None:
            # A change may be announced before its limit is known.
            falls_to = block.next_change_to or 0
            if falls_to < block.limit and block.next_change_at < now + self.stable_for:
                when = block.next_change_at.strftime("%Y-%m-%d %H:%M %Z")
                return f"its limit falls from {block.limit} to {falls_to} GPUs at {when}"
        return ""


def told(block: CapacityBlock) -> dict[str, Any]:
    """A block as JSON, as tasks return it."""
    return {
        "id": block.id,
        "state": block.state,
        "limit": block.limit,
        "usage": block.usage,
        "free": block.free,
        "region": block.region,
        "fabric": block.fabric,
        "platform": block.platform,
        "next_change_at": block.next_change_at.isoformat() if block.next_change_at else None,
        "next_change_to": block.next_change_to,
    }
