"""Holdings: the GPUs of a capacity block that each target has, and how many more each may take now."""

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
    """Units that a target has: nodes, machines or replicas.

    >>> Holding(allowed=3, held=1, ready=1).promised
    2
    """

    #: As many as it has been told to have, or can take by itself at any time.
    allowed: int
    #: Those whose GPUs it has taken from the block: on their way in, at work, or on their way out.
    held: int
    #: Those that can take work.
    ready: int
    #: Those that are to go, and are still at work.
    finishing: int = 0
    #: Nothing is on its way in or out.
    is_settled: bool = True
    #: Causes that keep it from what it is allowed, as Slurm, Kubernetes or the cloud give them.
    problems: tuple[str, ...] = ()

    @property
    def promised(self) -> int:
        """Units that it may still take without being told anything more."""
        return max(0, self.allowed - self.held)


@dataclass(frozen=True, kw_only=True)
class Release:
    """The limits within which a target may free units at this moment."""

    #: From when on they are wanted elsewhere. What would run past it is kept off them, where that is possible.
    wanted_at: datetime
    #: What may be done now; None: nothing but to prepare.
    mode: PowerDownMode | None
    #: With ``FORCE``: jobs in the way get this signal first, and then so much time.
    signal: str = "TERM"
    grace: timedelta = timedelta(0)
    #: Work that would last beyond that is to be kept off before.
    ahead: bool = True


@dataclass(frozen=True)
class World:
    """A block, and what each target has of it, at one moment."""

    block: CapacityBlock
    holdings: Mapping[str, Holding]
    #: GPUs of one unit of each target.
    gpus: Mapping[str, int]

    def receivers(self, desired: Allocation, ready: Allocation | None = None) -> list[str]:
        """Targets that have less than they shall have; of that so many are to be ``ready``, or all."""
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
        """GPUs of the block that none of the targets holds: of others, and of machines that are still to go."""
        return None if self.block.usage is None else self.block.usage - self.held

    def donors(self, desired: Allocation) -> list[str]:
        """Targets that have more than they shall have, or may take more."""
        return [name for name, seen in self.holdings.items() if max(seen.held, seen.allowed) > desired[name]]


def may_have(world: World, desired: Allocation) -> dict[str, int]:
    """The most units that each target may have now. All that is free is given at once, and once only.

    What a target has been allowed before counts as taken, though the cloud does not show it yet; and what the cloud
    does not know is not free.

    >>> seen = {"training": Holding(allowed=4, held=5, ready=4), "inference": Holding(allowed=1, held=0, ready=0)}
    >>> block = CapacityBlock(id="b", limit=64, usage=40)
    >>> may_have(World(block, seen, {"training": 8, "inference": 8}), {"training": 4, "inference": 4})
    {'training': 4, 'inference': 3}
    """
    left = 0
    if world.block.usage is not None:
        # The one that counts a machine first is right.
        left = max(0, world.block.limit - max(world.block.usage, world.held))
    may = {}
    # Promises come first: they cannot be taken back.
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
