"""Demand: how many units each target is to have within its range, by what is of use."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from airflow_provider_soperator.capacity.allocation import Units, bounds_of, refuse_unknown_targets, units_text
from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.loads import Load, Need
from airflow_provider_soperator.capacity.targets import Target, refuse_strangers
from airflow_provider_soperator.capacity.targets.protocol import Clients
from airflow_provider_soperator.errors import CapacityMistake, ClusterError, ConnectionMistake
from airflow_provider_soperator.values import Plain, keep, kept

_DAY = 86400.0
#: Seconds for which a decision holds without being made again, and after which it is kept again though it is the same.
_HOLDS, _REPEAT = 900.0, 300.0
#: More than any block has, and no more than Airflow can pass on of a watcher's memory.
_MOST_UNITS = 1 << 32
#: Decisions that an Airflow Variable keeps.
_KEPT = 50


@dataclass(frozen=True)
class Demand(Plain):
    """Moves GPUs within the ranges of a schedule to where they are of use.

        Demand(
            [
                ServiceLoad(target="inference", arrivals="sum(rate(requests[5m]))", service_time=4.0, max_requests=32),
                QueueLoad(target="training"),
            ],
            calm=timedelta(minutes=20),
        )

    The target of the first load is served first, from what the others have above their minimum. It gets units at once,
    and gives them to others when its need has been lower for a while. A target without a load takes what is left.

    :param loads: what says how many units of a target are of use, the most important first
    :param calm: time for which a need must have been lower before units go to others
    :param max_moves: most moves in a day; beyond it only the first target gets more
    :param observe: only say what would be done: nothing is moved by demand
    """

    loads: Sequence[Load]
    calm: timedelta = timedelta(minutes=15)
    max_moves: int = 48
    observe: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "loads", tuple(self.loads))
        refuse_strangers(self.loads, Load, "load")
        if not self.loads:
            raise CapacityMistake("demand needs at least one load", "give a ServiceLoad, a MetricLoad or a QueueLoad")

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets with a load, the most important first."""
        return tuple(dict.fromkeys(load.target for load in self.loads))

    def check(self, names: Sequence[str]) -> None:
        """Raise ``CapacityMistake`` if it names a target that there is not."""
        refuse_unknown_targets(self.targets, names, "demand is of the unknown target")

    async def measure(
        self, world: World, wished: Mapping[str, Units], clients: Clients, now: datetime, targets: Sequence[Target] = ()
    ) -> dict[str, Need]:
        """The need of each target with a load, as of now. A load that gives no answer has an unknown need."""
        most = {name: bounds_of(units)[1] for name, units in wished.items()}
        on = {one.name: one for one in targets}

        async def measured(load: Load) -> Need:
            name = load.target
            try:
                seen, gpus = world.holdings[name], world.gpus[name]
                return await load.measure(clients, seen, gpus, most[name], now, on.get(name))
            except (ClusterError, ConnectionMistake) as error:
                return Need(None, str(error))
            except (OverflowError, ValueError) as error:
                # More than a number can be says nothing, and the watcher goes on.
                return Need(None, f"it cannot be counted: {error}")

        found: dict[str, Need] = {}
        for load, need in zip(self.loads, await asyncio.gather(*map(measured, self.loads)), strict=True):
            known = found.setdefault(load.target, need)
            # Of several the highest counts, and one that is unknown might be that.
            if known.units is not None and (need.units is None or need.units > known.units):
                found[load.target] = need
        return found


@dataclass(frozen=True)
class DemandMemory(Plain):
    """What a decision goes on from: the looks before it."""

    #: The last look, and since when there was no gap between looks.
    at: float = -math.inf
    since: float = -math.inf
    #: Moments and needs of the last while, of which no later one is higher, by target.
    needs: Mapping[str, Sequence[tuple[float, int]]] = field(default_factory=dict)
    #: What was decided last, and the moments at which that changed in the last day.
    units: Mapping[str, int] = field(default_factory=dict)
    moves: Sequence[float] = ()


@dataclass(frozen=True)
class Decision:
    """Units of each target by demand, and why, a line for each target with a load."""

    units: dict[str, int]
    because: tuple[str, ...]
    #: The first look at this allocation.
    is_new: bool = False
    #: Of one that is kept: since when it is the same, and when it was last made.
    since: datetime = datetime.min
    at: float = 0.0
    is_observed: bool = False
    #: Of one that is made: what the next goes on from.
    memory: DemandMemory = field(default_factory=DemandMemory)

    def __str__(self) -> str:
        return f"{units_text(self.units)}: {'; '.join(self.because)}"

    def holds(self, now: datetime) -> bool:
        return now.timestamp() - self.at <= _HOLDS


def decide(
    demand: Demand,
    needs: Mapping[str, Need],
    wished: Mapping[str, Units],
    has: Mapping[str, int],
    gpus: Mapping[str, int],
    limit: int,
    memory: DemandMemory,
    now: datetime,
    bought: Mapping[str, int] = MappingProxyType({}),
) -> Decision:
    """The units of each target within what is wished for, with the memory for the next decision."""
    at, calm, first = now.timestamp(), demand.calm.total_seconds(), demand.targets[0]
    if at - memory.at > calm:
        # Needs that were not looked at may have been higher.
        memory = replace(memory, since=at, needs={})
    lately = {name: [*memory.needs.get(name, ())] for name in demand.targets}
    highest = {name: _highest(lately[name], needs[name], at, calm) for name in demand.targets}
    moves = [one for one in memory.moves if at - one < _DAY]
    is_over = len(moves) >= demand.max_moves

    def wants(name: str) -> int:
        given, is_measured = memory.units.get(name, 0), name in highest
        want = highest[name] if is_measured else bounds_of(wished[name])[1]
        if is_measured and (at - memory.since < calm or needs[name].units is None):
            # What is bought beside the block of what was decided serves, too.
            want = max(want, has[name], min(given, has[name] + bought.get(name, 0)))
        if is_over:
            # Others can wait, unless their units are on the way; the first cannot, and keeps what is on its way.
            want = max(want, given) if name == first else min(want, max(has[name], given))
        return want

    units = _shared({name: wants(name) for name in (*demand.targets, *wished)}, wished, has, gpus, limit)
    is_new = units != memory.units and units != {name: has[name] for name in units}
    if is_new:
        moves.append(at)
    because = [f"{name} needs {_said(needs[name], highest[name])}" for name in demand.targets]
    if is_over:
        because.append(f"{len(moves)} moves in a day are the most, so only {first} gets more")
    memory = DemandMemory(at, memory.since, {**memory.needs, **lately}, units, moves)
    return Decision(units, tuple(because), is_new, memory=memory)


def _highest(seen: list[tuple[float, int]], need: Need, at: float, calm: float) -> int:
    """The highest need of the last while; adds this one to those that were ``seen``."""
    if need.units is not None:
        while seen and seen[-1][1] <= need.units:
            seen.pop()
        seen.append((at, min(need.units, _MOST_UNITS)))
    while seen and at - seen[0][0] > calm:
        seen.pop(0)
    return seen[0][1] if seen else 0


def _said(need: Need, highest: int) -> str:
    if need.units is None:
        return f"an unknown number, and keeps what it has: {need.because}"
    lately = f" (lately {highest})" if highest > need.units else ""
    return f"{need.units}{lately}: {need.because}"


def _shared(
    wants: Mapping[str, int], wished: Mapping[str, Units], has: Mapping[str, int], gpus: Mapping[str, int], limit: int
) -> dict[str, int]:
    """Units by what each target wants, in this order; what none wants stays where it is."""
    bounds = {name: bounds_of(units) for name, units in wished.items()}
    units = {name: low for name, (low, _) in bounds.items()}
    left = limit - sum(units[name] * gpus[name] for name in units)
    for some in (wants, has):
        for name, want in some.items():
            more = min(max(0, min(want, bounds[name][1]) - units[name]), max(0, left) // gpus[name])
            units[name] += more
            left -= more * gpus[name]
    return units


def keep_decision(key: str, decision: Decision, is_observed: bool, now: datetime) -> None:
    """Keep a decision in an Airflow Variable, for runs, for shifts under way and for people."""
    decisions, newest = _kept_decisions(key)
    is_same = newest is not None and newest.units == decision.units
    if newest and is_same and newest.is_observed == is_observed and now.timestamp() - newest.at < _REPEAT:
        return
    since = decisions.pop()["since"] if is_same else now.isoformat(timespec="seconds")
    said = {"since": since, "units": decision.units, "because": list(decision.because)}
    keep(key, {"at": now.timestamp(), "observed": is_observed, "decisions": [*decisions, said][-_KEPT:]})


def newest_decision(key: str) -> Decision | None:
    """The newest decision of an Airflow Variable."""
    return _kept_decisions(key)[1]


def kept_demand(key: str | None, now: datetime) -> dict[str, int] | None:
    """The units by the decision that holds; None if none was made lately, or it was only observed."""
    newest = newest_decision(key) if key else None
    return newest.units if newest and newest.holds(now) and not newest.is_observed else None


def _kept_decisions(key: str) -> tuple[list[dict[str, Any]], Decision | None]:
    """All that a Variable keeps, and the newest; one that was edited has none, and is made anew with the next."""
    with suppress(AttributeError, LookupError, TypeError, ValueError):
        found: Any = kept(key, {})
        newest, at, is_observed = found["decisions"][-1], float(found["at"]), bool(found["observed"])
        units = {name: int(number) for name, number in newest["units"].items()}
        since, because = datetime.fromisoformat(newest["since"]), tuple(newest["because"])
        return found["decisions"], Decision(units, because, since=since, at=at, is_observed=is_observed)
    return [], None
