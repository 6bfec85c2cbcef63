"""The reservation that empties nodes for a handover: Slurm keeps jobs off them that would run into it."""

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

#: It ends by itself if no process is left to end it.
_LONGEST = timedelta(days=2)


class Ask(Protocol):
    """Puts questions to a Slurm."""

    def __call__(self, request: Request[T], /) -> Awaitable[T]: ...


def handover_name(block: str, key: str) -> str:
    """The reservation of one shift on one block."""
    return f"airflow-handover-{hashlib.sha256(f'{block} {key}'.encode()).hexdigest()[:12]}"


class HandoverReservation:
    """The nodes that one shift takes from Slurm, reserved from the moment at which they are to go."""

    def __init__(self, ask: Ask, block: str, key: str, user: str, among: Sequence[str]) -> None:
        self._ask = ask
        self._name, self._user = handover_name(block, key), user
        #: Other nodes in the reservation are those of another target of the same shift, in the same Slurm.
        self._among = frozenset(among)

    async def nodes(self) -> tuple[str, ...]:
        """The nodes that are reserved by now."""
        found = await self._find()
        return tuple(hostlist.expand(found.nodelist)) if found else ()

    async def reserve(self, nodes: Sequence[str], start: datetime, why: str) -> bool:
        """Reserve these nodes, and no others of theirs, from a moment on; answers whether anything had to be done."""
        found = await self._find()
        reserved = hostlist.expand(found.nodelist) if found else []
        wanted = tuple(hostlist.expand(hostlist.fold([*nodes, *(set(reserved) - self._among)])))
        if found is None:
            # Slurm refuses one that begins in the past.
            start = max(start, datetime.now(timezone.utc))
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
                # It was made, and the answer lost.
                if await self._find() is None:
                    raise
            return True
        if tuple(reserved) == wanted:
            return False
        await self._ask(UpdateReservation(name=self._name, nodes=wanted))
        return True

    async def end(self) -> None:
        await self._ask(DeleteReservation(self._name))

    async def _find(self) -> Reservation | None:
        return next((one for one in await self._ask(ListReservations()) if one.name == self._name), None)
