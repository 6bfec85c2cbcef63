"""One shift on a block at a time, and what the next try of a shift has to know of it: both kept in Slurm.

A lease is a reservation of one node for a minute in the year 2099, which keeps no job from anything. Slurm makes such a
thing or does not, keeps it over restarts, and shows it to everybody who wonders why a shift waits.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone

from airflow_provider_soperator.capacity.asking import Ask
from airflow_provider_soperator.capacity.errors import CapacityBusy
from airflow_provider_soperator.capacity.handover import handover_name
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
class Record:
    """What is known of a shift wherever it is gone on with."""

    #: Tells it from all others.
    key: str
    #: The task it is, as ``dag/run/task/map index``, for people and for Airflow.
    task: str
    #: What each target was allowed when it began, and how many of these were ready: what there is to go back to.
    before: dict[str, int] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)
    #: GPUs of the block that none of the targets had then; None if nobody knew.
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
    def read(cls, said: str) -> Record | None:
        """What a comment says; None over slurmrestd, which does not show comments."""
        try:
            return cls(**json.loads(said))
        except (TypeError, ValueError):
            return None

    def marked(self, mark: str, when: datetime) -> Record:
        return self if mark in self.marks else replace(self, marks=self.marks | {mark: round(when.timestamp(), 1)})


@dataclass(frozen=True)
class Taken:
    """A block that somebody else holds."""

    name: str
    record: Record | None

    def __str__(self) -> str:
        by = f"task {self.record.task}" if self.record else "a task that cannot be told by this connection"
        return f"{by} (reservation {self.name})"


class LeaseLost(CapacityBusy):
    """Somebody has taken a block away from the shift that was moving it."""


class Lease:
    """The right of one shift to move the GPUs of a block that Slurm's nodes have.

    It is asked for, and had once nobody else's is seen beside it; whoever sees another's withdraws. So never two have a
    block; of two who came at the same moment both may go, and come again.
    """

    def __init__(self, ask: Ask, block: str, key: str, node: str, user: str) -> None:
        self._ask = ask
        self._prefix = f"{_PREFIX}{_short(block, 8)}-"
        self._name = self._prefix + _short(key, 12)
        self._block = block
        self._node, self._user = node, user

    async def take(self, record: Record) -> Record | Taken:
        """What is known of this shift if it has the block now (its own words, if it had it before); else who has it."""
        found = await self._list()
        mine = found.get(self._name)
        if mine and mine.end == _HAD:
            return Record.read(mine.comment) or record
        if not found:
            await self._create(record)
            found = await self._list()
        others = {name: one for name, one in found.items() if name != self._name}
        if others:
            if self._name in found:
                await self.drop()
            name, other = min(others.items())
            return Taken(name, Record.read(other.comment))
        # What an earlier try that came no further has said in it is past.
        await self._ask(UpdateReservation(name=self._name, end=_HAD, comment=record.write()))
        return record

    async def keep(self, record: Record) -> None:
        """Write down how far it has come."""
        try:
            await self._ask(UpdateReservation(name=self._name, comment=record.write()))
        except UnknownReservation as error:
            raise self._lost() from error

    async def confirm(self) -> None:
        """Raise ``LeaseLost`` if somebody has taken the block away."""
        if self._name not in await self._list():
            raise self._lost()

    async def drop(self) -> None:
        await self._ask(DeleteReservation(self._name))

    async def evict(self, other: Taken) -> None:
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

    async def _create(self, record: Record) -> None:
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
