"""Holdings: the GPUs of a capacity block that each target holds, and how many more each may take now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.requests import PowerDownMode

#: Units of each target, by its name.
Allocation = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Units of a target: nodes, machines or replicas.

    >>> Holding(allowed=3, held=1, ready=1).promised
    2
    """

    #: Its present size, or the size to which it may scale itself at any time.
    allowed: int
    #: Units that hold GPUs of the block: arriving, at work, or leaving.
    held: int
    #: Units that can take work.
    ready: int
    #: Units that leave, but are still at work.
    finishing: int = 0
    #: Nothing is arriving or leaving.
    is_settled: bool = True
    #: Causes that keep it below what it is allowed, as Slurm, Kubernetes or the cloud report them.
    problems: tuple[str, ...] = ()

    @property
    def promised(self) -> int:
        """Units that it may still take without another command."""
        return max(0, self.allowed - self.held)


@dataclass(frozen=True, kw_only=True)
class Release:
    """The limits within which a target may free units at this moment."""

    #: When they are wanted elsewhere. Jobs that would run past it are kept off them, where that is possible.
    wanted_at: datetime
    #: How nodes may be released now; None: only prepare.
    mode: PowerDownMode | None
    #: With ``FORCE``: jobs get this signal first, and then ``grace`` to end.
    signal: str = "TERM"
    grace: timedelta = timedelta(0)
    #: Keep work off in advance that would last longer.
    ahead: bool = True


@dataclass(frozen=True)
class World:
    """A block, and what each target holds of it, at one moment."""

    block: CapacityBlock
    holdings: Mapping[str, Holding]
    #: GPUs of one unit of each target.
    gpus: Mapping[str, int]

    def receivers(self, desired: Allocation, ready: Allocation | None = None) -> list[str]:
        """Targets below their desired size, or with fewer units ready than ``ready`` (default: all)."""
        desired_ready = desired if ready is None else ready
        return [
            name
            for name, seen in self.holdings.items()
            if seen.allowed < desired[name] or seen.ready < desired_ready[name]
        ]

    @property
    def held(self) -> int:
        """GPUs of the block that the targets hold."""
        return sum(seen.held * self.gpus[name] for name, seen in self.holdings.items())

    @property
    def others(self) -> int | None:
        """GPUs of the block that no target holds: those of others, and of machines that have not gone yet."""
        return None if self.block.usage is None else self.block.usage - self.held

    def donors(self, desired: Allocation) -> list[str]:
        """Targets that hold, or may take, more than desired."""
        return [name for name, seen in self.holdings.items() if max(seen.held, seen.allowed) > desired[name]]


def may_have(world: World, desired: Allocation) -> dict[str, int]:
    """The highest number of units that each target may have now. Free GPUs are given at once, and only once.

    Units that a target was allowed before count as taken, even if the cloud does not show them yet; with an unknown
    usage nothing is free.

    >>> seen = {"training": Holding(allowed=4, held=5, ready=4), "inference": Holding(allowed=1, held=0, ready=0)}
    >>> block = CapacityBlock(id="b", limit=64, usage=40)
    >>> may_have(World(block, seen, {"training": 8, "inference": 8}), {"training": 4, "inference": 4})
    {'training': 4, 'inference': 3}
    """
    left = 0
    if world.block.usage is not None:
        # Either may count a new machine first.
        left = max(0, world.block.limit - max(world.block.usage, world.held))
    may = {}
    # Promises come first, because they cannot be revoked.
    for name, seen in world.holdings.items():
        kept = min(seen.promised, left // world.gpus[name])
        may[name] = min(seen.held, seen.allowed) + kept
        left = max(0, left - seen.promised * world.gpus[name])
    for name in world.receivers(desired):
        more = min(desired[name] - world.holdings[name].allowed, left // world.gpus[name])
        if more > 0:
            may[name] = world.holdings[name].allowed + more
            left -= more * world.gpus[name]
    return may
