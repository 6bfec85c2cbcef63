"""Holdings: the GPUs of a capacity block that each target holds, and how many more each may take now."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.requests import PowerDownMode

#: Units of each target, by its name.
Allocation = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Units of a target: nodes, machines or replicas.

        |---------- allowed ----------|   of one that grows; one that shrinks may hold more
        |------- held -------|promised|
        |finishing|there|arriving|
        |--- at_work ---|

    >>> Holding(allowed=3, held=1, ready=1).promised
    2
    """

    # What it has
    #: Its present size, or the size to which it may scale itself at any time.
    allowed: int
    #: Units that hold GPUs of the block: arriving, at work, or leaving.
    held: int
    #: Units that can take work, and those that an autoscaler of theirs adds once there is work.
    ready: int
    #: Units that leave, but are still at work.
    finishing: int = 0
    #: Units that are allowed until they have gone, as they were told to.
    leaving: int = 0
    #: Units that can take work and have none, and are reserved for a shift.
    idle: int = 0
    #: Nothing is arriving or leaving.
    is_settled: bool = True
    #: Causes that keep it below what it is allowed, as Slurm, Kubernetes or the cloud report them.
    problems: tuple[str, ...] = ()
    # What no wish changes
    #: Units that keep their GPUs, each with the reason; and how many of them take no work.
    stuck: Mapping[str, str] = field(default_factory=dict)
    broken: int = 0
    #: Units that stay away, each with the reason; and the number of all units, if there is one.
    away: Mapping[str, str] = field(default_factory=dict)
    size: int | None = None
    #: Its size, if others put it back to that.
    pinned: int | None = None
    #: Units beside the block, which are none of those above, and how many of them cannot take work yet.
    bought: int = 0
    to_come: int = 0

    @property
    def there(self) -> int:
        """Units that can take work now."""
        return min(self.ready, self.held - self.finishing)

    @property
    def at_work(self) -> int:
        """Units whose GPUs are of use."""
        return self.there + self.finishing

    @property
    def beside(self) -> int:
        """Units beside the block that can take work."""
        return self.bought - self.to_come

    @property
    def promised(self) -> int:
        """Units that it may still take without another command."""
        return max(0, self.allowed - self.held)

    def possible(self, units: int) -> int:
        """The nearest number of units that it can have, as far as its own units decide it."""
        if self.pinned is not None:
            return self.pinned
        most = units if self.size is None else self.size - len(self.away)
        return max(min(units, most), len(self.stuck))

    @property
    def reasons(self) -> dict[str, str]:
        """Why units stay, or stay away, by their names."""
        return {**self.stuck, **self.away}


@dataclass(frozen=True, kw_only=True)
class Release:
    """The limits within which a target may free units at this moment."""

    #: When they begin to leave. Jobs that would run past it are kept off them, where that is possible.
    leaves_at: datetime
    #: How nodes may be released now; None: only prepare.
    mode: PowerDownMode | None
    #: With ``FORCE``: jobs get this signal first, and then ``grace`` to end, before they are requeued or cancelled.
    signal: str = "TERM"
    grace: timedelta = timedelta(0)
    #: Keep work off in advance that would last longer.
    ahead: bool = True
    #: Jobs are ended now, or will be.
    ends_jobs: bool = False
    #: When they get the signal, if that is known.
    signals_at: datetime | None = None

    def takes_busy(self, now: datetime) -> bool:
        """True once units are taken with what runs there, as the grace after the signal is over."""
        return self.mode is PowerDownMode.FORCE and (not self.signals_at or now >= self.signals_at + self.grace)


@dataclass(frozen=True)
class Goal:
    """An allocation that is possible, and how many units of each target can take work then."""

    units: dict[str, int]
    ready: dict[str, int]


@dataclass(frozen=True)
class ProjectShare:
    """The part of a block that one project may have, and the targets whose machines are in that project.

    >>> print(ProjectShare("project-e00serving", frozenset({"inference"}), limit=16, usage=8))
    project-e00serving may have 16 GPUs of the block, and has 8
    """

    project: str
    targets: frozenset[str]
    limit: int
    #: GPUs of the block that the project has; None if that is unknown.
    usage: int | None

    def __str__(self) -> str:
        has = "an unknown number" if self.usage is None else self.usage
        return f"{self.project} may have {self.limit} GPUs of the block, and has {has}"


class _Left:
    """GPUs that are left of a block, and of the parts that projects may have of it, while they are given out."""

    def __init__(self, world: World, back: Allocation, if_unknown: int) -> None:
        self._gpus = world.gpus
        self._left: list[tuple[Collection[str], int]] = []
        parts = [(world.holdings.keys(), world.block.limit, world.block.usage)]
        for names, limit, usage in [*parts, *((one.targets, one.limit, one.usage) for one in world.shares)]:
            # Either may count a new machine first.
            held = sum(world.holdings[name].held * world.gpus[name] for name in names)
            free = if_unknown if usage is None else max(0, limit - max(usage, held))
            self._left.append((names, free + sum(back.get(name, 0) * world.gpus[name] for name in names)))

    def units(self, name: str) -> int:
        """The number of units of a target that there is room for."""
        return min(left for names, left in self._left if name in names) // self._gpus[name]

    def take(self, name: str, units: int) -> None:
        gpus = units * self._gpus[name]
        self._left = [(names, max(0, left - gpus) if name in names else left) for names, left in self._left]


@dataclass(frozen=True)
class World:
    """A block, and what each target holds of it, at one moment."""

    block: CapacityBlock
    holdings: Mapping[str, Holding]
    #: GPUs of one unit of each target.
    gpus: Mapping[str, int]
    #: Parts of the block that are all that the projects of some targets may have.
    shares: Sequence[ProjectShare] = ()

    def receivers(self, desired: Allocation, ready: Allocation | None = None) -> list[str]:
        """Targets below their desired size, or with fewer units ready than ``ready`` (default: all)."""
        least = desired if ready is None else ready
        seen = self.holdings.items()
        return [name for name, one in seen if one.allowed < desired[name] or one.ready < least[name]]

    @property
    def allowed(self) -> dict[str, int]:
        """The size of each target, at present or to which it may scale itself."""
        return {name: seen.allowed for name, seen in self.holdings.items()}

    @property
    def staying(self) -> dict[str, int]:
        """The size of each target once what was told to go has gone."""
        return {name: seen.allowed - seen.leaving for name, seen in self.holdings.items()}

    def most(self, limit: int | None) -> int:
        """The GPUs of the block that there are to be shared, within a limit if there is one."""
        return min(self.block.limit, limit or self.block.limit)

    @property
    def others(self) -> int | None:
        """GPUs of the block that no target holds: those of others, and of machines that have not gone yet."""
        held = sum(seen.held * self.gpus[name] for name, seen in self.holdings.items())
        return None if self.block.usage is None else self.block.usage - held

    def full(self, name: str) -> list[ProjectShare]:
        """The shares of a target's project that have no room for another unit of it."""
        has_no_room = (one for one in self.shares if one.usage is None or one.limit - one.usage < self.gpus[name])
        return [one for one in has_no_room if name in one.targets]

    def goal(self, desired: Allocation) -> Goal:
        """What is possible of an allocation without the units that may not be touched.

        GPUs that others have of the block, or machines on their way out, are not counted: they may go.
        """
        units = {name: seen.possible(desired[name]) for name, seen in self.holdings.items()}
        # What stays where it shall not be is missing elsewhere.
        fits = max(self.block.limit, sum(desired[name] * self.gpus[name] for name in units))
        for names, limit in [(units.keys(), fits), *((one.targets, one.limit) for one in self.shares)]:
            over, lacking = sum(units[name] * self.gpus[name] for name in names) - limit, dict[str, int]()
            for name in [name for name in self.receivers(desired) if name in names]:
                may_lack = max(0, units[name] - max(self.holdings[name].allowed, len(self.holdings[name].stuck)))
                lacking[name] = min(may_lack, math.ceil(max(0, over) / self.gpus[name]))
                over -= lacking[name] * self.gpus[name]
            # The last of them may be so large that there is room for smaller ones.
            for name, lacks in lacking.items():
                back = min(lacks, max(0, -over) // self.gpus[name])
                units[name] -= lacks - back
                over += back * self.gpus[name]
        ready = {name: max(0, count - self.holdings[name].broken) for name, count in units.items()}
        return Goal(units, ready)

    def possible(self, desired: Allocation) -> Goal:
        """What is possible of an allocation if others keep the GPUs that they have of the block."""
        goal = self.goal(desired)
        back = {name: max(0, seen.held - goal.units[name]) for name, seen in self.holdings.items()}
        left = _Left(self, back, if_unknown=sum(goal.units[name] * self.gpus[name] for name in goal.units))
        units, ready = {}, {}
        for name, seen in self.holdings.items():
            more = min(max(0, goal.units[name] - seen.held), left.units(name))
            units[name] = min(goal.units[name], seen.held + more)
            ready[name] = max(0, goal.ready[name] - goal.units[name] + units[name])
            left.take(name, more)
        return Goal(units, ready)

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
    may, left = {}, _Left(world, {}, if_unknown=0)
    # Promises come first, because they cannot be revoked.
    for name, seen in world.holdings.items():
        may[name] = min(seen.held, seen.allowed) + min(seen.promised, left.units(name))
        left.take(name, seen.promised)
    for name in world.receivers(desired):
        more = min(desired[name] - world.holdings[name].allowed, left.units(name))
        if more > 0:
            may[name] = world.holdings[name].allowed + more
            left.take(name, more)
    return may


def may_leave(world: World, goal: Goal, *, lingering: bool) -> dict[str, int]:
    """How far each target may be shrunk on the way back: by what is not ready, and by one unit that is at a time.

    The next one goes when nothing is on its way to take the place of the one before. ``lingering``: there are machines
    of units that have gone.
    """
    seen, units, receivers = world.holdings, goal.units, world.receivers(goal.units, goal.ready)
    least = {name: max(units[name], min(one.ready, one.allowed)) for name, one in seen.items()}
    is_moving = lingering or any(
        max(one.held, one.allowed) > least[name] if one.allowed > units[name] else not one.is_settled
        for name, one in seen.items()
    )
    needed = max((world.gpus[name] for name in receivers), default=0)
    if is_moving or world.block.free is None or (receivers and world.block.free >= needed):
        return least
    for name in [name for name in seen if least[name] > units[name]][: 1 if receivers else None]:
        fewer = math.ceil(needed / world.gpus[name]) if receivers else least[name]
        least[name] = max(units[name], least[name] - fewer)
    return least
