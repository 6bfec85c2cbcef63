"""A lease kept in Slurm, for those who have no other place in common.

It is a reservation of one node for some minutes that begins 64 years after the last renewal: it affects no job, it
survives restarts, and its times are seen also over slurmrestd, which does not show comments.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import datetime, timedelta, timezone

from airflow_provider_soperator.capacity.handover import OUR_RESERVATIONS, Ask
from airflow_provider_soperator.capacity.lease_store import LeaseStore, ShiftRecord, StoredLease
from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.errors import ReservationConflict, UnknownReservation
from airflow_provider_soperator.slurm.requests import (
    CreateReservation,
    DeleteReservation,
    ListReservations,
    UpdateReservation,
)

_, _PREFIX = OUR_RESERVATIONS
_KIND = "reservation "
_AHEAD = timedelta(days=64 * 365.25)
#: The length of a reservation that only asks for the block.
_ASKED = timedelta(minutes=1)
#: Bytes that Slurm's front ends keep of a comment.
_MOST = 1024


class ReservationLease(LeaseStore):
    """The lease of a block in one Slurm.

    Slurm has no conditional change. So this asks first, with a reservation of its own, and holds the block once it has
    seen that there is no other: of two who ask at one moment, the one with the smaller name stays.
    """

    def __init__(self, ask: Ask, block: str, key: str, node: str, user: str) -> None:
        self._ask = ask
        self._prefix = f"{_PREFIX}{_short(block, 8)}-"
        self._name = self._prefix + _short(key, 12)
        self._node, self._user = node, user

    async def read(self) -> StoredLease | None:
        found = await self._list()
        return next((one for one in found if one.term > _ASKED), next((one for one in found if not one.is_mine), None))

    async def write(
        self, record: ShiftRecord, now: datetime, term: timedelta, over: StoredLease | None
    ) -> StoredLease | None:
        start, said = now + _AHEAD, record.write(_MOST)
        is_mine = over is not None and over.is_mine
        if not is_mine and not await self._may_have(start, said, over):
            return None
        try:
            await self._ask(UpdateReservation(name=self._name, start=start, end=start + term, comment=said))
        except UnknownReservation:
            return None
        is_late = over is not None and is_mine and now - over.renewed >= over.term
        if is_late and [one.is_mine for one in await self._list()] != [True]:
            # It was over, and another shift that has seen that takes it.
            await self._ask(DeleteReservation(self._name))
            return None
        return self._stored(Reservation(name=self._name, start=start, end=start + term, comment=said))

    async def _may_have(self, start: datetime, said: str, over: StoredLease | None) -> bool:
        """Ask for the block; True if no other shift holds it, or asks for it, once that which is over is deleted."""
        nodes, users, end = (self._node,), (self._user,), start + _ASKED
        # It may have been created, and the answer lost.
        with suppress(ReservationConflict):
            await self._ask(
                CreateReservation(name=self._name, nodes=nodes, users=users, start=start, end=end, comment=said)
            )
        found = [one for one in await self._list() if not one.is_mine]
        # What has been renewed since is not over.
        others = [one for one in found if over is None or one.version != over.version]
        if over and others != found:
            await self._ask(DeleteReservation(over.name.removeprefix(_KIND)))
        if any(one.term > _ASKED or one.name < _KIND + self._name for one in others):
            await self._ask(DeleteReservation(self._name))
        return not others

    async def free(self, session: str | None) -> None:
        if any(one.is_mine and one.is_driven_by(session) for one in await self._list()):
            await self._ask(DeleteReservation(self._name))

    async def _list(self) -> list[StoredLease]:
        found = [one for one in await self._ask(ListReservations()) if one.name.startswith(self._prefix)]
        return [self._stored(one) for one in sorted(found, key=lambda one: one.name)]

    def _stored(self, one: Reservation) -> StoredLease:
        start = one.start or datetime.max.replace(tzinfo=timezone.utc)
        return StoredLease(
            version=f"{one.name} {start.timestamp():.0f}",
            renewed=start - _AHEAD,
            term=(one.end or start) - start,
            is_mine=one.name == self._name,
            record=ShiftRecord.read(one.comment),
            name=f"{_KIND}{one.name}",
            remedy=f"scontrol delete ReservationName={one.name}",
        )


def _short(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
