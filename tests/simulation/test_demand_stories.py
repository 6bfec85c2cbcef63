"""Stories of demand from the first seeds: whatever happens to a block, its loads and its metrics, the rules hold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.capacity import demand, holdings, loads, reconciliation
from airflow_provider_soperator.capacity.demand import Decision, Demand
from airflow_provider_soperator.capacity.loads import Need, QueueLoad
from airflow_provider_soperator.capacity.order import ProgressTimer, ShiftOrder
from airflow_provider_soperator.capacity.shift import Shift
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.triggers import shift as shift_trigger
from airflow_provider_soperator.triggers.capacity_watch import CapacityDifferenceTrigger
from tests.simulation.demand import World
from tests.simulation.demand_rules import BEYOND, LATELY, UNKNOWN
from tests.simulation.story import Violated, play_until_broken, played

#: Seeds of a run of the suite; `make soak` plays thousands.
SEEDS = 40


def test_the_rules_hold() -> None:
    counts = Counter[str]()
    for seed in range(SEEDS):
        world = World(seed)
        world.play()
        counts += world.counts
    assert counts["moves"] >= 80
    assert counts["superseded"] >= 10
    assert counts["lie"] >= 25
    assert counts["_watcher_killed"] + counts["_watcher_away"] + counts["_paused"] >= 15
    assert all(counts[what] for what in ("_killed", "_queue_away", "_slurm_away", "_overridden", "_robbed"))
    assert counts["looks 1 moves beyond those of a day"]


def test_a_seed_tells_the_same_story_each_time() -> None:
    assert played(World(11)) == played(World(11))


def takes_what_is_unknown_for_low(patch: pytest.MonkeyPatch) -> None:
    before = demand.decide

    def decide(said: Any, needs: Mapping[str, Need], *more: Any) -> Decision:
        return before(said, {name: Need(one.units or 0, one.because) for name, one in needs.items()}, *more)

    patch.setattr(demand, "decide", decide)


def forgets_what_was_needed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(demand, "_highest", lambda seen, need, at, calm: need.units or 0)


def leaves_ranges(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(demand, "bounds_of", lambda units, bounds_of=demand.bounds_of: (bounds_of(units)[0], 99))


def moves_what_none_needs(patch: pytest.MonkeyPatch) -> None:
    before = demand._shared

    def shared(wants: Any, wished: Any, has: Mapping[str, int], *more: Any) -> dict[str, int]:
        return before(wants, wished, dict.fromkeys(has, 0), *more)

    patch.setattr(demand, "_shared", shared)


def counts_no_moves(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(demand, "_DAY", 0.0)


def halves_needs(patch: pytest.MonkeyPatch) -> None:
    before = Demand.measure

    async def measure(said: Demand, *more: Any) -> dict[str, Need]:
        found = await before(said, *more)
        return {name: Need(need.units and need.units // 2, need.because) for name, need in found.items()}

    patch.setattr(Demand, "measure", measure)


def sees_no_job_that_waits(patch: pytest.MonkeyPatch) -> None:
    before = QueueLoad.need

    def need(load: QueueLoad, jobs: Iterable[Job], *more: Any) -> Need:
        return before(load, [job for job in jobs if not job.state.is_pending], *more)

    patch.setattr(QueueLoad, "need", need)


def stops_at_what_cannot_be_counted(patch: pytest.MonkeyPatch) -> None:
    def ceil(number: float) -> int:
        if math.isinf(number):
            raise ArithmeticError(number)
        return math.ceil(number)

    patch.setattr(loads, "math", SimpleNamespace(ceil=ceil, sqrt=math.sqrt, exp=math.exp))


def gives_what_none_needs(patch: pytest.MonkeyPatch) -> None:
    before = demand._shared

    def shared(wants: Mapping[str, int], wished: Mapping[str, Any], *more: Any) -> dict[str, int]:
        return before({name: demand.bounds_of(wished[name])[1] for name in wants}, wished, *more)

    patch.setattr(demand, "_shared", shared)


def holds_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(demand, "_HOLDS", math.inf)


def moves_what_is_only_observed(patch: pytest.MonkeyPatch) -> None:
    before = demand.keep_decision
    patch.setattr(demand, "keep_decision", lambda key, decision, is_observed, now: before(key, decision, False, now))


def takes_more_than_its_order_says(patch: pytest.MonkeyPatch) -> None:
    before = holdings.World.goal

    def goal(world: holdings.World, desired: holdings.Allocation) -> holdings.Goal:
        return before(world, {**desired, "inference": max(0, desired["inference"] - 1)})

    patch.setattr(holdings.World, "goal", goal)


def never_settles(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shift, "_is_settled", lambda *seen: False)
    patch.setattr(ProgressTimer, "see", lambda *seen, **how: None)


def plans_without_demand(patch: pytest.MonkeyPatch) -> None:
    before = reconciliation.ordered

    async def ordered(order: Any, wished: Any, limit: Any, clients: Any, log: Any, demanded: Any = None) -> Any:
        return await before(order, wished, limit, clients, log)

    patch.setattr("tests.simulation.demand.ordered", ordered)


def goes_on_when_demand_is_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shift_trigger, "kept_demand", lambda key, now: None)


def begins_anew_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    before = CapacityDifferenceTrigger.memory
    patch.setattr(CapacityDifferenceTrigger, "memory", lambda one: {**before(one), "demand": {}})


def gives_no_grace(patch: pytest.MonkeyPatch) -> None:
    before = ShiftOrder.release

    def release(order: ShiftOrder, now: Any, **how: Any) -> Any:
        return replace(before(order, now, **how), grace=timedelta(0))

    patch.setattr(ShiftOrder, "release", release)


@pytest.mark.parametrize(
    ("without", "rule", "telling"),
    [
        (takes_what_is_unknown_for_low, UNKNOWN, 14),
        (forgets_what_was_needed, LATELY, 12),
        (leaves_ranges, "no range is left", 7),
        (moves_what_none_needs, "what none needs stays where it is", 7),
        (gives_what_none_needs, "nothing moves to where it is of no use", 6),
        (halves_needs, "a need is what was answered", 6),
        (sees_no_job_that_waits, "a need is what is of use", 17),
        (stops_at_what_cannot_be_counted, "the watcher goes on, whatever it is told", 62),
        (counts_no_moves, BEYOND, 37),
        (plans_without_demand, "what is of use comes", 27),
        (holds_for_ever, "what is old, or only observed, moves nothing", 11),
        (moves_what_is_only_observed, "what is old, or only observed, moves nothing", 3),
        (takes_more_than_its_order_says, "what serves stays", 19),
        (goes_on_when_demand_is_another, "a shift that demand wishes for no more takes nothing", 8),
        (begins_anew_after_a_restart, LATELY, 9),
        (gives_no_grace, "no job is ended without its grace", 6),
        (never_settles, "everything comes to an end", 1),
    ],
)
def test_a_rule_is_broken_without_what_keeps_it(
    without: Callable[[pytest.MonkeyPatch], None], rule: str, telling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that stories have what rules need to be broken; ``telling`` is the seed of one that tells it soon."""
    without(monkeypatch)
    with pytest.raises(Violated, match=rf"{rule}.*\n(.*\n)*repeat: .* --demand --seed [0-9]+"):
        play_until_broken(World, rule, [telling, *range(200)])
