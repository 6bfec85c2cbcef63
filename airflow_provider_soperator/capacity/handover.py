"""The reservation that empties nodes for a handover: Slurm starts no job on them that would run into it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Protocol, TypeVar

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.errors import ReservationConflict
from airflow_provider_soperator.slurm.requests import (
    CreateReservation,
    DeleteReservation,
    ListReservations,
    Request,
    UpdateReservation,
)

T = TypeVar("T")

#: Beginnings of the names of our reservations: handovers and leases.
OUR_RESERVATIONS = ("airflow-handover-", "airflow-shift-")
#: The reservation ends by itself if no process is left to delete it.
_LONGEST = timedelta(days=2)
#: By which a time in Slurm, in whole seconds, may differ from what it was told.
_ROUNDING = timedelta(seconds=1)


class Ask(Protocol):
    """Sends a request to Slurm."""

    def __call__(self, request: Request[T], /) -> Awaitable[T]: ...


def handover_name(block: str, key: str) -> str:
    """The name of the reservation of one shift on one block."""
    return f"{OUR_RESERVATIONS[0]}{hashlib.sha256(f'{block} {key}'.encode()).hexdigest()[:12]}"


class HandoverReservation:
    """The nodes that one shift takes from Slurm, reserved from the moment at which they leave until they are idle.

    No job starts on them then, as on drained nodes; but other nodes can still take their place.
    """

    def __init__(self, ask: Ask, block: str, key: str, user: str, among: Sequence[str]) -> None:
        self._ask = ask
        self._name, self._user = handover_name(block, key), user
        #: Other nodes in the reservation belong to another target of the same shift, in the same Slurm.
        self._among = frozenset(among)

    async def see(self, until: datetime) -> tuple[frozenset[str], frozenset[str], dict[str, str]]:
        """The nodes that are reserved for this shift, and for any; and those of others, until then, in words."""
        now, mine, ours, others = datetime.now(timezone.utc), frozenset[str](), frozenset[str](), dict[str, str]()
        for one in await self._ask(ListReservations()):
            if one.name.startswith(OUR_RESERVATIONS[0]):
                ours |= {*hostlist.expand(one.nodelist)}
            if one.name == self._name:
                mine = frozenset(hostlist.expand(one.nodelist))
            is_within = (one.start is None or one.start < until) and (one.end is None or one.end > now)
            if is_within and not one.name.startswith(OUR_RESERVATIONS):
                when = f" from {one.start:%d %b %Y %H:%M} UTC on" if one.start and one.start > now else ""
                others |= dict.fromkeys(hostlist.expand(one.nodelist), f"is reserved as {one.name}{when}")
        return mine, ours, others

    async def reserve(self, nodes: Sequence[str], start: datetime, why: str) -> bool:
        """Reserve exactly these of the target's nodes from a moment on; True if there are new ones among them."""
        found = await self._find()
        reserved = hostlist.expand(found.nodelist) if found else []
        wanted = tuple(hostlist.expand(hostlist.fold([*nodes, *(set(reserved) - self._among)])))
        if not wanted:
            if found:
                await self.end()
            return False
        # Slurm rejects a reservation that begins in the past.
        start = max(start, datetime.now(timezone.utc))
        if found and found.start and found.start > start + _ROUNDING:
            # The nodes are to go sooner than they were, as a person has asked for that.
            await self.end()
            found = None
        if found is None:
            try:
                await self._ask(
                    CreateReservation(
                        name=self._name,
                        nodes=wanted,
                        start=start,
                        end=start + _LONGEST,
                        users=(self._user,),
                        comment=why,
                    )
                )
            except ReservationConflict:
                # It was created, but the answer was lost.
                if await self._find() is None:
                    raise
            return True
        if set(reserved) == set(wanted):
            return False
        await self._ask(UpdateReservation(name=self._name, nodes=wanted))
        return not set(wanted) <= set(reserved)

    async def end(self) -> None:
        await self._ask(DeleteReservation(self._name))

    async def _find(self) -> Reservation | None:
        return next((one for one in await self._ask(ListReservations()) if one.name == self._name), None)
