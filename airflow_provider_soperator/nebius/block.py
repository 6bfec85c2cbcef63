"""A capacity block as it is at one moment: how many GPUs are reserved and taken, and what is about to change."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class BlockSeen:
    """What the cloud says of a block.

    >>> BlockSeen(id="capacityblockgroup-1", limit=64, usage=40).free
    24
    >>> BlockSeen(id="capacityblockgroup-1", limit=64, usage=None).free is None
    True
    """

    id: str
    #: GPUs that are reserved.
    limit: int
    #: GPUs that machines hold; None if the cloud does not know, or is changing it.
    usage: int | None
    #: In lower case: ``active``, ``allocating``, ``shutting``, ``inactive``.
    state: str = "active"
    region: str = ""
    fabric: str = ""
    platform: str = ""
    #: When the limit changes next, and to what.
    next_change_at: datetime | None = None
    next_change_to: int | None = None

    @property
    def free(self) -> int | None:
        """GPUs that can be taken; None, which is not 0, if nobody knows."""
        return None if self.usage is None else max(0, self.limit - self.usage)

    def limit_at(self, moment: datetime) -> int:
        """The limit at a moment, as far as it has been announced."""
        if self.next_change_at is not None and self.next_change_to is not None and moment >= self.next_change_at:
            return self.next_change_to
        return self.limit
