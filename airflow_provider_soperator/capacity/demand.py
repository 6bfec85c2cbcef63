"""Demand: how many units each target is to have within its range, by what is of use.

The decision is a pure function of loads, of what targets have, and of a short memory. GPUs move only to where they are
of use, and never because they are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    state: dict[str, Any],
    now: datetime,
    bought: Mapping[str, int] = MappingProxyType({}),
) -> Decision:
    """The units of each target within what is wished for. ``state`` has plain values; it is empty at first."""
    at, calm = now.timestamp(), demand.calm.total_seconds()
    if at - state.get("at", at) > calm or "since" not in state:
        # Needs that were not looked at may have been higher.
        state |= {"since": at, "needs": {}}
    state["at"] = at
    keeps = at - state["since"] < calm
    highest = {name: _highest(state["needs"].setdefault(name, []), needs[name], at, calm) for name in demand.targets}
    given = state.get("units", {})
    # What is bought beside the block of what was decided serves, too.
    serve = {one: max(has[one], min(given.get(one, 0), has[one] + bought.get(one, 0))) for one in highest}
    wants = {one: max(high, serve[one] if keeps or needs[one].units is None else 0) for one, high in highest.items()}
    wants |= {name: bounds_of(wished[name])[1] for name in wished if name not in wants}
    units = _shared(wants, wished, has, gpus, limit)
    moves = state["moves"] = [one for one in state.get("moves", []) if at - one < _DAY]
    is_over = len(moves) >= demand.max_moves
    if is_over:
        # Those who wait can wait, unless their units are on the way; the first cannot, and keeps what is on its way.
        first = demand.targets[0]
        most = {name: max(has[name], given.get(name, 0)) for name in has}
        wants = {name: min(want, most[name]) for name, want in wants.items()} | {
            first: max(wants[first], given.get(first, 0))
        }
        units = _shared(wants, wished, has, gpus, limit)
    is_new = units != state.get("units") and units != {name: has[name] for name in units}
    if is_new:
        moves.append(at)
    state["units"] = units
    because = [f"{name} needs {_said(needs[name], highest[name])}" for name in demand.targets]
    if is_over:
        because.append(f"{len(moves)} moves in a day are the most, so only {demand.targets[0]} gets more")
    return Decision(units, tuple(because), is_new)


def _highest(seen: list[list[float]], need: Need, at: float, calm: float) -> int:
    """The highest need of the last while; ``seen`` are moments and needs, of which no later one is higher."""
    if need.units is not None:
        while seen and seen[-1][1] <= need.units:
            seen.pop()
        seen.append([at, min(need.units, _MOST_UNITS)])
    while seen and at - seen[0][0] > calm:
        seen.pop(0)
    return int(seen[0][1]) if seen else 0


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
