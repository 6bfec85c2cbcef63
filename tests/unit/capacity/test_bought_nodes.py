"""Nodes beside the block: never more than was allowed, within a budget that holds though nobody comes back in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nebius.api.nebius.common.v1 import Operation
from nebius.api.nebius.mk8s.v1 import NodeGroupAutoscalingSpec, Problem, ProgressData
from nebius.base.protos.dynamic import REGISTRY

from airflow_provider_soperator.capacity.holdings import Holding, World
from airflow_provider_soperator.capacity.reconciliation import approval_of
from airflow_provider_soperator.capacity.shift import Shift
from airflow_provider_soperator.capacity.shift_plan import ShiftPlan, missing_units
from airflow_provider_soperator.capacity.targets import BoughtNodes, NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.nebius.node_groups import NodeGroupClient
from tests.unit.capacity.bought import POLICY, Group
from tests.unit.capacity.test_shift import ORDER, carry, made_cloud, shift
from tests.unit.capacity.world import SECOND, START, Cloud, Process, State, Unit, UnitsSession

HOUR = timedelta(hours=1)


def test_what_is_lacking_is_bought_and_goes_once_others_are_ready() -> None:
    group, until = Group(), START + 8 * HOUR
    assert group.bring(1, 1, START, until) == 1
    assert group.bring(3, 3, START + HOUR, until) == 2, "not more than allowed"
    assert group.bring(0, 2, START + 2 * HOUR, until) == 2, "those of the block still boot"
    assert group.bring(0, 1, START + 3 * HOUR, until) == 1
    assert group.bring(0, 0, START + 4 * HOUR, until) == 0
    assert group.group.metadata.labels["owner"] == "serving"
    assert len(set(group.keys)) == len(group.keys) == 4


def test_a_node_is_bought_only_if_the_budget_lasts_until_the_end_of_the_window() -> None:
    """One node costs 64 GPU-hours in eight hours."""
    until = START + 8 * HOUR
    assert Group().bring(2, 2, START, until, gpu_hours=63) == 0
    assert Group().bring(2, 2, START, until, gpu_hours=64) == 1
    assert Group().bring(2, 2, START, until, gpu_hours=128) == 2
    assert Group().bring(2, 2, START + 7 * HOUR, until, gpu_hours=16) == 2, "an hour is left"
    assert Group().bring(2, 2, START, None) == 0, "nobody knows for how long"
    assert Group().bring(2, 2, until, until) == 0


def test_what_has_gone_has_cost_something_too() -> None:
    group, until = Group(), START + 8 * HOUR
    said: dict[str, Any] = {"gpu_hours": 70}
    assert group.bring(1, 1, START, until, **said) == 1
    assert group.bring(0, 0, START + 5 * HOUR, until, **said) == 0
    assert group.bring(2, 2, START + 5 * HOUR, until, **said) == 1, "40 are spent, and each costs 24"
    assert group.bring(2, 2, START + 7 * HOUR, until, **said) == 1, "56 are spent, and each costs 8"
    assert group.bring(0, 0, START + 7 * HOUR, until, **said) == 0
    assert group.bring(2, 2, START + 7.5 * HOUR, until, **said) == 2, "56 are spent, and each costs 4"


def test_each_window_has_its_own_budget() -> None:
    group, until = Group(), START + 8 * HOUR
    assert group.bring(1, 1, START, until, gpu_hours=64) == 1
    assert group.bring(1, 1, until, until + 8 * HOUR, gpu_hours=64) == 1
    assert group.bring(1, 1, until + 7 * HOUR, until + 8 * HOUR, gpu_hours=64) == 1
    assert group.bring(0, 0, until + 8 * HOUR, until + 16 * HOUR, gpu_hours=64) == 0


@pytest.mark.parametrize("first", [2, 0])
def test_an_override_within_a_window_does_not_renew_its_budget(first: int) -> None:
    """Also if it is the first to buy."""
    group, until = Group(), START + 8 * HOUR
    said: dict[str, Any] = {"max_nodes": 3, "gpu_hours": 128, "window_ends": until}
    assert group.bring(first, first, START, until, **said) == first
    assert group.bring(3, 3, START + 2 * HOUR, START + 4 * HOUR, **said) == 3
    spent = 16 * first + 16 * 3
    assert group.bring(3, 3, START + 4 * HOUR, until, **said) == (128 - spent) // 32
    # One that outlasts it, and is withdrawn, does not burden the next window.
    group.bring(0, 0, until - HOUR, until + 40 * HOUR, **said)
    said["window_ends"] = until + 8 * HOUR
    assert group.bring(2, 2, until, until + 8 * HOUR, **said) == 2


def test_a_window_that_is_made_longer_is_another_one_and_what_it_cannot_pay_for_goes() -> None:
    group = Group()
    assert group.bring(1, 1, START, START + 8 * HOUR, gpu_hours=64) == 1
    assert group.bring(1, 1, START + 7 * HOUR, START + 24 * HOUR, gpu_hours=64) == 0


def test_what_was_paid_for_until_the_end_stays_whatever_moment_a_look_has() -> None:
    group, now, until = Group(), START + timedelta(seconds=0.9), START + 8 * HOUR
    hours = 2 * 8 * (until - now) / HOUR
    assert group.bring(2, 2, now, until, gpu_hours=hours) == 2
    assert {group.bring(2, 2, now + minutes * HOUR / 60, until, gpu_hours=hours) for minutes in range(480)} == {2}


def test_what_the_cloud_does_not_deliver_is_not_told_as_bought() -> None:
    group, session = Group(), Group().session()
    session._client = cast(NodeGroupClient, group)
    assert asyncio.run(session.look()) == (0, 0, ())
    group.bring(2, 2, START, START + HOUR)
    data = ProgressData(problems=[Problem(stage="create-node", message="no capacity")])
    group.running = [Operation(id="op", created_at=START, progress_data=REGISTRY.pack_any(data))]
    group.group.status.ready_node_count = 1
    paid, to_come, causes = asyncio.run(session.look())
    assert (paid, to_come, causes) == (2, 1, ("node group bought: no capacity",))
    seen = Holding(allowed=1, held=1, ready=1, bought=paid, to_come=to_come, problems=causes)
    world = World(CapacityBlock(id="b", limit=64, usage=64), {"inference": seen}, {"inference": 8})
    [line] = missing_units(world, replace(ORDER, targets=TARGETS[1:], desired={"inference": 3}))
    said = "2 nodes requested beside the block, of which 1 has not come; node group bought: no capacity"
    assert line == f"inference has 1 of 3 nodes ready: {said}"
    group.group.status.ready_node_count = 2
    assert asyncio.run(session.look()) == (2, 0, ())


def test_who_is_refused_tries_again() -> None:
    group = Group()
    group.refuses = 1
    assert group.bring(1, 1, START, START + HOUR) == 0
    assert asyncio.run(group.session().bring(1, 1, START, START + HOUR)) is False
    assert asyncio.run(group.session().bring(1, 1, START, START + HOUR)) is True
    assert group.nodes == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(-1, 4), st.integers(1, 90), st.none() | st.integers(90, 600)),
        max_size=40,
    ),
    st.integers(1, 3),
    st.integers(1, 200),
    st.integers(60, 1440),
)
def test_no_window_costs_more_than_it_may(
    looks: list[tuple[int, int, int, int | None]], max_nodes: int, gpu_hours: int, length: int
) -> None:
    """Looks come when they come, and none after the last: what is there then stays until the window ends.

    Some are for an override, after which there is another look.
    """
    group, now, until = Group(), START, START + length * timedelta(minutes=1)
    cost = 0.0
    for lacks, keeps, minutes, lasts in [*looks, (0, 0, 1, None)]:
        if now >= until:
            break
        ends = now + lasts * timedelta(minutes=1) if lasts else until
        asyncio.run(group.session(max_nodes, gpu_hours, until).bring(lacks, keeps, now, ends))
        assert group.nodes <= max_nodes
        then = min(until, now + minutes * timedelta(minutes=1))
        cost += group.nodes * 8 * (then - now) / HOUR
        now = then
    cost += group.nodes * 8 * max(timedelta(0), until - now) / HOUR
    assert cost <= gpu_hours + 0.01


# By a shift

TARGETS = (
    SlurmNodesTarget(name="training", nodes="worker-[0-7]"),
    NebiusNodeGroupTarget(
        name="inference",
        node_group="inference",
        fallback=BoughtNodes(node_group="bought", max_nodes=2, gpu_hours=1000, after=20 * SECOND),
    ),
)
END = START + 4 * HOUR
BUYS = replace(ORDER, targets=TARGETS, until=END, stops_at=END, timeouts=replace(ORDER.timeouts, free=60 * SECOND))


class BuyingSession(UnitsSession):
    """A target that may buy, and whose bought nodes are ready at once."""

    group: Group

    async def look(self) -> Holding:
        return replace(await super().look(), bought=self.group.nodes)

    async def buy(self, lacks: int, keeps: int, now: datetime, until: datetime | None) -> bool:
        return await self.group.session().bring(lacks, keeps, now, until)


@pytest.fixture
def bought() -> Group:
    return Group()


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, bought: Group) -> Cloud:
    """Eight units of training, of a block of 64 GPUs."""
    made = made_cloud(monkeypatch)

    def sessions(process: Process, key: str) -> Any:
        async def opened(stack: Any) -> dict[str, UnitsSession]:
            found = {name: BuyingSession(made, name, process, key) for name in made.targets}
            found["inference"].group, found["training"].group = bought, Group()
            return dict(found)

        return opened

    monkeypatch.setattr(made, "sessions", sessions)
    return made


def at(cloud: Cloud, second: int, deed: Callable[[], None]) -> None:
    tick = cloud.tick

    def ticked() -> None:
        tick()
        if cloud.now == second:
            deed()

    cloud.tick = ticked  # type: ignore[method-assign]


def others_take(cloud: Cloud, gpus: int) -> Callable[[], None]:
    def take() -> None:
        cloud.foreign = gpus

    return take


def test_a_shift_buys_what_others_have_of_the_block_but_only_some_time_after_the_handover(
    cloud: Cloud, bought: Group
) -> None:
    cloud.limit, cloud.foreign = 80, 40
    cloud.targets["training"].units[:] = [Unit(State.READY)] * 4 + [Unit(State.OFF)] * 4
    seen: list[int] = []
    at(cloud, 19, lambda: seen.append(bought.nodes))
    outcome = carry(cloud, replace(BUYS, desired={"training": 4, "inference": 3}))
    assert (seen, bought.nodes) == ([0], 2)
    assert outcome.state == "partial"
    assert outcome.missing[0] == "inference has 1 of 3 nodes ready: 2 nodes bought beside the block"


def test_what_has_been_waited_for_long_enough_before_that_time_is_bought_nevertheless(
    cloud: Cloud, bought: Group
) -> None:
    cloud.limit, cloud.foreign = 80, 40
    cloud.targets["training"].units[:] = [Unit(State.READY)] * 4 + [Unit(State.OFF)] * 4
    later, seen = cloud.clock().now(timezone.utc) + 60 * SECOND, list[int]()
    at(cloud, 79, lambda: seen.append(bought.nodes))
    order = replace(BUYS, desired={"training": 4, "inference": 3}, wanted_at=later, transfer=60 * SECOND)
    outcome = carry(cloud, order)
    assert (seen, bought.nodes) == ([0], 2)
    assert outcome.missing[0] == "inference has 1 of 3 nodes ready: 2 nodes bought beside the block"


def test_they_go_when_the_block_has_enough_and_with_the_next_handover(cloud: Cloud, bought: Group) -> None:
    cloud.limit, cloud.foreign = 80, 40
    cloud.targets["training"].units[:] = [Unit(State.READY)] * 4 + [Unit(State.OFF)] * 4
    carry(cloud, replace(BUYS, desired={"training": 4, "inference": 3}))
    cloud.foreign = 32
    outcome = carry(cloud, replace(BUYS, key="shifts/scheduled__2/shift/-1", desired={"training": 4, "inference": 3}))
    assert (outcome.state, bought.nodes) == ("partial", 1)
    outcome = carry(cloud, replace(BUYS, key="shifts/scheduled__3/shift/-1", desired={"training": 6, "inference": 0}))
    assert (outcome.state, bought.nodes) == ("done", 0)


def test_nothing_is_bought_of_what_is_there_in_time(cloud: Cloud, bought: Group) -> None:
    assert carry(cloud, BUYS).state == "done"
    assert bought.keys == []


def test_until_units_leave_the_window_before_keeps_what_it_has_bought(cloud: Cloud, bought: Group) -> None:
    later = cloud.clock().now(timezone.utc) + 60 * SECOND
    bought.bring(2, 2, START, later)
    seen: list[int] = []
    at(cloud, 50, lambda: seen.append(bought.nodes))
    carry(cloud, replace(BUYS, desired={"training": 8, "inference": 0}, wanted_at=later))
    assert (seen, bought.nodes) == ([2], 0)


@pytest.mark.parametrize(("buys", "nodes"), [({}, 0), ({"inference": str(TARGETS[1].fallback)}, 2)])
def test_nothing_is_bought_that_was_not_in_the_plan(cloud: Cloud, bought: Group, buys: Any, nodes: int) -> None:
    cloud.limit, cloud.foreign = 80, 40
    cloud.targets["training"].units[:] = [Unit(State.READY)] * 4 + [Unit(State.OFF)] * 4
    carry(cloud, replace(BUYS, desired={"training": 4, "inference": 3}, approved={"buys": buys}))
    assert bought.nodes == nodes


def test_the_plan_says_what_may_be_bought(cloud: Cloud) -> None:
    one = shift(cloud, BUYS)
    plan = asyncio.run(planned(one))
    said = (
        "inference: what the block lacks 0:00:20 after the handover is bought: up to 2 nodes of bought, "
        "for up to 1000 GPU-hours"
    )
    assert said in plan.notes
    assert approval_of(BUYS, plan.describe())["buys"] == BUYS_AS_SAID
    endless = shift(cloud, replace(BUYS, until=None, stops_at=None))
    assert f"{said}; nothing now, as the end of the window is unknown: set until" in asyncio.run(planned(endless)).notes


BUYS_AS_SAID = {"inference": str(TARGETS[1].fallback)}


async def planned(one: Shift) -> ShiftPlan:
    return await one.plan(await one.look())


# What is refused


def refused(group: Group) -> str:
    with pytest.raises(CapacityMistake) as mistake:
        asyncio.run(group.session().check())
    return str(mistake.value)


def test_what_could_take_gpus_of_a_block_buys_nothing() -> None:
    asyncio.run(Group().session().check())
    for policy in (POLICY.AUTO, POLICY.STRICT):
        assert f"has the reservation policy {policy.name}, with which it may take those of a block" in refused(
            Group(policy)
        )


def test_nodes_of_another_size_are_refused() -> None:
    assert "a node of bought has 1 GPUs (preset 1gpu-16vcpu-200gb), expected 8" in refused(
        Group(preset="1gpu-16vcpu-200gb")
    )


def test_what_would_buy_by_itself_is_refused() -> None:
    group = Group()
    group.group.spec.autoscaling = NodeGroupAutoscalingSpec(min_node_count=0, max_node_count=2)
    assert "has an autoscaler, which would buy by itself" in refused(group)


@pytest.mark.parametrize("wrong", [{"max_nodes": 0}, {"gpu_hours": 0}])
def test_what_allows_nothing_is_a_mistake_in_the_dag(wrong: dict[str, Any]) -> None:
    with pytest.raises(CapacityMistake, match=f"{next(iter(wrong))} must be"):
        BoughtNodes(**{"node_group": "bought", "max_nodes": 1, "gpu_hours": 8, **wrong})
