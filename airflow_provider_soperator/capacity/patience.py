"""How long each part of a shift may take: one that makes no progress for longer fails, and says what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_soperator.capacity.errors import CapacityError
from airflow_provider_soperator.capacity.flow import Allocation, World
from airflow_provider_soperator.logger import Logger


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long to wait for the next unit in each part of a shift."""

    #: Until one more unit is given up, from when its turn has come: jobs may have to end first.
    release: timedelta = timedelta(hours=2)
    #: Until the GPUs of what was given up are free in the block: machines go minutes after their nodes.
    free: timedelta = timedelta(minutes=30)
    #: Until one more unit is ready where it was wanted.
    ready: timedelta = timedelta(minutes=45)
    #: Until a cluster or a cloud that does not answer does so again.
    out_of_reach: timedelta = timedelta(hours=1)


class PartTookTooLong(CapacityError):
    """A part of a shift has made no progress for as long as it may."""


class Patience:
    """Watches over the parts of a shift."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._part: tuple[Any, ...] = ()
        self._since: datetime | None = None
        self._out_of_reach: datetime | None = None

    def see(
        self, world: World, goal: Allocation, now: datetime, *, started: bool, ready: Allocation | None = None
    ) -> None:
        """Look at how far it has come; raises ``PartTookTooLong``."""
        part, limit, what = self._waiting_for(world, goal, ready)
        if part != self._part or self._since is None or self._out_of_reach or not started:
            self._part, self._since = part, now
        elif now - self._since > limit:
            problems = [problem for seen in world.holdings.values() for problem in seen.problems]
            said = f" ({'; '.join(problems)})" if problems else ""
            raise PartTookTooLong(f"{what} after {limit}{said}")

    def wait_out(self, error: Exception, now: datetime, log: Logger) -> None:
        """Nothing could be seen or done; raises ``PartTookTooLong`` when that has been so for too long."""
        if self._out_of_reach is None:
            self._out_of_reach = now
            log.warning("Nothing can be done at present, and what was begun goes on by itself: %s", error)
        elif now - self._out_of_reach > self._timeouts.out_of_reach:
            raise PartTookTooLong(f"nothing could be done for {self._timeouts.out_of_reach}: {error}")

    def worked(self) -> None:
        """All that was to be done could be. What can be looked at may yet take no orders, so no less will do."""
        self._out_of_reach = None

    def _waiting_for(
        self, world: World, goal: Allocation, wanted: Allocation | None
    ) -> tuple[tuple[Any, ...], timedelta, str]:
        donors, receivers = world.donors(goal), world.receivers(goal, wanted)
        ready = tuple(seen.ready for name, seen in world.holdings.items() if name in receivers)
        promised = [name for name in receivers if world.holdings[name].allowed >= goal[name]]
        if donors:
            names = " and ".join(donors)
            left = tuple(max(world.holdings[name].held, world.holdings[name].allowed) for name in donors)
            return ("release", left, ready), self._timeouts.release, f"{names} still has more than it shall have"
        short = [name for name in receivers if world.block.free is None or world.block.free < world.gpus[name]]
        if short and not promised:
            free = "nobody knows how many GPUs of the block are free"
            if world.block.free is not None:
                free = f"only {world.block.free} GPUs of the block are free"
            for_whom = " and ".join(short)
            what = f"{free}, too few for {for_whom}: have the machines gone (does their group scale down?)"
            return ("free", world.block.usage, ready), self._timeouts.free, what
        if receivers:
            return ("ready", ready), self._timeouts.ready, f"{' and '.join(receivers)} is not ready"
        return ("free", world.block.usage), self._timeouts.free, "the GPUs that were given up are not free in the block"
