"""Wish and world compared: the goal within ranges, and whether there is anything to move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_soperator.capacity.allocation import Units, bounds_of, goal_of
from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.shift import Shift
from airflow_provider_soperator.capacity.targets.protocol import Clients
from airflow_provider_soperator.logger import Logger


async def look(order: ShiftOrder, clients: Clients, log: Logger) -> World:
    """What each target of an order has now."""
    async with Shift.open(order, clients, log) as shift:
        return await shift.look()


async def ordered(
    order: ShiftOrder, wished: Mapping[str, Units], limit: int, clients: Clients, log: Logger
) -> ShiftOrder:
    """An order for the goal of a wish, within a block of ``limit`` GPUs. Only ranges need a look at the world."""
    bounds = {target: bounds_of(units) for target, units in wished.items()}
    order = replace(order, desired={target: low for target, (low, _) in bounds.items()})
    if all(low == high for low, high in bounds.values()):
        return order
    world = await look(order, clients, log)
    return replace(order, desired=goal_in(world, wished, limit))


def goal_in(world: World, wished: Mapping[str, Units], limit: int) -> dict[str, int]:
    """The goal of a wish in a world."""
    has = {target: seen.allowed for target, seen in world.holdings.items()}
    return goal_of(wished, has, world.gpus, limit)


def differs(world: World, goal: Mapping[str, int]) -> bool:
    """True if there is anything to move."""
    return bool(world.donors(goal) or world.receivers(goal))
