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

    >>> BlockAwaited(at_least=8).lacks(CapacityBlock(id="b", limit=16, usage=12), datetime.now())
    '4 of its 16 GPUs are free, expected 8'
    >>> BlockAwaited(at_least=4).lacks(CapacityBlock(id="b", limit=16, usage=12), datetime.now())
    ''
    """

    at_least: int | None = None
    #: None for any.
    state: str | None = "active"
    #: The period from now in which no fall of the limit may be announced.
    no_change_before: timedelta | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in STATES:
            raise CapacityMistake(f"unknown state {self.state!r}", f"use one of {', '.join(STATES)}, or None for any")
        if self.at_least is not None and self.at_least < 1:
            raise CapacityMistake(f"at_least must be >= 1, got {self.at_least}", "omit it if no GPUs have to be free")

    def lacks(self, block: CapacityBlock, now: datetime) -> str:
        """The condition that the block does not meet; empty if it meets all. An unknown value does not meet any."""
        if self.state is not None and block.state != self.state:
            return f"it is {block.state}, expected {self.state}"
        if self.at_least is not None and block.free is None:
            return "the number of free GPUs is unknown at present"
        if self.at_least is not None and block.free is not None and block.free < self.at_least:
            return f"{block.free} of its {block.limit} GPUs are free, expected {self.at_least}"
        if self.no_change_before is not None and block.next_change_at is not None:
            # A change may be announced before its limit is known.
            falls_to = block.next_change_to or 0
            if falls_to < block.limit and block.next_change_at < now + self.no_change_before:
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
