"""The lease of a block, held by one shift at a time, and the record of that shift; both are kept in Slurm.

A lease is a reservation of one node for a minute in the year 2099, which affects no job. Slurm creates it atomically,
keeps it over restarts, and shows it to everyone who wants to know why a shift waits.
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
#: The end of a lease that is requested, and of one that is held: slurmrestd shows times, but no comments.
_ASKED, _HAD = (datetime(2099, 1, 1, 0, minute, tzinfo=timezone.utc) for minute in (1, 2))
#: Bytes that Slurm's front ends keep of a comment.
_MOST = 1024


@dataclass(frozen=True, kw_only=True)
class ShiftRecord:
    """The state of a shift, from which a later try or another process continues."""

    #: Identifies the shift.
    key: str
    #: Its task, as ``dag/run/task/map index``, for people and for Airflow.
    task: str
    #: The allowed and ready units of each target when the shift began, to roll back to.
    before: dict[str, int] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)
    #: GPUs of the block that no target held then; None if that was unknown.
    others: int | None = None
    #: Why the shift is rolled back; empty if it is not.
    undone: str = ""
    #: The times at which its parts were over, in seconds since 1970.
    marks: dict[str, float] = field(default_factory=dict)

    def write(self) -> str:
        said = self._write()
        if len(said) <= _MOST or not self.undone:
            return said
        # One character can take six bytes.
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
    """Another shift, which holds the block."""

    name: str
    record: ShiftRecord | None

    def __str__(self) -> str:
        by = f"task {self.record.task}" if self.record else "a task that this connection cannot identify"
        return f"{by} (reservation {self.name})"


class LeaseLost(CapacityBusy):
    """The shift has lost its lease of the block."""


class Lease:
    """The right of one shift to move the GPUs of a block that Slurm nodes hold.

    Two-phase: create ours, list all, and back off if another lease exists. So two shifts never hold one block; if two
    come at the same moment, both may back off and retry.
    """

    def __init__(self, ask: Ask, block: str, key: str, node: str, user: str) -> None:
        self._ask = ask
        self._prefix = f"{_PREFIX}{_short(block, 8)}-"
        self._name = self._prefix + _short(key, 12)
        self._block = block
        self._node, self._user = node, user

    async def take(self, record: ShiftRecord) -> ShiftRecord | LeaseHolder:
        """Take the block: returns the record of this shift (the stored one, if there is one), or the present holder."""
        found = await self._list()
        mine = found.get(self._name)
        if mine and mine.end == _HAD:
            return ShiftRecord.read(mine.comment) or record
        if not found:
            request = CreateReservation(
                name=self._name,
                nodes=(self._node,),
                start=_FAR,
                end=_ASKED,
                users=(self._user,),
                comment=record.write(),
            )
            # It may have been created, and the answer lost.
            with suppress(ReservationConflict):
                await self._ask(request)
            found = await self._list()
        others = {name: one for name, one in found.items() if name != self._name}
        if others:
            if self._name in found:
                await self.drop()
            name, other = min(others.items())
            return LeaseHolder(name, ShiftRecord.read(other.comment))
        # The record of an earlier try that did not get the lease is obsolete.
        await self._ask(UpdateReservation(name=self._name, end=_HAD, comment=record.write()))
        return record

    async def keep(self, record: ShiftRecord) -> None:
        """Store the record."""
        try:
            await self._ask(UpdateReservation(name=self._name, comment=record.write()))
        except UnknownReservation as error:
            raise self._lost() from error

    async def confirm(self) -> None:
        """Raise ``LeaseLost`` if the lease is gone."""
        if self._name not in await self._list():
            raise self._lost()

    async def drop(self) -> None:
        await self._ask(DeleteReservation(self._name))

    async def evict(self, other: LeaseHolder) -> None:
        """Delete the lease of a shift that has ended, and its handover reservation."""
        if other.record:
            await self._ask(DeleteReservation(handover_name(self._block, other.record.key)))
        await self._ask(DeleteReservation(other.name))

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"reservation {self._name}, the lease of this shift on block {self._block}, was deleted",
            "find out who deleted it; what was moved stays where it is, and the next shift continues from there",
        )

    async def _list(self) -> dict[str, Reservation]:
        return {one.name: one for one in await self._ask(ListReservations()) if one.name.startswith(self._prefix)}


def _short(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


#: Tells if the task that holds a block is still running, as far as is known.
IsAlive = Callable[[ShiftRecord], Awaitable[bool]]


class JointLease:
    """The leases of all targets of a shift, used as one."""

    def __init__(self, record: ShiftRecord, leases: Sequence[Lease], log: Logger) -> None:
        self.record = record
        self._leases, self._log = leases, log
        self._told = ""

    async def take(self, is_alive: IsAlive | None) -> LeaseHolder | None:
        """Take the block and load the record of an earlier try; returns the holder if another shift has it."""
        holder = await self._take_all(self.record)
        if holder and holder.record and is_alive and not await is_alive(holder.record):
            self._log.warning("Taking over the block: the shift of %s has ended without releasing it", holder)
            for lease in self._leases:
                await lease.evict(holder)
            holder = await self._take_all(self.record)
        return holder

    async def begin(self, world: World, now: datetime) -> None:
        """Record the state before the shift, unless an earlier try did; from here on no other shift moves the block."""
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
        """Record the time at which a part was over, the first time only."""
        await self.keep(self.record.marked(mark, now))

    async def keep(self, record: ShiftRecord) -> None:
        if record != self.record:
            for lease in self._leases:
                await lease.keep(record)
            self.record = record

    async def confirm(self) -> None:
        """Raise ``LeaseLost`` if any lease is gone."""
        for lease in self._leases:
            await lease.confirm()

    async def give_back(self) -> None:
        for lease in self._leases:
            await lease.drop()

    def refuse(self, holder: LeaseHolder, block: str) -> CapacityBusy:
        """The error for a shift that does not wait."""
        return CapacityBusy(
            f"{holder} is moving block {block}",
            f"wait until it ends; {_remedy(holder)}",
        )

    def tell(self, holder: LeaseHolder) -> None:
        """Log the holder, once."""
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
        # If two differ, the last write reached only one of them: the more advanced record is right.
        self.record = max(known, key=lambda record: (bool(record.undone), len(record.marks)), default=mine)
        return None


def _remedy(holder: LeaseHolder) -> str:
    return f"if that task no longer exists: `scontrol delete ReservationName={holder.name}`"
