"""The rules of stories of demand: what a watcher may decide, and what runs may plan and move by that."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_soperator.capacity.allocation import Units, bounds_of, is_within, units_text
from airflow_provider_soperator.capacity.demand import Decision
from airflow_provider_soperator.capacity.loads import Load, MetricLoad, Need, QueueLoad, ServiceLoad
from airflow_provider_soperator.capacity.order import ShiftOrder
from tests.simulation.shifts import TICK
from tests.unit.capacity.world import NEVER

if TYPE_CHECKING:
    from tests.simulation.demand import Run, World

#: What one unit of inference bears: of requests, and of requests a second.
BEARS = {"requests": 64.0, "waiting": 16.0, "rate": 5.0}
#: Seconds that a request takes, and those that a unit serves at a time.
SERVICE_TIME, MAX_REQUESTS = 4.0, 32
#: An answer from which on a load may say that it cannot be counted.
UNCOUNTABLE = 1e300
#: Ticks within which a shift hears that demand is another, if nothing is slow.
HEARD = 8
#: Ticks after which a decision holds no more, a minute of planning included.
OLD = 32

LATELY = "a target has what it has needed lately"
UNKNOWN = "what is unknown is not taken for low"
BEYOND = "beyond the moves of a day only the first target gets more"


@dataclass
class Oracle:
    """What a watcher has to know: needs of the last while, from what was answered, and what it has decided."""

    at: datetime | None = None
    since: datetime | None = None
    needs: dict[str, list[tuple[datetime, int]]] = field(default_factory=dict)
    units: dict[str, int] | None = None
    moves: list[datetime] = field(default_factory=list)

    def look(self, now: datetime, calm: timedelta, needs: Mapping[str, int | None]) -> None:
        if self.at is None or now - self.at > calm:
            self.since, self.needs = now, {}
        self.at = now
        for name, need in needs.items():
            seen = self.needs.setdefault(name, [])
            if need is not None:
                seen.append((now, need))
            self.needs[name] = [one for one in seen if now - one[0] <= calm]

    def highest(self, name: str) -> int:
        return max((need for _, need in self.needs.get(name, ())), default=0)

    def is_new_to_all(self, now: datetime, calm: timedelta) -> bool:
        """True while needs may have been higher before it looked."""
        return self.since is None or now - self.since < calm

    def moves_of_a_day(self, now: datetime) -> int:
        return len([at for at in self.moves if now - at < timedelta(days=1)])


class Rules:
    """The rules for decisions, and for plans and moves by them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.oracle = Oracle()
        #: What each memory of a watcher was taken with.
        self._remembered: list[Oracle] = []
        #: Decisions, and the ticks at which they were made.
        self._decided: deque[tuple[int, dict[str, int]]] = deque(maxlen=400)
        self._wishes = set[tuple[tuple[str, tuple[int, int]], ...]]()
        self.overridden_at = -NEVER
        #: The tick since which needs are known from the world itself: nothing lies, and loads are as they were.
        self._settled: int | None = None

    # What a watcher knows

    def note_memory(self) -> int:
        """Remember what is known now, as a watcher does; the number of this memory."""
        self._remembered.append(deepcopy(self.oracle))
        return len(self._remembered) - 1

    def go_on_from(self, memory: int | None) -> None:
        """Another watcher goes on from a memory, or from none."""
        self.oracle = Oracle() if memory is None else deepcopy(self._remembered[memory])

    def let_a_day_go_by(self) -> None:
        for one in (self.oracle, *self._remembered):
            one.moves.clear()

    def settle(self) -> None:
        self._settled = self._world.ticks

    @property
    def has_looked(self) -> bool:
        """True once there is a decision by loads that have settled."""
        return self._settled is not None and bool(self._decided) and self._decided[-1][0] > self._settled

    # Moves

    @property
    def _is_wish_new(self) -> bool:
        return self._world.ticks - self.overridden_at <= self._world.is_heard_in

    def check_range(self, order: ShiftOrder, target: str, to: int, *, is_less: bool) -> None:
        world = self._world
        moments = (world.now - world.is_heard_in * TICK, world.now, order.wanted_at)
        bounds = [bounds_of(world.wish(at)[target]) for at in moments]
        low, high = min(one for one, _ in bounds), max(one for _, one in bounds)
        if not self._is_wish_new and (to < low if is_less else to > high):
            world.break_rule("no range is left", f"{order.key} has {target} at {to}, and its range is {low} to {high}")

    def check_wished(self, run: Run) -> None:
        """A shift that takes nodes is wished for, by demand as it is or as it was a moment ago."""
        world, heard = self._world, self._world.ticks - self._world.is_heard_in - 2
        if world.demand.observe or run.order.wanted_at > world.now or not self._decided:
            return
        if world.ticks - self._decided[-1][0] > 20:
            # It has looked at nothing lately, and what it has decided is over soon.
            return
        before = [(at, units) for at, units in self._decided if at < heard][-1:]
        if not before or heard - before[0][0] > OLD:
            # None held for a while, so what was decided since is not heard yet.
            return
        lately = [units for at, units in self._decided if at >= before[0][0]]
        wish = world.wish(world.now)
        if all(is_within(units, wish) and units != run.order.desired for units in lately):
            now = units_text(lately[-1])
            world.break_rule("a shift that demand wishes for no more takes nothing", f"{run.name}, demand is {now}")

    # Plans

    def check_planned(self, run: Run, order: ShiftOrder, had: Sequence[Mapping[str, int]]) -> None:
        """``had`` is what targets had before a look at the world, and after it."""
        world = self._world
        wish, (before, has) = world.wish(order.wanted_at), had
        if self._is_wish_new:
            return
        if not is_within(order.desired, wish):
            world.break_rule("no range is left", f"{run.name} is for {order.desired}")
        is_old = not self._decided or world.ticks - self._decided[-1][0] > OLD + world.is_heard_in - HEARD
        is_as_it_was = is_within(has, wish) and before == has
        if (is_old or world.demand.observe) and is_as_it_was and order.desired != has:
            rule = "what is old, or only observed, moves nothing"
            world.break_rule(rule, f"{run.name} is for {order.desired}, with {has}")

    # Decisions

    def check_decision(
        self,
        decision: Decision,
        needs: Mapping[str, Need],
        wished: Mapping[str, Units],
        has: Mapping[str, int],
        now: datetime,
    ) -> None:
        world, oracle, demand, units = self._world, self.oracle, self._world.demand, decision.units
        if units != oracle.units:
            world.note(f"has {units_text(has)}; {decision}")
        bounds = {name: bounds_of(one) for name, one in wished.items()}
        known = {name: self._known(name, needs[name]) for name in demand.targets}
        if self.has_looked or self._settled == world.ticks:
            for name in demand.targets:
                self._check_true(name, needs[name], bounds[name][1])
        oracle.look(now, demand.calm, known)
        self._wishes.add(tuple(bounds.items()))
        first, limit, total = demand.targets[0], world.count, sum(has.values())
        is_over = oracle.moves_of_a_day(now) >= demand.max_moves
        if not (is_within(units, wished) and sum(units.values()) <= limit):
            world.break_rule("no range is left", f"{units} of {wished}")
        left = limit - sum(low for low, _ in bounds.values())
        for name in demand.targets:
            low, high = bounds[name]
            fits = min(high, low + left)
            left -= max(0, units[name] - low)
            given = (oracle.units or has)[name]
            stays = known[name] is None or oracle.is_new_to_all(now, demand.calm)
            # The least it has to have, and why.
            least = {LATELY: oracle.highest(name), UNKNOWN: has[name] if stays else 0}
            if is_over and name != first:
                most = max(has[name], given, low)
                least = {rule: min(number, most) for rule, number in least.items()}
                if units[name] > most:
                    how = f"{name} would have {units[name]}, not {most}, after {len(oracle.moves)} moves"
                    world.break_rule(BEYOND, how)
            elif is_over:
                # The first keeps what is on its way.
                least[BEYOND] = given
            for rule, number in least.items():
                if units[name] < min(number, fits):
                    world.break_rule(rule, f"{name} would have {units[name]}, and not {number}, with {has}")
            most = max(oracle.highest(name), has[name], low, min(least.get(BEYOND, 0), fits))
            if units[name] > most:
                rule = "nothing moves to where it is of no use"
                world.break_rule(rule, f"{name} would have {units[name]}, not {most}")
        for name, (_, high) in bounds.items():
            is_less = units[name] < min(has[name], high) and total <= limit
            if is_less and not any(units[other] > has[other] for other in bounds):
                world.break_rule("what none needs stays where it is", f"{units}, with {has}")
        self._check_moves(units, has, now)
        self._decided.append((world.ticks, units))

    def _check_moves(self, units: dict[str, int], has: Mapping[str, int], now: datetime) -> None:
        world, oracle = self._world, self.oracle
        if units != oracle.units and units != dict(has):
            oracle.moves.append(now)
            world.counts["moves"] += 1
        oracle.units = units
        beyond = oracle.moves_of_a_day(now) - world.demand.max_moves
        if beyond > 0:
            world.counts[f"looks {beyond} moves beyond those of a day"] += 1
        # Growth of the first target alone, in each wish that has been.
        most = world.count * len(self._wishes)
        if beyond > most:
            rule = "beyond the moves of a day there are no more than the first target can grow in each wish"
            world.break_rule(rule, f"{beyond} beyond {world.demand.max_moves}, and not {most}")

    # Needs

    def _known(self, target: str, need: Need) -> int | None:
        """The need that is known, from what was answered."""
        if target == "training":
            if not self._world.is_queue_known:
                return None
            self._check_need("a need is what was answered", need, 0, math.inf)
            return need.units
        loads = self._world.loads_of(target)
        told = [self._world.metrics.told[_query(load)] for load in loads]
        said = [one for one in told if one is not None]
        if len(said) < len(told):
            return None
        bounds = [_bounds(load, answer) for load, answer in zip(loads, said, strict=True)]
        if need.units is not None or max(said) < UNCOUNTABLE:
            least, most = max(one for one, _ in bounds), max(one for _, one in bounds)
            self._check_need("a need is what was answered", need, least, most)
        return need.units

    def _check_true(self, target: str, need: Need, high: int) -> None:
        """A need by the world itself, whatever was answered."""
        world = self._world
        if target == "training":
            used, waiting = world.jobs()
            least, most = max(used, world.count if world.is_busy and high else 0), used + waiting
        else:
            ready, needed = world.ready, math.ceil(world.metrics.needed)
            bounds = [
                # By the share in use of what is there; none bears nothing.
                (max(1, needed if ready else 1), max(1, needed + 1 if ready else 1)) if _is_share(load)
                else _bounds(load, needed * BEARS[_query(load)])
                for load in world.loads_of(target)
            ]  # fmt: skip
            least, most = max(one for one, _ in bounds), max(math.ceil(one) for _, one in bounds)
        self._check_need("a need is what is of use", need, least, most)

    def _check_need(self, rule: str, need: Need, least: int, most: float) -> None:
        if need.units is None or not least <= need.units <= most:
            self._world.break_rule(rule, f"{need}, and not {least} to {most}")


def _query(load: Load) -> str:
    return str(getattr(load, "query", None) or getattr(load, "arrivals", ""))


def _is_share(load: Load) -> bool:
    return isinstance(load, MetricLoad) and load.keep_at is not None


def _bounds(load: Load, answer: float) -> tuple[int, float]:
    """The least and the most that a load may need by an answer."""
    assert not isinstance(load, QueueLoad)
    if _is_share(load):
        return 1, math.inf
    needed = math.ceil(answer / BEARS[_query(load)])
    if isinstance(load, ServiceLoad):
        # As many as have the requests at work at least; and what bears them without waits at most.
        return math.ceil(answer * (SERVICE_TIME / MAX_REQUESTS)) + load.headroom, needed + load.headroom
    return needed, needed
