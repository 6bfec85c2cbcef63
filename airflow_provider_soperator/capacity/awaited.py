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

    >>> BlockAwaited(at_least=8).lacks(CapacityBlock(id="b", limit=16, usage=12), datetime.now())
    '4 of its 16 GPUs are free, and not 8'
    >>> BlockAwaited(at_least=4).lacks(CapacityBlock(id="b", limit=16, usage=12), datetime.now())
    ''
    """

    at_least: int | None = None
    #: None for any.
    state: str | None = "active"
    #: For how long from now on the limit may not be announced to fall.
    no_change_before: timedelta | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in STATES:
            raise CapacityMistake(f"state is {self.state!r}", f"a block is {', '.join(STATES)}, or None for any")
        if self.at_least is not None and self.at_least < 1:
            raise CapacityMistake(f"at_least is {self.at_least}", "leave it out, or say how many GPUs are to be free")

    def lacks(self, block: CapacityBlock, now: datetime) -> str:
        """Why the block does not fit; empty if it does. What nobody knows does not fit."""
        if self.state is not None and block.state != self.state:
            return f"it is {block.state}, and not {self.state}"
        if self.at_least is not None and block.free is None:
            return "how many GPUs are free is not known just now"
        if self.at_least is not None and block.free is not None and block.free < self.at_least:
            return f"{block.free} of its {block.limit} GPUs are free, and not {self.at_least}"
        if self.no_change_before is not None and block.next_change_at is not None:
            # A change is announced without its limit while that is not known.
            falls_to = block.next_change_to or 0
            if falls_to < block.limit and block.next_change_at < now + self.no_change_before:
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
