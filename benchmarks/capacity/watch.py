"""What passes while nodes are handed over, looked at twice a second from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.capacity.shape import GPUS, NODES
from benchmarks.capacity.stage import Stage

_INTERVAL = 0.5


@dataclass(frozen=True)
class Look:
    """Who had how many nodes at one moment."""

    at: float
    usable: int
    idle: int
    ready: int

    @property
    def lost(self) -> int:
        """Nodes and machines that are nobody's."""
        return NODES - self.usable - self.ready


@dataclass
class Watch:
    """All looks, and what they add up to."""

    looks: list[Look] = field(default_factory=list)

    def limbo(self) -> float:
        """GPU-seconds that neither Slurm nor inference could use."""
        return _sum(self.looks, lambda look: look.lost)

    def idled(self, since: float, until: float) -> float:
        """GPU-seconds that Slurm could use, and did not, with a queue that was never empty."""
        return _sum([look for look in self.looks if since <= look.at <= until], lambda look: look.idle)

    def had(self, machines: int) -> float | None:
        """When inference first had so many machines that were ready."""
        return next((look.at for look in self.looks if look.ready >= machines), None)


def _sum(looks: Sequence[Look], nodes: Callable[[Look], int]) -> float:
    return sum(GPUS * nodes(before) * (after.at - before.at) for before, after in pairwise(looks))


@contextmanager
def watching(stage: Stage) -> Iterator[Watch]:
    """Look on from another thread until the end."""
    watch, over = Watch(), threading.Event()

    def look_on() -> None:
        while not over.is_set():
            watch.looks.append(look(stage))
            over.wait(max(0.0, watch.looks[-1].at + _INTERVAL - time.time()))

    thread = threading.Thread(target=look_on)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
        watch.looks.append(look(stage))


def look(stage: Stage) -> Look:
    at, nodes = time.time(), stage.nodes()
    return Look(at, sum(node.is_usable for node in nodes), sum(node.is_idle for node in nodes), stage.ready())
