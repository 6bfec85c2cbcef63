"""Reservations of nodes that leave, until they are off and drained; and of a block, as the lease of shifts."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Protocol, TypeVar

from airflow_provider_soperator.capacity.lease_store import LeaseStore, ShiftRecord, StoredLease
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.errors import ReservationConflict, UnknownNode, UnknownReservation
from airflow_provider_soperator.slurm.requests import (
    CreateReservation,
    DeleteReservation,
    ListNodes,
    ListReservations,
    Request,
    UpdateReservation,
)

T = TypeVar("T")

#: Beginnings of the names of our reservations: handovers, power downs and leases.
_HANDOVER, _POWER_DOWN, _LEASE = "airflow-handover-", "airflow-power-down-", "airflow-shift-"
OUR_RESERVATIONS = (_HANDOVER, _POWER_DOWN, _LEASE)
#: The reservation ends by itself if no process is left to delete it.
_LONGEST = timedelta(days=2)
#: By which a time in Slurm, in whole seconds, may differ from what it was told.
_ROUNDING = timedelta(seconds=1)
_KIND = "reservation "
_AHEAD = timedelta(days=64 * 365.25)
_NEVER = datetime.max.replace(tzinfo=timezone.utc)
#: The length of a reservation that only asks for the block.
_ASKED = timedelta(minutes=1)
#: Bytes that Slurm's front ends keep of a comment.
_MOST = 1024


class Ask(Protocol):
    """Sends a request to Slurm."""

    def __call__(self, request: Request[T], /) -> Awaitable[T]: ...


def handover_name(block: str, key: str) -> str:
    """The name of the reservation of one shift on one block."""
    return _HANDOVER + _short(f"{block} {key}", 12)


def power_down_name(nodes: str) -> str:
    """The name of the reservation of nodes that one owner powers down, to stay so."""
    return _POWER_DOWN + _short(nodes, 12)


def is_lapsed(one: Reservation, now: datetime) -> bool:
    """True for the lease of a block that has not been renewed: its shift is at work no more."""
    if not one.name.startswith(_LEASE) or one.start is None or one.end is None:
        return False
    return now - (one.start - _AHEAD) > one.end - one.start


class LeaveReservation:
    """Nodes that a shift or a task powers down, reserved from when they are to leave until they are off and drained.

    No job starts on them then, as on drained nodes; but other nodes can still take their place.
    """

    def __init__(self, ask: Ask, name: str, user: str, among: Iterable[str], airflow: str = "") -> None:
        self._ask, self._name, self._user = ask, name, user
        #: Another Airflow may have a DAG of the same name.
        self._of = f" of Airflow {airflow}" if airflow else ""
        #: Other nodes in the reservation belong to another target of the same shift, in the same Slurm.
        self._among = frozenset(among)

    async def see(self, until: datetime) -> tuple[frozenset[str], frozenset[str], dict[str, str]]:
        """The nodes that it has, and those of any shift; and those of others, until then, in words."""
        now, mine, ours, others = datetime.now(timezone.utc), frozenset[str](), frozenset[str](), dict[str, str]()
        for one in await self._ask(ListReservations()):
            nodes = frozenset(hostlist.expand(one.nodelist))
            if one.name == self._name:
                mine = nodes
            if one.name.startswith(_HANDOVER):
                ours |= nodes
            is_within = (one.start is None or one.start < until) and (one.end is None or one.end > now)
            if is_within and not one.name.startswith(OUR_RESERVATIONS):
                when = f" from {one.start:%d %b %Y %H:%M} UTC on" if one.start and one.start > now else ""
                others |= dict.fromkeys(nodes, f"is reserved as {one.name}{when}")
        return mine, ours, others

    async def reserve(
        self, nodes: Collection[str], start: datetime, why: str, until: datetime | None = None
    ) -> frozenset[str]:
        """Reserve exactly these of its nodes from a moment on, and return those that were not."""
        found = await self._find()
        reserved = set(hostlist.expand(found.nodelist) if found else ())
        wanted = tuple(hostlist.expand(hostlist.fold([*nodes, *(reserved - self._among)])))
        if not wanted:
            if found:
                await self.end()
            return frozenset()
        # Slurm rejects a reservation that begins in the past.
        start = max(start, datetime.now(timezone.utc))
        if found and nodes and found.start and found.start > start + _ROUNDING:
            # The nodes are to go sooner than they were, as a person has asked for that.
            await self.end()
            found = None
        if found is None:
            end, users = max(start + _LONGEST, until or start), (self._user,)
            why += self._of
            asked = CreateReservation(name=self._name, nodes=wanted, users=users, start=start, end=end, comment=why)
            try:
                await self._ask(asked)
            except ReservationConflict:
                # It was created, but the answer was lost.
                if await self._find() is None:
                    raise
            return frozenset(nodes)
        if reserved != set(wanted):
            await self._ask(UpdateReservation(name=self._name, nodes=wanted))
        return frozenset(nodes) - reserved

    async def end(self) -> None:
        await self._ask(DeleteReservation(self._name))

    async def _find(self) -> Reservation | None:
        return next((one for one in await self._ask(ListReservations()) if one.name == self._name), None)


class ReservationLease(LeaseStore):
    """The lease of a block in one Slurm, for those who have no other place in common.

    It is a reservation of one node for some minutes that begins 64 years after the last renewal: it affects no job, it
    survives restarts, and its times are seen also over slurmrestd, which does not show comments.

    Slurm has no conditional change. So this asks first, with a reservation of its own, and holds the block once it has
    seen that there is no other: of two who ask at one moment, the one with the smaller name stays.
    """

    def __init__(self, ask: Ask, block: str, key: str, nodes: tuple[str, ...], user: str) -> None:
        self._ask, self._key = ask, key
        self._prefix = f"{_LEASE}{_short(block, 8)}-"
        # Ends as the name of the shift's handover does, which has to go where no comment tells the key.
        self._mine = self._prefix + handover_name(block, key).removeprefix(_HANDOVER)
        self._nodes, self._user = nodes, user

    async def read(self) -> StoredLease | None:
        found = [one for one in await self._list() if not one.is_mine or one.term > _ASKED]
        found.sort(key=lambda one: (one.is_mine, one.term > _ASKED, one.renewed), reverse=True)
        others = tuple(one for one in found[1:] if not one.is_mine)
        return replace(found[0], others=others) if found else None

    async def write(
        self, record: ShiftRecord, now: datetime, term: timedelta, over: StoredLease | None
    ) -> StoredLease | None:
        start, said = now + _AHEAD, record.write(_MOST)
        if over and over.is_mine and over.is_driven_by(record.session) and now - over.renewed < over.term:
            return await self._renew(_name(over), start, term, said)
        # Never the name of one that was over: whoever has seen that may delete it, however late.
        name = f"{self._mine}-{_short(f'{record.session} {start}', 8)}"
        former = await self._ask_for(name, start, said, over)
        written = None if former is None else await self._renew(name, start, term, said)
        # Each step may take so long that another shift finds this one to be over.
        if former is None or written is None or not await self._is_beside(name, former):
            return None
        for one in former:
            if one.record is None and not one.is_mine:
                shift, _, _ = _name(one).removeprefix(self._prefix).partition("-")
                await self._ask(DeleteReservation(_HANDOVER + shift))
            await self._ask(DeleteReservation(_name(one)))
        return written if not former or await self._is_beside(name, []) else None

    async def _renew(self, name: str, start: datetime, term: timedelta, said: str) -> StoredLease | None:
        try:
            await self._ask(UpdateReservation(name=name, start=start, end=start + term, comment=said))
        except UnknownReservation:
            return None
        return self._stored(Reservation(name=name, start=start, end=start + term, comment=said))

    async def _is_beside(self, name: str, former: list[StoredLease]) -> bool:
        """True if there is nothing but the reservation and former ones; gives it up otherwise."""
        found = {_name(one) for one in await self._list()}
        if name in found <= {name, *map(_name, former)}:
            return True
        await self._ask(DeleteReservation(name))
        return False

    async def _ask_for(
        self, name: str, start: datetime, said: str, over: StoredLease | None
    ) -> list[StoredLease] | None:
        """Ask for the block; returns what is over or was this shift's, or None if another shift is before it."""
        request = CreateReservation(
            name=name, nodes=self._nodes[:1], users=(self._user,), start=start, end=start + _ASKED, comment=said
        )
        # It may have been created, and the answer lost.
        with suppress(ReservationConflict):
            try:
                await self._ask(request)
            except UnknownNode:
                # The NodeSet of the first is gone.
                there = {node.name for node in await self._ask(ListNodes())}
                await self._ask(replace(request, nodes=tuple(name for name in self._nodes if name in there)[:1]))
        found = [one for one in await self._list() if _name(one) != name]
        # What has been renewed since is not over.
        gone = {one.version for one in (over, *over.others)} if over else set()
        ahead = [one for one in found if not one.is_mine and one.version not in gone]
        if any(one.term > _ASKED or _name(one) < name for one in ahead):
            await self._ask(DeleteReservation(name))
        return None if ahead else found

    async def free(self, session: str | None) -> None:
        for one in await self._list():
            if one.is_mine and one.is_driven_by(session):
                await self._ask(DeleteReservation(_name(one)))

    async def _list(self) -> list[StoredLease]:
        found = [one for one in await self._ask(ListReservations()) if one.name.startswith(self._prefix)]
        return [self._stored(one) for one in sorted(found, key=lambda one: one.name)]

    def _stored(self, one: Reservation) -> StoredLease:
        start, record = one.start or _NEVER, ShiftRecord.read(one.comment)
        # The name alone tells it over slurmrestd; by the comment it is known under a name of another version, too.
        is_mine = one.name.startswith(self._mine) or (record is not None and record.key == self._key)
        return StoredLease(
            version=f"{one.name} {start.timestamp():.0f}",
            renewed=start - _AHEAD,
            term=(one.end or start) - start,
            is_mine=is_mine,
            record=record,
            name=f"{_KIND}{one.name}",
            remedy=f"scontrol delete ReservationName={one.name}",
        )


def _name(one: StoredLease) -> str:
    return one.name.removeprefix(_KIND)


def _short(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
