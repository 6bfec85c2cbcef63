"""The lease of a block, which only one shift has at a time, and the record of that shift: both kept in Slurm.

A lease is a reservation of one node for a minute in the year 2099, which keeps no job from anything. Slurm makes such a
thing or does not, keeps it over restarts, and shows it to all who wonder why a shift waits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone

from airflow_provider_soperator.capacity.handover import Ask, handover_name
from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.errors import CapacityBusy
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.errors import ReservationConflict, UnknownReservation
from airflow_provider_soperator.slurm.requests import (
    CreateReservation,
    DeleteReservation,
    ListReservations,
    UpdateReservation,
)

_PREFIX = "airflow-shift-"
_FAR = datetime(2099, 1, 1, tzinfo=timezone.utc)
#: Until when a lease lasts that is asked for, and one that is had: slurmrestd shows no comments, and times it does.
_ASKED, _HAD = (datetime(2099, 1, 1, 0, minute, tzinfo=timezone.utc) for minute in (1, 2))
#: As many bytes as Slurm's front ends keep of a comment.
_MOST = 1024


@dataclass(frozen=True, kw_only=True)
class ShiftRecord:
    """The state of a shift that a later try, or another process, goes on from."""

    #: Tells it from all others.
    key: str
    #: The task it is, as ``dag/run/task/map index``, for people and for Airflow.
    task: str
    #: What each target was allowed when it began, and how many of these were ready: what there is to go back to.
    before: dict[str, int] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)
    #: GPUs of the block that none of the targets had then; None if that was unknown.
    others: int | None = None
    #: Why it goes back; empty while it does not.
    undone: str = ""
    #: When which part of it was over, in seconds since 1970.
    marks: dict[str, float] = field(default_factory=dict)

    def write(self) -> str:
        said = self._write()
        if len(said) <= _MOST or not self.undone:
            return said
        # A letter can take six bytes.
        return replace(self, undone=self.undone[: max(1, len(self.undone) - (len(said) - _MOST))])._write()

    def _write(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def read(cls, said: str) -> ShiftRecord | None:
        """Read a comment; None over slurmrestd, which does not show comments."""
        try:
            return cls(**json.loads(said))
        except (TypeError, ValueError):
            return None

    def marked(self, mark: str, when: datetime) -> ShiftRecord:
        return self if mark in self.marks else replace(self, marks=self.marks | {mark: round(when.timestamp(), 1)})


@dataclass(frozen=True)
class LeaseHolder:
    """Another shift that has the block."""

    name: str
    record: ShiftRecord | None

    def __str__(self) -> str:
        by = f"task {self.record.task}" if self.record else "a task that cannot be told by this connection"
        return f"{by} (reservation {self.name})"


class LeaseLost(CapacityBusy):
    """A block has been taken away from the shift that was moving it."""


class Lease:
    """The right of one shift to move the GPUs of a block that Slurm's nodes have.

    It is taken in two steps: make ours, then list all, and back off if there is another. So never two have a block; of
    two that came at the same moment both may back off, and come again.
    """

    def __init__(self, ask: Ask, block: str, key: str, node: str, user: str) -> None:
        self._ask = ask
        self._prefix = f"{_PREFIX}{_short(block, 8)}-"
        self._name = self._prefix + _short(key, 12)
        self._block = block
        self._node, self._user = node, user

    async def take(self, record: ShiftRecord) -> ShiftRecord | LeaseHolder:
        """Take the block: the record of this shift (the kept one, if it had the block before), or who has it."""
        found = await self._list()
        mine = found.get(self._name)
        if mine and mine.end == _HAD:
            return ShiftRecord.read(mine.comment) or record
        if not found:
            await self._create(record)
            found = await self._list()
        others = {name: one for name, one in found.items() if name != self._name}
        if others:
            if self._name in found:
                await self.drop()
            name, other = min(others.items())
            return LeaseHolder(name, ShiftRecord.read(other.comment))
        # What an earlier try that came no further has said in it is past.
        await self._ask(UpdateReservation(name=self._name, end=_HAD, comment=record.write()))
        return record

    async def keep(self, record: ShiftRecord) -> None:
        """Write down how far it has come."""
        try:
            await self._ask(UpdateReservation(name=self._name, comment=record.write()))
        except UnknownReservation as error:
            raise self._lost() from error

    async def confirm(self) -> None:
        """Raise ``LeaseLost`` if the block has been taken away."""
        if self._name not in await self._list():
            raise self._lost()

    async def drop(self) -> None:
        await self._ask(DeleteReservation(self._name))

    async def evict(self, other: LeaseHolder) -> None:
        """Take the block from a shift that is no more, with all that it has reserved."""
        if other.record:
            await self._ask(DeleteReservation(handover_name(self._block, other.record.key)))
        await self._ask(DeleteReservation(other.name))

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"reservation {self._name}, with which this shift held block {self._block}, has been deleted",
            "see who did it; what was moved stays where it is, and the next shift goes on from there",
        )

    async def _list(self) -> dict[str, Reservation]:
        return {one.name: one for one in await self._ask(ListReservations()) if one.name.startswith(self._prefix)}

    async def _create(self, record: ShiftRecord) -> None:
        # It may have been made, and the answer lost.
        with suppress(ReservationConflict):
            await self._ask(
                CreateReservation(
                    name=self._name,
                    nodes=(self._node,),
                    start=_FAR,
                    end=_ASKED,
                    users=(self._user,),
                    comment=record.write(),
                )
            )


def _short(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


#: Whether a task that holds a block is still under way, as far as is known.
IsAlive = Callable[[ShiftRecord], Awaitable[bool]]


class JointLease:
    """The leases of all targets of a shift that have one, as if they were one."""

    def __init__(self, record: ShiftRecord, leases: Sequence[Lease], log: Logger) -> None:
        self.record = record
        self._leases, self._log = leases, log
        self._told = ""

    async def take(self, is_alive: IsAlive | None) -> LeaseHolder | None:
        """Take the block, and learn what an earlier try has left; or who has it."""
        holder = await self._take_all(self.record)
        if holder and holder.record and is_alive and not await is_alive(holder.record):
            self._log.warning("The shift of %s has ended without giving the block back: it is taken over", holder)
            for lease in self._leases:
                await lease.evict(holder)
            holder = await self._take_all(self.record)
        return holder

    async def begin(self, world: World, now: datetime) -> None:
        """Write down what there is, unless an earlier try has; no other shift moves it from here on."""
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

    async def keep(self, record: ShiftRecord) -> None:
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

    def refuse(self, holder: LeaseHolder, block: str) -> CapacityBusy:
        """The error for a shift that does not wait."""
        return CapacityBusy(
            f"{holder} is moving block {block}",
            f"wait until it is over; {_remedy(holder)}",
        )

    def tell(self, holder: LeaseHolder) -> None:
        """Say once who is waited for."""
        if str(holder) != self._told:
            self._told = str(holder)
            self._log.info("Waiting for %s, which is moving the same block; %s", holder, _remedy(holder))

    async def _take_all(self, mine: ShiftRecord) -> LeaseHolder | None:
        known = []
        for lease in self._leases:
            answer = await lease.take(mine)
            if isinstance(answer, LeaseHolder):
                await self.give_back()
                return answer
            known.append(answer)
        # Of two that differ, one was not written to any more.
        self.record = max(known, key=lambda record: (bool(record.undone), len(record.marks)), default=mine)
        return None


def _remedy(holder: LeaseHolder) -> str:
    return f"if there is no such task any more: `scontrol delete ReservationName={holder.name}`"
