"""Wish and world: the order for a shift by what each target has, its plan, and what is approved with that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

from airflow_provider_soperator.capacity.allocation import Units, bounds_of, goal_of, is_within, units_text
from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.order import (
    DesiredAllocation,
    ProgressTimer,
    ShiftOrder,
    Superseded,
    Timeouts,
    is_waited_out,
)
from airflow_provider_soperator.capacity.ordered_shift import OrderedShift
from airflow_provider_soperator.capacity.overrides import keep_override
from airflow_provider_soperator.capacity.schedule import CapacitySchedule
from airflow_provider_soperator.capacity.shift_plan import ShiftPlan
from airflow_provider_soperator.capacity.targets.protocol import Clients
from airflow_provider_soperator.errors import CapacityError, CapacityMistake, ClusterError, ConnectionMistake
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.transports.transport_errors import LastingError
from airflow_provider_soperator.values import keep, kept


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
            if isinstance(error, LastingError):
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
    key: str, units: Mapping[str, Units], by: str, because: str, now: datetime, schedule: CapacitySchedule
) -> None:
    """Keep what each target has until the next handover; of more than the schedule may give no override can be made."""
    with suppress(CapacityMistake):
        made = schedule.as_kept(key, now).override(units, now, None, by, because)
        schedule.overridden([made], now)
        keep_override(key, made, now, schedule.zone)


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
