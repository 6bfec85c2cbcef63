"""Wish and world: the order for a shift by what each target has, its plan and its approval; it moves nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.capacity.allocation import Units, bounds_of, goal_of, is_within, units_text
from airflow_provider_soperator.capacity.connections import ShiftConnections
from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.lease import JointLease
from airflow_provider_soperator.capacity.order import (
    DesiredAllocation,
    ProgressTimer,
    ShiftOrder,
    Superseded,
    Timeouts,
    is_waited_out,
)
from airflow_provider_soperator.capacity.overrides import keep_override
from airflow_provider_soperator.capacity.schedule import CapacitySchedule
from airflow_provider_soperator.capacity.shift_plan import ShiftPlan, plan
from airflow_provider_soperator.capacity.targets.protocol import Clients, Session
from airflow_provider_soperator.errors import CapacityError, CapacityMistake, ClusterError, ConnectionMistake
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.transports.transport_errors import NotSupported, UnknownEndpoint
from airflow_provider_soperator.values import keep, kept

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
            try:
                await self._connections.open()
            finally:
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
        # It may grow until the handover.
        block = replace(block, limit=block.most_by(self._order.wanted_at))
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


async def look(order: ShiftOrder, clients: Clients, log: Logger) -> World:
    """What each target of an order has now."""
    async with OrderedShift.open(order, clients, log) as shift:
        return await shift.look()


async def ordered(
    order: ShiftOrder,
    wished: Mapping[str, Units],
    limit: int | None,
    clients: Clients,
    log: Logger,
    demanded: Mapping[str, int] | None = None,
) -> ShiftOrder:
    """An order for the goal of a wish. Only ranges need a look at the world."""
    bounds = {target: bounds_of(units) for target, units in wished.items()}
    order = replace(order, desired={target: low for target, (low, _) in bounds.items()})
    if all(low == high for low, high in bounds.values()):
        return order
    return replace(order, desired=goal_in(await look(order, clients, log), wished, limit, demanded))


async def begin(
    order_for: Callable[[int], Awaitable[ShiftOrder]],
    block: str,
    nebius_conn_id: str,
    clients: Clients,
    log: Logger,
    timeouts: Timeouts,
    poll_interval: float,
) -> tuple[ShiftOrder, ShiftPlan]:
    """The order for a block, checked, and its plan; ``order_for`` makes it from the block's number of GPUs.

    An outage is waited out. Raises ``CapacityMistake`` if a retry cannot help, and otherwise ``CapacityError``.
    """
    progress = ProgressTimer(timeouts)
    while True:
        now = datetime.now(timezone.utc)
        try:
            order = await order_for((await clients.block(nebius_conn_id, block)).limit)
            async with OrderedShift.open(order, clients, log) as shift:
                return order, await shift.plan(await shift.check())
        except (ConnectionMistake, ClusterError) as error:
            if isinstance(error, (UnknownEndpoint, NotSupported)):
                raise CapacityError(str(error)) from error
            if isinstance(error, ConnectionMistake) or not is_waited_out(error):
                raise CapacityMistake(str(error)) from error
            progress.wait_out(error, now, log)
        await asyncio.sleep(poll_interval)


def goal_in(
    world: World, wished: Mapping[str, Units], limit: int | None, demanded: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The goal of a wish in a world, within the block and ``limit``: in ranges by demand, or else as it is."""
    # A decision of a DAG file that was edited since may name other targets.
    has = demanded if demanded and demanded.keys() == wished.keys() else world.staying
    return goal_of(wished, has, world.gpus, world.most(limit))


def approval_of(order: ShiftOrder, plan: Mapping[str, Any]) -> dict[str, Any]:
    """What is approved with a plan: its goal, the nodes that go, the jobs that may be ended, and its end."""
    bounds = {
        "goal": dict(order.desired),
        "nodes": {**plan.get("back", {}), **plan["nodes"]},
        "jobs": plan["jobs"],
        "buys": {name: str(one) for name, one in order.buys.items()},
        "end": order.stops_at and order.stops_at.isoformat(),
    }
    return {**bounds, "digest": sha256(json.dumps(bounds, sort_keys=True).encode()).hexdigest()[:12]}


def keep_as_is(
    key: str, units: Mapping[str, Units], by: str, because: str, now: datetime, schedule: CapacitySchedule, log: Logger
) -> None:
    """Keep what each target has until the next handover; of more than the schedule may give no override can be made."""
    try:
        made = schedule.as_kept(key, now).override(units, now, None, by, because)
        schedule.overridden([made], now)
        keep_override(key, made, now, schedule.zone)
    except CapacityMistake as error:
        log.warning("%s cannot be kept, so the next run plans again: %s", units_text(units), error.said)


def keep_schedule(dag_id: str, said: Mapping[str, Any], now: datetime) -> None:
    """Keep the schedule of a DAG's file in an Airflow Variable, and since when it is this one."""
    with suppress(LookupError, TypeError, ValueError):
        if kept(f"{dag_id}_schedule", dict[str, Any]())["schedule"] == said:
            return
    keep(f"{dag_id}_schedule", {"at": now.timestamp(), "schedule": said})


def edited_schedule(dag_id: str, since: float) -> CapacitySchedule | None:
    """The schedule of a DAG's file if it was edited since a moment, in seconds since 1970, as its watcher has seen."""
    with suppress(AttributeError, LookupError, TypeError, ValueError):
        found: Any = kept(f"{dag_id}_schedule", {})
        return CapacitySchedule.read(found["schedule"]) if found["at"] > since else None
    return None


def approved(
    wanted: DesiredAllocation, goal: dict[str, int], demanded: Mapping[str, int] | None = None
) -> DesiredAllocation:
    """What is wanted, with a goal that was approved; ``Superseded`` if that is wished for, or demanded, no more."""
    news = "" if is_within(goal, wanted.units) else f"{units_text(wanted.units)} is wished for"
    if not news and demanded and demanded != goal and is_within(demanded, wanted.units):
        news = f"demand is {units_text(demanded)}"
    if news:
        raise Superseded(f"{units_text(goal)} was approved, but {news} by now; the next run asks again")
    return replace(wanted, units=goal)
