"""Nobody is ever allowed more than will be free, however late what is given up goes and what is allowed is taken."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_soperator.capacity.holdings import Holding, ProjectShare, World, may_have
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.requests import PowerDownMode
from tests.unit.capacity.world import Cloud, Pace, State

LIMIT = 64
LONGEST = 12
NONE: dict[str, Any] = {"allowed": 0, "held": 0, "ready": 0}


@pytest.mark.parametrize(
    ("seen", "there", "at_work"),
    [
        (Holding(allowed=4, held=3, ready=2), 2, 2),
        (Holding(allowed=2, held=4, ready=2, finishing=1), 2, 3),
        # An autoscaler adds two once there is work.
        (Holding(allowed=4, held=2, ready=4), 2, 2),
        (Holding(allowed=4, held=3, ready=4, finishing=1), 2, 3),
    ],
)
def test_what_is_yet_to_come_is_not_there(seen: Holding, there: int, at_work: int) -> None:
    assert (seen.there, seen.at_work) == (there, at_work)


@st.composite
def allocations(draw: st.DrawFn, gpus: Mapping[str, int]) -> dict[str, int]:
    left, units = LIMIT, {}
    for name in draw(st.permutations(list(gpus))):
        units[name] = draw(st.integers(0, left // gpus[name]))
        left -= units[name] * gpus[name]
    return units


@st.composite
def clouds(draw: st.DrawFn) -> tuple[Cloud, dict[str, int]]:
    """A block in some state, and what it is to come to."""
    names = ["training", "inference", "research"][: draw(st.integers(2, 3))]
    gpus = {name: draw(st.sampled_from([1, 4, 8, 16])) for name in names}
    before, desired = draw(allocations(gpus)), draw(allocations(gpus))
    chance = random.Random(draw(st.integers(0, 2**32)))
    longest = draw(st.sampled_from([0, 1, LONGEST]))
    cloud = Cloud(LIMIT)

    def some(unit: int) -> int:
        return chance.randint(0, longest)

    for name in names:
        sleeping = draw(st.integers(0, before[name]))
        cloud.add(
            name,
            gpus=gpus[name],
            pace=Pace(some, some, some, some),
            ready=before[name] - sleeping,
            sleeping=sleeping,
            off=max(0, desired[name] - before[name]),
        )
    # A project has room for what its targets have, and for what they are to have.
    of = draw(st.frozensets(st.sampled_from(names)), label="targets of a project that may not have all")
    if of:
        needs = max(sum(units[name] * gpus[name] for name in of) for units in (before, desired))
        cloud.shares["project-e00serving"] = (of, needs + draw(st.integers(0, 8)))
    return cloud, desired


def step(cloud: Cloud, desired: Mapping[str, int], *, passes: int = 0) -> World:
    """What a shift does in a round. Time may pass between its looks, and before it acts."""
    seen = {}
    for name, target in cloud.targets.items():
        seen[name] = target.see()
        for _ in range(passes):
            cloud.tick()
    shares = cloud.share()
    world = World(cloud.block(), seen, {name: target.gpus for name, target in cloud.targets.items()}, shares)
    for _ in range(passes):
        cloud.tick()
    may = may_have(world, desired)
    donors = world.donors(desired)
    for name in donors:
        cloud.targets[name].shrink(desired[name], PowerDownMode.ASAP)
    for name in world.receivers(desired):
        if name not in donors:
            cloud.targets[name].grow(may[name])
    return world


@settings(max_examples=80, deadline=None)
@given(clouds(), st.data())
def test_no_claim_is_ever_refused_and_everything_arrives(
    made: tuple[Cloud, dict[str, int]], data: st.DataObject
) -> None:
    cloud, desired = made
    passes = data.draw(st.integers(0, 3), label="ticks between looks")
    for _ in range(40 * LONGEST):
        step(cloud, desired, passes=passes)
        cloud.tick()
        assert cloud.taken <= LIMIT
        assert cloud.refused == 0
        if cloud.ready() == cloud.allowed() == desired:
            return
    pytest.fail(f"{cloud.ready()} and not {desired}")


@settings(max_examples=30, deadline=None)
@given(clouds(), st.sets(st.integers(0, 60)))
def test_while_nobody_knows_what_is_free_nobody_gets_more(
    made: tuple[Cloud, dict[str, int]], unknown: set[int]
) -> None:
    cloud, desired = made
    for _ in range(60):
        is_unknown = cloud.now in unknown
        cloud.unknown = [range(cloud.now, cloud.now + 1)] if is_unknown else []
        before = cloud.allowed()
        step(cloud, desired)
        if is_unknown:
            assert all(units <= before[name] for name, units in cloud.allowed().items())
        cloud.tick()
        assert cloud.refused == 0


def world(usage: int | None, gpus: int = 8, **holdings: Holding) -> World:
    return World(CapacityBlock(id="b", limit=LIMIT, usage=usage), holdings, dict.fromkeys(holdings, gpus))


def test_what_was_promised_before_is_not_free() -> None:
    seen = world(
        24,
        training=Holding(allowed=4, held=0, ready=0),
        inference=Holding(allowed=3, held=3, ready=3),
    )
    assert may_have(seen, {"training": 4, "inference": 6}) == {"training": 4, "inference": 4}


def test_what_others_leave_of_a_block_is_possible_for_one_target_alone() -> None:
    one = Holding(allowed=1, held=1, ready=1)
    seen = world(40, training=one, inference=one)
    assert seen.possible({"training": 4, "inference": 4}).units == {"training": 4, "inference": 1}


def test_promises_that_cannot_be_kept_take_nothing_from_others() -> None:
    seen = world(
        56,
        training=Holding(allowed=4, held=1, ready=1),
        inference=Holding(allowed=2, held=2, ready=1),
    )
    assert may_have(seen, {"training": 4, "inference": 4}) == {"training": 2, "inference": 2}


def test_two_receivers_share_what_is_free() -> None:
    seen = world(
        40,
        training=Holding(allowed=1, held=1, ready=1),
        inference=Holding(allowed=1, held=1, ready=1),
        research=Holding(allowed=1, held=3, ready=1, finishing=2),
    )
    assert may_have(seen, {"training": 3, "inference": 3, "research": 1}) == {
        "training": 3,
        "inference": 2,
        "research": 1,
    }


def test_what_a_target_holds_is_taken_though_the_cloud_is_late_to_say_so() -> None:
    seen = world(
        32,
        training=Holding(allowed=4, held=4, ready=4),
        inference=Holding(allowed=3, held=3, ready=0),
    )
    assert may_have(seen, {"training": 4, "inference": 4})["inference"] == 4
    assert may_have(seen, {"training": 4, "inference": 6})["inference"] == 4


def test_a_block_that_was_cut_has_nothing_free() -> None:
    seen = world(72, training=Holding(allowed=8, held=8, ready=8), inference=Holding(allowed=1, held=1, ready=1))
    assert seen.block.free == 0
    assert may_have(seen, {"training": 7, "inference": 2}) == {"training": 8, "inference": 1}


def test_donors_and_receivers() -> None:
    seen = world(
        40,
        leaving=Holding(allowed=2, held=3, ready=2, finishing=1),
        asleep=Holding(allowed=4, held=1, ready=1),
        coming=Holding(allowed=2, held=2, ready=1),
        as_it_shall_be=Holding(allowed=2, held=2, ready=2),
    )
    desired = {"leaving": 2, "asleep": 2, "coming": 2, "as_it_shall_be": 2}
    assert seen.donors(desired) == ["leaving", "asleep"]
    assert seen.receivers(desired) == ["asleep", "coming"]


GOAL = {"training": 2, "inference": 6}


def drained(count: int, what: str = "is drained") -> dict[str, str]:
    return {f"worker-{number}": what for number in range(count)}


@pytest.mark.parametrize(
    ("fixed", "units", "ready"),
    [
        pytest.param({}, (2, 6), (2, 6), id="nothing is in the way"),
        pytest.param({"stuck": drained(1), "broken": 1}, (2, 6), (1, 6), id="one that stays takes no work"),
        pytest.param({"stuck": drained(3), "broken": 3}, (3, 5), (0, 5), id="more stay than are to"),
        pytest.param({"stuck": drained(3), "broken": 0}, (3, 5), (3, 5), id="they are reserved and work"),
        pytest.param({"away": drained(7)}, (1, 6), (1, 6), id="fewer are there than are to stay"),
    ],
)
def test_the_goal_leaves_out_what_nobody_may_touch(
    fixed: dict[str, Any], units: tuple[int, int], ready: tuple[int, int]
) -> None:
    seen = world(64, training=Holding(allowed=8, held=8, ready=8, size=8, **fixed), inference=Holding(**NONE))
    goal = seen.goal(GOAL)
    assert (tuple(goal.units.values()), tuple(goal.ready.values())) == (units, ready)


def test_a_large_unit_that_has_no_room_leaves_it_to_smaller_ones() -> None:
    """Four GPUs stay where they shall not be, and the small ones that are there already stay in any case."""
    holdings = {
        "training": Holding(allowed=1, held=1, ready=0, stuck=drained(1), broken=1),
        "small": Holding(allowed=5, held=5, ready=5),
        "large": Holding(**NONE),
    }
    seen = World(CapacityBlock(id="b", limit=20, usage=14), holdings, {"training": 4, "small": 2, "large": 8})
    assert seen.goal({"training": 0, "small": 6, "large": 1}).units == {"training": 1, "small": 6, "large": 0}


@pytest.mark.parametrize(("usage", "inference"), [(32, 6), (40, 5), (64, 2), (72, 2), (None, 6)])
def test_what_others_have_of_the_block_is_not_possible(usage: int | None, inference: int) -> None:
    """Training has four units: two of them go, and the others are free as far as nobody else has them."""
    seen = world(usage, training=Holding(allowed=4, held=4, ready=4), inference=Holding(**NONE))
    possible = seen.possible(GOAL)
    assert possible.units == possible.ready == {"training": 2, "inference": inference}


def serving(limit: int, usage: int | None, *targets: str) -> ProjectShare:
    return ProjectShare("project-e00serving", frozenset(targets or ("inference",)), limit, usage)


@pytest.mark.parametrize(
    ("share", "goal", "possible"),
    [
        pytest.param(serving(64, 0), 6, 6, id="it may have all"),
        pytest.param(serving(24, 0), 3, 3, id="it may have less than is desired"),
        pytest.param(serving(24, 16), 3, 1, id="others of the project have some of it"),
        pytest.param(serving(24, None), 3, 3, id="nobody knows how much it has"),
        pytest.param(serving(48, 32, "training", "inference"), 4, 4, id="both are of one project"),
        pytest.param(serving(48, 32, "training"), 6, 6, id="it is the other's project"),
    ],
)
def test_more_than_a_project_may_have_is_not_possible(share: ProjectShare, goal: int, possible: int) -> None:
    seen = world(32, training=Holding(allowed=4, held=4, ready=4), inference=Holding(**NONE))
    seen = replace(seen, shares=[share])
    assert seen.goal(GOAL).units == {"training": 2, "inference": goal}
    assert seen.possible(GOAL).units == {"training": 2, "inference": possible}


@pytest.mark.parametrize(("usage", "inference"), [(0, 3), (8, 2), (24, 0), (32, 0), (None, 0)])
def test_no_more_is_given_than_the_project_has_left(usage: int | None, inference: int) -> None:
    seen = replace(world(0, inference=Holding(**NONE)), shares=[serving(24, usage)])
    assert may_have(seen, {"inference": 6}) == {"inference": inference}


def test_the_world_that_claims_are_tried_in_does_refuse_them() -> None:
    cloud = Cloud(LIMIT)
    greedy = cloud.add("training", ready=8, off=1)
    greedy.grow(9)
    cloud.tick()
    assert (cloud.refused, greedy.count(State.ASKED)) == (1, 1)


def test_it_refuses_what_a_project_may_not_have() -> None:
    cloud = Cloud(LIMIT)
    greedy = cloud.add("training", ready=2, off=1)
    cloud.shares["project-e00training"] = (frozenset({"training"}), 16)
    greedy.grow(3)
    cloud.tick()
    assert (cloud.refused, greedy.count(State.ASKED)) == (1, 1)
