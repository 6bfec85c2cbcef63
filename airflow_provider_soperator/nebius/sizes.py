"""How many nodes a node group shall have: so many, or from so many to so many as an autoscaler decides."""

from __future__ import annotations

from dataclasses import dataclass

#: More than that the API takes for no node group.
MOST_NODES = 100


@dataclass(frozen=True)
class Size:
    """What a node group's spec says of its size.

    >>> print(Size(4), Size(8, least=2))
    4 nodes 2-8 nodes
    """

    most: int
    #: None for a group without an autoscaler.
    least: int | None = None

    def __str__(self) -> str:
        return f"{self.most} nodes" if self.least is None else f"{self.least}-{self.most} nodes"

    def shrunk(self, to: int) -> Size:
        """At most so many.

        >>> print(Size(8, least=2).shrunk(1))
        1-1 nodes
        """
        return Size(to, None if self.least is None else min(self.least, to))

    def grown(self, to: int, least: int) -> Size:
        """Up to so many. What an autoscaler keeps in any case a shrink may have lowered: ``least`` restores it.

        >>> print(Size(1, least=1).grown(8, least=2))
        2-8 nodes
        """
        return Size(to, None if self.least is None else min(max(self.least, least), to))
