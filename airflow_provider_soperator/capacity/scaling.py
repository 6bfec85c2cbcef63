"""One target brought to a number of units, step by step, until it has just these and they can work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_provider_soperator.capacity.errors import CapacityError
from airflow_provider_soperator.capacity.flow import World, may_have
from airflow_provider_soperator.capacity.holding import Holding, Release
from airflow_provider_soperator.capacity.targets.base import Session, Target
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.block import BlockSeen
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.requests import PowerDownMode
from airflow_provider_soperator.transports.transport_errors import TransportError

ReadBlock = Callable[[], Awaitable[BlockSeen]]

#: Where nobody has named a block, none sets a limit.
_NO_BLOCK = BlockSeen(id="", limit=2**31, usage=None)


@dataclass(frozen=True)
class Scaling:
    """A number of units, and how to get there.

    With a block the target grows as far as the block has GPUs free, and no GPU more is asked for.
    """

    target: Target
    units: int
    mode: PowerDownMode
    #: In seconds since 1970.
    deadline: float
    poll_interval: float
    log: Logger
    read_block: ReadBlock | None = None

    async def run(self, session: Session) -> Holding:
        """What it has in the end; raises ``CapacityError`` if it has not got there in its time."""
        await session.check(self.units, await self.read_block() if self.read_block else _NO_BLOCK)
        try:
            seen = await self._bring(session)
        except CapacityError:
            await session.finish()
            raise
        await session.finish()
        return seen

    async def _bring(self, session: Session) -> Holding:
        said = last = ""
        while True:
            try:
                seen = await self._step(session)
                last = self._describe(seen)
            except (TransportError, SlurmError) as error:
                # It has been checked, so what does not work now has worked before.
                seen, last = None, str(error)
            if seen and self._is_there(seen):
                return seen
            if last != said:
                self.log.info("%s: %s", self.target.name, last)
                said = last
            left = self.deadline - time.time()
            if left <= 0:
                raise CapacityError(
                    f"{self.target.name} is to have {self.units} {self.target.units}, and its time is over: {last}",
                    "see what it waits for; it is left as it is, and may still get there by itself",
                )
            await asyncio.sleep(min(self.poll_interval, left))

    async def _step(self, session: Session) -> Holding:
        seen = await session.look()
        if max(seen.held, seen.allowed) > self.units:
            now = datetime.now(timezone.utc)
            await session.shrink(self.units, Release(wanted_at=now, mode=self.mode))
        elif min(seen.ready, seen.allowed) < self.units:
            await session.grow(await self._may_have(seen))
        return seen

    async def _may_have(self, seen: Holding) -> int:
        if self.read_block is None:
            return self.units
        name = self.target.name
        world = World(await self.read_block(), {name: seen}, {name: self.target.gpus_per_unit})
        return may_have(world, {name: self.units})[name]

    def _is_there(self, seen: Holding) -> bool:
        return seen.is_settled and seen.ready >= self.units and max(seen.held, seen.allowed) <= self.units

    def _describe(self, seen: Holding) -> str:
        leaving = f", {seen.finishing} are on their way out" if seen.finishing else ""
        why = f" ({'; '.join(seen.problems)})" if seen.problems else ""
        return f"{seen.ready} of {self.units} {self.target.units} are ready, {seen.held} hold GPUs{leaving}{why}"
