"""The lease of a block, which one shift holds at a time, and the record of that shift."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any
from uuid import uuid4

from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.lease_store import TERM, LeaseStore, ShiftRecord, StoredLease
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.errors import CapacityBusy
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

#: Age at which a lease is over for one who has not watched it. It is more than clocks differ.
_LONG_AGO = timedelta(hours=1)
#: Time in which the machines that a holder has claimed come, or never.
_CLAIMS_LAST = timedelta(minutes=45)
#: Number of DAGs that a lease remembers.
_MOST_MOVERS = 10


class LeaseLost(CapacityBusy):
    """The shift has lost its lease of the block."""


class ShiftDisplaced(LeaseLost):
    """Another process goes on with the same shift."""


#: Tells if a task of this Airflow that holds a block is still running, as far as is known.
IsAlive = Callable[[ShiftRecord], Awaitable[bool]]
#: Removes what the shift of a key, which has ended, has left at the targets.
Forget = Callable[[str], Awaitable[None]]


class JointLease:
    """The lease of a block for one process that drives a shift, in all places that keep one."""

    def __init__(self, order: ShiftOrder, log: Logger) -> None:
        self.record = ShiftRecord(key=order.key, task=order.task, airflow=order.airflow, session=uuid4().hex[:8])
        self._log = log
        self._moves = ", ".join(f"{name} ({place})" for name, place in order.places.items())
        # Another Airflow may name another cluster alike; only the id of a node group is the same everywhere.
        self._places = {
            name: f"{order.airflow}/{place}" if "/" in place else place for name, place in order.places.items()
        }
        self._term = max(TERM, timedelta(seconds=3 * order.poll_interval))
        self.renewed_every = self._term / 3
        #: Of two who write at a time, one would write a record that is no longer right.
        self._writing = asyncio.Lock()
        #: The moment of the last look.
        self._now = datetime.now(timezone.utc)
        self._stores: Sequence[LeaseStore] = ()
        #: What this process has, by the number of the store.
        self._has: dict[int, StoredLease] = {}
        #: The version of each lease of others, by the number of its store and its name, and since when it is the same.
        self._watched: dict[tuple[int, str], tuple[str, datetime]] = {}
        #: Its own for each shift, so that two that have a place each do not swap them for ever.
        self._sequence = Random(order.key)
        #: The claims that this process has written last.
        self._claimed: Mapping[str, Any] = {}
        self._me = f"{order.task.partition('/')[0]} of Airflow {order.airflow}"
        self._told = ""
        #: True while another process goes on with the shift.
        self.is_displaced = False

    def use(self, stores: Sequence[LeaseStore]) -> None:
        """Use these stores from now on: the places of the lease, always the same ones, over the present connections."""
        # Of some alone it could not be told which they are.
        self._stores = stores if len(stores) >= len(self._has) else ()

    async def take(self, now: datetime, is_alive: IsAlive | None, forget: Forget) -> StoredLease | None:
        """Take the block and load the record of an earlier try; returns the holder if another shift has it."""
        self._now, known = now, list[ShiftRecord]()
        for number in self._sequence.sample(range(len(self._stores)), len(self._stores)):
            store = self._stores[number]
            seen = await store.read()
            theirs = self._theirs(seen)
            # All are watched from the first look on, so that they are over together.
            causes = [await self._is_over(number, one, is_alive) for one in theirs]
            if not all(causes):
                await self._withdraw()
                return theirs[causes.index("")]
            for one, cause in zip(theirs, causes, strict=True):
                self._log.warning("Taking over the block: the shift of %s %s", one, cause)
                if one.record and not one.is_mine:
                    await forget(one.record.key)
            mine = self._next(seen)
            written = await store.write(mine, now, self._term, seen)
            if written is None:
                await self._withdraw()
                # The faster one may be gone by now.
                gone = StoredLease(version="", renewed=now, name="a lease of this moment")
                return next(iter(self._theirs(await store.read())), gone)
            self._has[number] = written
            known.append(mine)
        # If two differ, the last write reached only one of them: the more advanced record is right.
        self.record = max(known, key=lambda one: (bool(one.undone), len(one.marks)), default=self.record)
        self.is_displaced = False
        return None

    def step_aside(self) -> None:
        """Leave the shift to the process that has displaced this one, and wait for its end like for another's."""
        self.is_displaced = True
        self._has.clear()

    def _theirs(self, seen: StoredLease | None) -> list[StoredLease]:
        """Of what was read, that which is held by other shifts, or by the process that has displaced this one."""
        found = (seen, *seen.others) if seen and seen.is_held else ()
        return [one for one in found if self.is_displaced or not one.is_mine]

    async def _is_over(self, number: int, seen: StoredLease, is_alive: IsAlive | None) -> str:
        """Why another's lease no longer holds, as the rest of a sentence; empty if it does.

        Like leader election in Kubernetes, this watches for a change, so that clocks may differ.
        """
        now = self._now
        version, since = self._watched.get((number, seen.name), ("", now))
        if version != seen.version:
            since = now
            self._watched[number, seen.name] = (seen.version, now)
        if now - since >= seen.term or now - seen.renewed >= max(_LONG_AGO, 2 * seen.term):
            return f"has not renewed its lease since {seen.renewed:%d %b %H:%M:%S %Z}"
        # Of the tasks of another Airflow nothing is known here.
        record = seen.record if seen.record and seen.record.airflow == self.record.airflow else None
        return "has ended without releasing it" if record and is_alive and not await is_alive(record) else ""

    def _next(self, seen: StoredLease | None) -> ShiftRecord:
        """The record of this shift after a lease: that of an earlier try, or a new one, and what former ones claim."""
        mine = self.record
        if seen is None or seen.record is None:
            return self._moving(mine)
        # What was before is of no use to a try whose targets have been renamed in the DAG file since.
        if seen.is_held and seen.is_mine and {*seen.record.before} in (set(), {*self._places}):
            return replace(seen.record, session=mine.session)
        return self._moving(replace(mine, movers=seen.record.movers, claims=seen.record.claims))

    def _foreign(self, claims: Mapping[str, Any]) -> dict[str, Any]:
        """The claims for targets that this shift does not see itself."""
        return {place: claim for place, claim in claims.items() if place not in self._places.values()}

    def _moving(self, record: ShiftRecord) -> ShiftRecord:
        """The record with what this DAG moves, and the newest of the others."""
        others = {name: what for name, what in record.movers.items() if name != self._me}
        newest = [*others.items(), (self._me, f"{self._moves}, on {self._now:%d %b %Y}")][-_MOST_MOVERS:]
        return replace(record, movers=dict(newest))

    async def begin(self, world: World, now: datetime) -> None:
        """Record the state before the shift, unless an earlier try did; from here on no other shift moves the block."""
        if self.record.before:
            return
        begun = replace(
            self.record,
            before=world.allowed,
            ready={name: min(seen.ready, seen.allowed) for name, seen in world.holdings.items()},
            others=world.others,
        )
        await self.keep(begun.marked("began", now))

    async def mark(self, mark: str, now: datetime) -> None:
        """Record the time at which a part was over, the first time only."""
        await self.keep(self.record.marked(mark, now))

    def note(self, sums: Mapping[str, float]) -> None:
        """Keep these sums; they are written with the next renewal, or with what comes before it."""
        self.record = replace(self.record, sums={name: round(value, 1) for name, value in sums.items()})

    async def claim(self, world: World, may: Mapping[str, int]) -> None:
        """Write down the GPUs that targets may take from now on, before they are told so."""
        until = (self._now + _CLAIMS_LAST).timestamp()
        claims = self._foreign(self.record.claims)
        for name, units in may.items():
            place, more = self._places[name], (units - world.holdings[name].held) * world.gpus[name]
            if more > 0:
                # What a former shift has claimed may be all but over.
                known = self._claimed.get(place)
                claims[place] = known if known and known[0] == more else [more, until]
        await self.keep(replace(self.record, claims=claims))
        self._claimed = claims

    async def keep_claims(self, world: World) -> None:
        """As the shift ends: claim what is still on its way of what was claimed, until when that was to count."""
        claims = dict(self.record.claims)
        for name, seen in world.holdings.items():
            gpus, until = claims.pop(self._places[name], (0, 0))
            left = min(gpus, (seen.allowed - seen.held) * world.gpus[name])
            # What an autoscaler may add once there is work is not on its way.
            if left > 0 and seen.ready < seen.allowed:
                claims[self._places[name]] = [left, until]
        await self.keep(replace(self.record, claims=claims))

    def counted(self, world: World) -> World:
        """The world in which what former holders have claimed elsewhere, and has not come yet, is taken."""
        if world.others is None:
            return world
        came = max(0, world.others - (world.others if self.record.others is None else self.record.others))
        claimed = sum(self._foreign(self.record.owed(self._now)).values())
        return replace(world, block=_taken(world.block, claimed - came))

    async def keep(self, record: ShiftRecord) -> bool:
        """Store the record, unless it is stored; returns once it is."""
        if record != self.record:
            async with self._writing:
                for number in range(len(self._stores)):
                    await self._write(number, record)
                self.record = record
        return True

    async def renew(self, now: datetime) -> None:
        """Raise ``LeaseLost`` if the lease is gone, and renew it in time."""
        async with self._writing:
            self._now = now
            for number in range(len(self._stores)):
                seen = await self._confirmed(number)
                # Also if this clock has been set back meanwhile.
                if abs(now - seen.renewed) >= self.renewed_every:
                    await self._write(number, self.record)

    async def _confirmed(self, number: int) -> StoredLease:
        seen = await self._stores[number].read()
        if seen is None or not seen.is_held or not seen.is_mine:
            raise self._lost(number, seen)
        if not seen.is_driven_by(self.record.session):
            raise ShiftDisplaced(
                f"another process goes on with this shift ({seen.name})", "see the log of the task's newest try"
            )
        # A write may have succeeded whose answer was lost. What others have beside it is not known to be over.
        self._has[number] = confirmed = replace(seen, others=())
        return confirmed

    async def give_back(self) -> None:
        """Give up what this process has, or, if it has never taken the lease, what any process of the shift has."""
        for store in self._stores:
            await store.free(self.record.session if self._has or self.is_displaced else None)

    async def is_anothers(self) -> bool:
        """True if another shift is at work with the block. One that only asks for it may have died."""
        found = [await store.read() for store in self._stores]
        others = [seen.record for seen in found if seen and seen.is_held and not seen.is_mine]
        return any(record is None or "began" in record.marks for record in others)

    def tell(self, holder: StoredLease) -> None:
        """Log the holder, once."""
        if str(holder) != self._told:
            self._told = str(holder)
            self._log.info("Waiting for %s, which is moving the same block; %s", holder, holder.how_to_end)

    async def notes(self, now: datetime) -> list[str]:
        """What others do with the block, as lines for a plan."""
        self._now, lines = now, list[str]()
        for store in self._stores:
            seen = await store.read()
            if seen and seen.is_held and not seen.is_mine:
                lines.append(f"{seen} is moving the block at present: this shift comes after it")
            if seen and (record := seen.record):
                if gpus := sum(self._foreign(record.owed(now)).values()):
                    lines.append(f"{gpus} GPUs of the block are claimed, which may still count as free")
                others = {name: what for name, what in record.movers.items() if name != self._me}
                lines += [f"the block is also moved by {name}: {what}" for name, what in others.items()]
        return lines

    async def _write(self, number: int, record: ShiftRecord) -> None:
        store = self._stores[number]
        written = await store.write(record, self._now, self._term, self._has.get(number))
        if written is None:
            # The change in between may be an own one, whose answer was lost.
            written = await store.write(record, self._now, self._term, await self._confirmed(number))
        if written is None:
            raise self._lost(number, None)
        self._has[number] = written

    async def _withdraw(self) -> None:
        """Free the places that were taken before one was found that another shift has."""
        for number in list(self._has):
            await self._stores[number].free(self.record.session)
            del self._has[number]

    def _lost(self, number: int, seen: StoredLease | None) -> LeaseLost:
        name = self._has[number].name if number in self._has else "a lease"
        what = f"was taken over by {seen}" if seen and seen.is_held else "was deleted"
        return LeaseLost(
            f"{name}, the lease of this shift, {what}",
            "find out by whom and why; what was moved stays where it is, and the next shift continues from there",
        )


def beside(block: CapacityBlock, seen: StoredLease | None, now: datetime) -> CapacityBlock:
    """The block for one who is no shift: what a shift has claimed of it, and does not hold yet, is taken."""
    return _taken(block, sum(seen.record.owed(now).values()) if seen and seen.record else 0)


def _taken(block: CapacityBlock, gpus: int) -> CapacityBlock:
    if block.usage is None or gpus <= 0:
        return block
    return replace(block, usage=min(max(block.limit, block.usage), block.usage + gpus))
