"""The sections of the page beside nodes and queue: blocks and schedules, health, and what jobs have used.

Each is looked at less often than Slurm, and none keeps a viewer waiting: what is not there yet comes with a refresh.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.board.blocks import CapacityLook, look_at_capacity, sides
from airflow_provider_soperator.board.capacity_dags import UNREADABLE, CapacityDag
from airflow_provider_soperator.board.check_history import HealthLook, courses, look_at_health
from airflow_provider_soperator.board.looks import Looks
from airflow_provider_soperator.board.picture import Picture
from airflow_provider_soperator.board.schedule_band import Band, band, conflicts
from airflow_provider_soperator.board.usage import DAYS, UsageLook, look_at_usage
from airflow_provider_soperator.health.assessment import Observations

#: Seconds between two looks at blocks, schedules and checks; and between two questions to accounting.
MINUTE, HOUR = 60.0, 3600.0


class Sections:
    """The newest looks at all connections, and what a viewer sees of them."""

    def __init__(self) -> None:
        self._capacity: Looks[CapacityLook] = Looks(look_at_capacity, MINUTE, longest=5 * MINUTE)
        self._health: Looks[HealthLook] = Looks(look_at_health, MINUTE, longest=5 * MINUTE)
        self._usage: Looks[UsageLook] = Looks(look_at_usage, HOUR, has_failed=lambda look: bool(look.failure))

    async def of(self, picture: Picture, may_see: Callable[[str], bool]) -> dict[str, Any]:
        """The values of the sections' templates."""
        name = picture.connection
        capacity, health = await self._capacity.newest(name), await self._health.newest(name)
        # With many nodes it takes a while.
        return await asyncio.to_thread(said, picture, may_see, capacity, health, await self._usage.newest(name))


def said(
    picture: Picture,
    may_see: Callable[[str], bool],
    capacity: CapacityLook | None,
    health: HealthLook | None,
    usage: UsageLook | None,
) -> dict[str, Any]:
    """The values of the sections' templates for one who may not see all DAGs."""
    now = datetime.now(timezone.utc)
    seen = _seen(capacity or CapacityLook(taken=now), may_see)
    figures = health.observations.figures if health else {}
    return {
        "is_whole": bool(capacity and health and usage),
        "unlooked": seen.failures,
        "dags_since": seen.since.get(""),
        "blocks": _blocks(picture, seen),
        "bands": [(dag, _band(dag, now)) for dag in seen.dags],
        "conflicts": conflicts(seen.dags, {name: world.block for name, world in seen.worlds.items()}, now),
        "health": health,
        "findings": picture.findings(health.observations if health else Observations()),
        "courses": courses(figures, [node.name for node in picture.nodes]),
        "usage": usage,
        "tables": usage and usage.tables(may_see),
        "usage_days": DAYS,
        "may_see": may_see,
        "now": now,
    }


def _band(dag: CapacityDag, now: datetime) -> Band:
    try:
        return band(dag, now)
    except UNREADABLE:
        # Reports of windows that were edited by hand.
        return band(replace(dag, reports=()), now)


def _seen(look: CapacityLook, may_see: Callable[[str], bool]) -> CapacityLook:
    failures = {name: why for name, why in look.failures.items() if not name or may_see(name)}
    return replace(look, dags=[dag for dag in look.dags if may_see(dag.dag_id)], failures=failures)


def _blocks(picture: Picture, look: CapacityLook) -> list[Any]:
    """Each block that was looked at, once, with its bar: of two DAGs that move it, as an active one sees it."""
    found: dict[str, Any] = {}
    for dag in sorted(look.dags, key=lambda dag: dag.is_paused):
        if (world := look.worlds.get(dag.dag_id)) and world.block.id not in found:
            found[world.block.id] = {
                "block": world.block,
                "dag": dag,
                "sides": sides(dag, world, picture.connection, picture.nodes),
                "shares": world.shares,
                "since": look.since.get(dag.dag_id),
            }
    return list(found.values())
