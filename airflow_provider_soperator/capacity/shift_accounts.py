"""What a shift costs: sums over its observations, what is counted at its end, and the report of both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from async_timeout import timeout

from airflow_provider_soperator.capacity.figures import Figures, Meter
from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.target_machines import TargetMachines
from airflow_provider_soperator.capacity.targets.protocol import Session
from airflow_provider_soperator.errors import CapacityError, ConnectionMistake
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.transports.transport_errors import TransportError

#: Seconds in which a shift that has failed may find its last figures.
_LAST_LOOK = 60.0


class ShiftAccounts:
    """The accounts of one shift, in one process."""

    def __init__(self, order: ShiftOrder, machines: TargetMachines) -> None:
        self._order, self._machines = order, machines
        self._gpus = {target.name: target.gpus_per_unit for target in order.targets}
        self._meter = Meter(self._gpus)
        self._figures: Figures | None = None

    def resume(self, record: ShiftRecord) -> None:
        """Continue with what other processes have summed up."""
        self._meter = Meter(self._gpus, record.sums)

    def see(self, world: World, record: ShiftRecord, now: datetime) -> Mapping[str, float]:
        """Note an observation; returns the sums so far."""
        due = record.before if record.undone else self._order.desired if now >= self._order.leaves_at else {}
        self._meter.see(world, now, due)
        return self._meter.sums

    async def settle(self, sessions: Mapping[str, Session], record: ShiftRecord, now: datetime) -> Figures:
        """The figures of a shift that is over."""
        losses = [await session.losses() for session in sessions.values()]
        bought = await self._machines.bought(sessions)
        self._figures = self._meter.figures(record.marks, self._order.wanted_at, now, losses, bought)
        return self._figures

    async def report(
        self, state: str, record: ShiftRecord, sessions: Callable[[], Awaitable[Mapping[str, Session]]]
    ) -> dict[str, Any]:
        """The figures of a shift that has ended in this state, as JSON, as far as they can be had."""
        now = datetime.now(timezone.utc)
        figures = self._figures
        if figures is None:
            figures = self._meter.figures(record.marks, self._order.wanted_at, now)
            with suppress(SlurmError, TransportError, CapacityError, ConnectionMistake, asyncio.TimeoutError):
                async with timeout(_LAST_LOOK):
                    figures = await self.settle(await sessions(), record, now)
        return {"state": state, "at": now.isoformat(), **figures.report(), "figures": figures.describe()}
