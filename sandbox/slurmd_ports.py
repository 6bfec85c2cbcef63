"""Which ports the nodes of each NodeSet have: all are on one address, and a slurmd keeps its port while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from sandbox.settings import EPHEMERAL_SET, MAX_STATIC, MAX_WORKERS, STATIC_SET, Ports

#: Ports that a NodeSet of another name gets at the least, as it may grow.
_AT_LEAST = 16


class SlurmdPorts:
    """A range of ports for each NodeSet, from the first time that it is asked for until it is forgotten."""

    def __init__(self, ports: Ports) -> None:
        self._all = ports.slurmds
        first = self._all.start
        #: First port and how many, by NodeSet.
        self.ranges: dict[str, tuple[int, int]] = {
            EPHEMERAL_SET: (first, MAX_WORKERS),
            STATIC_SET: (first + MAX_WORKERS, MAX_STATIC),
        }

    def first(self, nodeset: str) -> int:
        return self._range(nodeset, _AT_LEAST)[0]

    def most(self, nodeset: str, wanted: int) -> int:
        """As many nodes of a NodeSet as are wanted and can be had."""
        return min(wanted, self._range(nodeset, wanted)[1])

    def load(self, ranges: Mapping[str, list[int]]) -> None:
        self.ranges = {nodeset: (first, count) for nodeset, (first, count) in ranges.items()}

    def forget_all_but(self, nodesets: set[str]) -> None:
        """Those of NodeSets that are gone can be had by others."""
        for nodeset in self.ranges.keys() - nodesets - {EPHEMERAL_SET, STATIC_SET}:
            del self.ranges[nodeset]

    def _range(self, nodeset: str, wanted: int) -> tuple[int, int]:
        if nodeset not in self.ranges:
            taken = sorted(self.ranges.values())
            ends = [self._all.start, *(first + count for first, count in taken)]
            starts = [*(first for first, _ in taken), self._all.stop]
            gaps = [(end, start - end) for end, start in zip(ends, starts, strict=True)]
            # The first gap that is large enough, else the largest.
            fits = (gap for gap in gaps if gap[1] >= max(wanted, _AT_LEAST))
            first, room = next(fits, max(gaps, key=lambda gap: gap[1]))
            self.ranges[nodeset] = (first, min(room, max(wanted, _AT_LEAST)))
        return self.ranges[nodeset]
