"""A shift that is ordered: what it sees of the world, if it can be carried out, and its plan. It moves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_soperator.capacity.connections import ShiftConnections
from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.lease import JointLease
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.shift_plan import ShiftPlan, plan
from airflow_provider_soperator.capacity.targets.protocol import Clients, Session
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

if TYPE_CHECKING:
    from typing_extensions import Self

#: Reads a block from the cloud.
BlockReader = Callable[[], Awaitable[CapacityBlock]]


class OrderedShift:
    """An order, and the connections over which it is looked at."""

    def __init__(self, order: ShiftOrder, block: BlockReader, connections: ShiftConnections, log: Logger) -> None:
        self._order, self._block, self._connections, self._log = order, block, connections, log
        self._gpus = {target.name: target.gpus_per_unit for target in order.targets}
        self._lease = JointLease(order, log)

    @classmethod
    @asynccontextmanager
    async def open(cls, order: ShiftOrder, clients: Clients, log: Logger) -> AsyncIterator[Self]:
        """A shift, with its sessions closed at the end."""
        connections = ShiftConnections(order, clients, log)
        try:
            yield cls(order, partial(clients.block, order.nebius_conn_id, order.block), connections, log)
        finally:
            await connections.close()

    async def _connect(self) -> None:
        if not self._sessions:
            await self._connections.open()
            self._lease.use(self._connections.stores)

    @property
    def _sessions(self) -> Mapping[str, Session]:
        return self._connections.sessions

    async def look(self) -> World:
        """Read the present holdings of all targets."""
        await self._connect()
        seen = await asyncio.gather(*(session.look() for session in self._sessions.values()))
        # The block last: it then accounts for all that a target was seen to hold.
        shares = await self._connections.machines.shares(self._sessions)
        return World(await self._block(), dict(zip(self._sessions, seen, strict=True)), self._gpus, shares)

    async def check(self) -> World:
        """Return the present world, or raise ``CapacityMistake`` if the order could never be carried out."""
        await self._connect()
        block = await self._block()
        self._order.check_block(block, datetime.now(timezone.utc))
        for name, session in self._sessions.items():
            await session.check(self._order.desired[name], block)
        await self._connections.machines.check(self._sessions, self._gpus, block)
        return await self.look()

    async def plan(self, world: World) -> ShiftPlan:
        """The plan in words, for approval."""
        order, units, now = self._order, world.possible(self._order.desired).units, datetime.now(timezone.utc)
        release = order.release(now)
        goes = {name: await self._sessions[name].explain(units[name], release) for name in world.donors(units)}
        jobs = {name: await self._sessions[name].jobs(nodes) for name, nodes in goes.items()}
        # What arrives at a target is among what is off there now: with consent to the plan, it may be taken back.
        stays = [name for name in world.holdings if order.rollback == "all" and name not in goes]
        back = {name: await self._sessions[name].explain(world.holdings[name].allowed, release) for name in stays}
        notes = [*await self._connections.machines.notes(self._sessions), *await self._lease.notes(now)]
        for name, session in self._sessions.items():
            notes += [f"{name}: {note}" for note in await session.notes(units[name])]
        end = "" if order.until else "; nothing now, as the end of the window is unknown: set until"
        notes += [f"{name}: {fallback}{end}" for name, fallback in order.buys.items()]
        if not self._connections.is_agreed and (world.others != 0 or not self._connections.stores):
            notes.append(
                "others may move GPUs of the block at the same time: lease_conn_id of the connection "
                f"{order.nebius_conn_id} names no cluster in which all shifts of the block wait for each other"
            )
        return plan(world, order, goes, jobs if order.mode == "force" else {}, notes, back)
