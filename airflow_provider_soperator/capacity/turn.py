"""A shift's turn on a block, and what whoever goes on with the shift has to know of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime

from airflow_provider_soperator.capacity.errors import CapacityBusy
from airflow_provider_soperator.capacity.flow import World
from airflow_provider_soperator.capacity.lease import Lease, Record, Taken
from airflow_provider_soperator.logger import Logger

#: Whether a task that holds a block is still under way, as far as is known.
IsAlive = Callable[[Record], Awaitable[bool]]


class Turn:
    """The leases of all targets of a shift that have one, as if they were one."""

    def __init__(self, record: Record, leases: Sequence[Lease], log: Logger) -> None:
        self.record = record
        self._leases, self._log = leases, log
        self._told = ""

    async def take(self, is_alive: IsAlive | None) -> Taken | None:
        """Take the block, and learn what an earlier try has left; or who has it."""
        taken = await self._take_all(self.record)
        if taken and taken.record and is_alive and not await is_alive(taken.record):
            self._log.warning("The shift of %s has ended without giving the block back: it is taken over", taken)
            for lease in self._leases:
                await lease.evict(taken)
            taken = await self._take_all(self.record)
        return taken

    async def begin(self, world: World, now: datetime) -> None:
        """Write down what there is, unless an earlier try has; nobody else moves it from here on."""
        if self.record.before:
            return
        begun = replace(
            self.record,
            before={name: seen.allowed for name, seen in world.holdings.items()},
            ready={name: min(seen.ready, seen.allowed) for name, seen in world.holdings.items()},
            others=world.others,
        )
        await self.keep(begun.marked("began", now))

    async def mark(self, mark: str, now: datetime) -> None:
        """Write down when a part was over, the first time."""
        await self.keep(self.record.marked(mark, now))

    async def keep(self, record: Record) -> None:
        if record != self.record:
            for lease in self._leases:
                await lease.keep(record)
            self.record = record

    async def confirm(self) -> None:
        """Raise if the block has been taken away."""
        for lease in self._leases:
            await lease.confirm()

    async def give_back(self) -> None:
        for lease in self._leases:
            await lease.drop()

    def refuse(self, taken: Taken, block: str) -> CapacityBusy:
        """What to say to somebody who does not want to wait."""
        return CapacityBusy(
            f"{taken} is moving block {block}",
            f"wait until it is over; {_remedy(taken)}",
        )

    def tell(self, taken: Taken) -> None:
        """Say once who is waited for."""
        if str(taken) != self._told:
            self._told = str(taken)
            self._log.info("Waiting for %s, which is moving the same block; %s", taken, _remedy(taken))

    async def _take_all(self, mine: Record) -> Taken | None:
        known = []
        for lease in self._leases:
            answer = await lease.take(mine)
            if isinstance(answer, Taken):
                await self.give_back()
                return answer
            known.append(answer)
        # Of two that differ, one was not written to any more.
        self.record = max(known, key=lambda record: (bool(record.undone), len(record.marks)), default=mine)
        return None


def _remedy(taken: Taken) -> str:
    return f"if there is no such task any more: `scontrol delete ReservationName={taken.name}`"
