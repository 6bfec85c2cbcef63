"""How far each target may grow at this moment, so that nobody ever asks for a GPU that is not free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_soperator.capacity.holding import Holding
from airflow_provider_soperator.nebius.block import BlockSeen

#: Units of each target, by its name.
Allocation = Mapping[str, int]


@dataclass(frozen=True)
class World:
    """All that is to be known before anything is moved."""

    block: BlockSeen
    holdings: Mapping[str, Holding]
    #: GPUs of one unit of each target.
    gpus: Mapping[str, int]

    def receivers(self, goal: Allocation, ready: Allocation | None = None) -> list[str]:
        """Those that do not have yet what they shall have; of that so many are to be ``ready``, or all."""
        wanted = goal if ready is None else ready
        return [name for name, seen in self.holdings.items() if seen.allowed < goal[name] or seen.ready < wanted[name]]

    @property
    def held(self) -> int:
        """GPUs of the block that the targets hold."""
        return sum(seen.held * self.gpus[name] for name, seen in self.holdings.items())

    @property
    def others(self) -> int | None:
        """GPUs of the block that none of the targets holds: of others, and of machines that are still to go."""
        return None if self.block.usage is None else self.block.usage - self.held

    def donors(self, goal: Allocation) -> list[str]:
        """Those that have more than they shall have, or may take more."""
        return [name for name, seen in self.holdings.items() if max(seen.held, seen.allowed) > goal[name]]


def may_have(world: World, goal: Allocation) -> dict[str, int]:
    """Up to how many units each target may have now. Whatever is free is given at once, and once only.

    What a target has been allowed before counts as taken, though the cloud does not show it yet; and what the cloud
    does not know is not free.

    >>> seen = {"training": Holding(allowed=4, held=5, ready=4), "inference": Holding(allowed=1, held=0, ready=0)}
    >>> block = BlockSeen(id="b", limit=64, usage=40)
    >>> may_have(World(block, seen, {"training": 8, "inference": 8}), {"training": 4, "inference": 4})
    {'training': 4, 'inference': 3}
    """
    left = 0
    if world.block.usage is not None:
        # Whoever counts a machine first is right.
        left = max(0, world.block.limit - max(world.block.usage, world.held))
    may = {}
    # Promises come first, whoever they were made to: they cannot be taken back.
    for name, seen in world.holdings.items():
        kept = min(seen.promised, left // world.gpus[name])
        may[name] = min(seen.held, seen.allowed) + kept
        left = max(0, left - seen.promised * world.gpus[name])
    for name in world.receivers(goal):
        more = min(goal[name] - world.holdings[name].allowed, left // world.gpus[name])
        if more > 0:
            may[name] = world.holdings[name].allowed + more
            left -= more * world.gpus[name]
    return may
