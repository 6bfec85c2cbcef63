"""What somebody waits for in a capacity block: so many GPUs free, a state, and a limit that stays."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

STATES = ("allocating", "active", "shutting", "inactive")


@dataclass(frozen=True, kw_only=True)
class BlockAwaited:
    """A block fits if all that is said here is so.

    >>> BlockAwaited(min_free_gpus=8).lacks(CapacityBlock(id="b", limit=16, usage=12), datetime.now())
    '4 of its 16 GPUs are free, and not 8'
    >>> BlockAwaited(min_free_gpus=4).lacks(CapacityBlock(id="b", limit=16, usage=12), datetime.now())
    ''
    """

    min_free_gpus: int | None = None
    #: None for any.
    target_state: str | None = "active"
    #: For how long from now on the limit may not be announced to fall.
    stable_for: timedelta | None = None

    def __post_init__(self) -> None:
        if self.target_state is not None and self.target_state not in STATES:
            raise CapacityMistake(
                f"target_state is {self.target_state!r}", f"a block is {', '.join(STATES)}, or None for any"
            )
        if self.min_free_gpus is not None and self.min_free_gpus < 1:
            raise CapacityMistake(
                f"min_free_gpus must be >= 1, got {self.min_free_gpus}", "leave it out if no GPU needs to be free"
            )

    def lacks(self, block: CapacityBlock, now: datetime) -> str:
        """Why the block does not fit; empty if it does. What nobody knows does not fit."""
        if self.target_state is not None and block.state != self.target_state:
            return f"it is {block.state}, and not {self.target_state}"
        if self.min_free_gpus is not None and block.free is None:
            return "how many GPUs are free is not known just now"
        if self.min_free_gpus is not None and block.free is not None and block.free < self.min_free_gpus:
            return f"{block.free} of its {block.limit} GPUs are free, and not {self.min_free_gpus}"
        if self.stable_for is not None and block.next_change_at is not None:
            # A change is announced without its limit while that is not known.
            falls_to = block.next_change_to or 0
            if falls_to < block.limit and block.next_change_at < now + self.stable_for:
                when = block.next_change_at.strftime("%Y-%m-%d %H:%M %Z")
                return f"its limit falls from {block.limit} to {falls_to} GPUs at {when}"
        return ""


def told(block: CapacityBlock) -> dict[str, Any]:
    """A block in JSON, as tasks return it."""
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
