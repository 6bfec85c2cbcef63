"""Stories of demand from the first seeds: whatever happens to a block, its loads and its metrics, the rules hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.capacity import demand, reconciliation
from airflow_provider_soperator.capacity.demand import Decision
from airflow_provider_soperator.capacity.loads import Need
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.triggers import shift as shift_trigger
from airflow_provider_soperator.triggers.capacity_watch import CapacityDifferenceTrigger
from tests.simulation.demand import World
from tests.simulation.story import Violated, play, played

#: Seeds of a run of the suite, and those of one test; `make soak` plays thousands.
SEEDS, AT_ONCE = 40, 20
#: Those whose stories are the first to break some rule without what keeps it.
TELLING = (6, 37, 14, 9, 8)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_the_rules_hold(first: int) -> None:
    play(World, range(first, first + AT_ONCE))


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
    ("without", "rule"),
    [
        (takes_what_is_unknown_for_low, "what is unknown is not taken for low"),
        (forgets_what_was_needed, "what is unknown is not taken for low"),
        (leaves_ranges, "no range is left"),
        (moves_what_none_needs, "what none needs stays where it is"),
        (counts_no_moves, "beyond the moves of a day only the first target gets more"),
        (plans_without_demand, "what is of use comes"),
        (goes_on_when_demand_is_another, "a shift that demand wishes for no more takes nothing"),
        (begins_anew_after_a_restart, "what is unknown is not taken for low"),
        (gives_no_grace, "no job is ended without its grace"),
    ],
)
def test_a_rule_is_broken_without_what_keeps_it(
    without: Callable[[pytest.MonkeyPatch], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that stories have what rules need to be broken."""
    without(monkeypatch)
    with pytest.raises(Violated, match=rf"{rule}.*\n(.*\n)*repeat: .* --demand --seed [0-9]+"):
        play(World, [*TELLING, *range(200)])
