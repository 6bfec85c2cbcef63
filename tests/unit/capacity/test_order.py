"""An order is the same after it has gone through JSON, and says at each moment how far one may go."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.capacity.order import ShiftOrder, Timeouts, patience
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget, NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.slurm.requests import PowerDownMode

AT = datetime(2026, 11, 21, 20, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)

PLAIN = ShiftOrder(
    key="shifts/scheduled__1/shift/-1",
    task="shifts/scheduled__1/shift/-1",
    block="capacityblockgroup-1",
    nebius_conn_id="nebius_default",
    targets=(
        SlurmNodesTarget(name="training", nodes="worker-[0-7]"),
        KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8),
    ),
    desired={"training": 4, "inference": 4},
    wanted_at=AT,
)
#: Nothing here is as it is by itself.
FULL = ShiftOrder(
    key="a/b/c/3",
    task="a/b/c/4",
    block="capacityblockgroup-2",
    nebius_conn_id="nebius_other",
    targets=(
        SlurmNodesTarget(
            name="training", nodes="worker-[0-7]", gpus_per_unit=4, order="work", whole_network_blocks=True
        ),
        NebiusNodeGroupTarget(
            name="inference", node_group="mk8snodegroup-1", min_nodes=1, kubernetes_conn_id="kubernetes_inference"
        ),
    ),
    desired={"training": 4, "inference": 0},
    wanted_at=datetime(2026, 11, 21, 20, 0, 0, 123457, tzinfo=timezone(timedelta(hours=1))),
    transfer=12.5 * MINUTE,
    until=AT + timedelta(hours=12),
    mode="force",
    force_after=7 * MINUTE,
    grace=90 * SECOND,
    signal="USR1",
    timeouts=Timeouts(release=MINUTE, free=2 * MINUTE, ready=3 * MINUTE, out_of_reach=4 * MINUTE),
    stops_at=AT + timedelta(hours=10),
    window_ends=AT + timedelta(hours=11),
    rollback="all",
    airflow="0a1b2c",
    wait_for_lease=False,
    poll_interval=2.5,
    why="night (shifts)",
    approved={
        "goal": {"training": 4, "inference": 0},
        "nodes": {"training": ["worker-3"]},
        "jobs": {"training": ["7"]},
        "end": AT.isoformat(),
    },
)


def through_json(order: ShiftOrder) -> ShiftOrder:
    return ShiftOrder.read(json.loads(json.dumps(order.write())))


@pytest.mark.parametrize("order", [PLAIN, FULL], ids=["plain", "full"])
def test_it_is_the_same_after_json(order: ShiftOrder) -> None:
    assert through_json(order) == order


def test_a_moment_keeps_its_zone() -> None:
    assert f"{through_json(PLAIN).wanted_at:%H:%M %Z} {through_json(FULL).wanted_at:%H:%M%z}" == "20:00 UTC 20:00+0100"


def test_nothing_is_left_out_of_that() -> None:
    assert [one.name for one in fields(ShiftOrder) if getattr(FULL, one.name) == getattr(PLAIN, one.name)] == []


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(timezone.utc)), st.timedeltas(0 * SECOND)
)
def test_no_moment_is_moved(moment: datetime, span: timedelta) -> None:
    span = min(span, timedelta(days=30))
    order = replace(PLAIN, wanted_at=moment, until=moment, transfer=span)
    assert through_json(order) == order


def test_units_are_called_as_their_target_calls_them() -> None:
    assert (PLAIN.units("training"), PLAIN.units("inference")) == ("nodes", "replicas")


def modes(order: ShiftOrder, *minutes: float) -> list[PowerDownMode | None]:
    """How far one may go, so many minutes after the units are wanted."""
    return [order.release(order.wanted_at + after * MINUTE).mode for after in minutes]


IDLE, ASAP, FORCE = PowerDownMode.IDLE, PowerDownMode.ASAP, PowerDownMode.FORCE


@pytest.mark.parametrize(("mode", "released"), [("idle", IDLE), ("asap", ASAP)])
def test_units_leave_so_long_before_as_they_need(mode: Any, released: PowerDownMode) -> None:
    order = replace(PLAIN, mode=mode, transfer=5 * MINUTE)
    assert order.leaves_at == AT - 5 * MINUTE
    assert modes(order, -60, -5.01, -5, 0, 600) == [None, None, released, released, released]
    assert {order.release(AT + after * MINUTE).leaves_at for after in (-60, 0, 60)} == {order.leaves_at}


def test_force_begins_with_the_warning() -> None:
    order = replace(PLAIN, mode="force", transfer=5 * MINUTE, force_after=10 * MINUTE, grace=2 * MINUTE, signal="USR1")
    assert modes(order, -6, -5, 0, 7.99, 8, 10, 60) == [None, ASAP, ASAP, ASAP, FORCE, FORCE, FORCE]
    forced = order.release(AT + 8 * MINUTE)
    assert (forced.signal, forced.grace) == ("USR1", 2 * MINUTE)


def test_nobody_is_forced_before_units_are_to_leave() -> None:
    order = replace(PLAIN, mode="force", grace=10 * MINUTE)
    assert modes(order, -5, -0.01, 0) == [None, None, FORCE]
    assert (order.release(AT).grace, order.release(AT).signals_at) == (10 * MINUTE, AT)


@pytest.mark.parametrize("mode", ["idle", "asap", "force"])
def test_the_way_back_waits_for_jobs_and_begins_at_once(mode: Any) -> None:
    order = replace(PLAIN, mode=mode)
    for after in (-60, 60):
        now = AT + after * MINUTE
        assert (order.release(now, back=True).mode, order.release(now, back=True).leaves_at) == (ASAP, now)


@pytest.mark.parametrize(("mode", "ahead"), [("idle", False), ("asap", True), ("force", True)])
def test_work_is_kept_off_ahead_unless_only_idle_units_go(mode: Any, ahead: bool) -> None:
    assert replace(PLAIN, mode=mode).release(AT - MINUTE).ahead is ahead


def test_what_is_approved_is_the_most_that_is_moved() -> None:
    order = replace(PLAIN, approved={"goal": {"training": 6, "inference": 2}})
    assert [order.allowed("training", 4, present) for present in (8, 6, 5)] == [6, 6, 5]
    assert [order.allowed("training", 7, present) for present in (8, 6, 5)] == [7, 6, 6]
    assert [order.allowed("inference", 4, present) for present in (0, 2, 3)] == [2, 2, 3]
    assert [order.allowed("inference", 1, present) for present in (0, 4)] == [1, 2]
    assert PLAIN.allowed("training", 4, 8) == 4


def test_what_came_without_a_name_may_go_back_by_an_approved_plan() -> None:
    """The machines of a node group have no names before they come."""
    order = replace(PLAIN, approved={"nodes": {"training": ["worker-0"], "inference": []}})
    assert (order.may_take("training"), order.may_take("inference")) == ({"worker-0"}, frozenset())
    with_way_back = replace(order, rollback="all")
    assert (with_way_back.may_take("training"), with_way_back.may_take("inference")) == ({"worker-0"}, None)


def test_nodes_and_jobs_are_approved_for_their_target() -> None:
    """Two Slurm clusters have nodes and jobs of the same names."""
    order = replace(PLAIN, approved={"nodes": {"training": ["worker-1"]}, "jobs": {"training": ["7", "8_1"]}})
    assert (order.may_take("training"), order.may_end("training")) == ({"worker-1"}, {"7", "8_1"})
    assert order.may_take("inference") == order.may_end("inference") == frozenset()
    assert PLAIN.may_take("training") is PLAIN.may_end("training") is None


def test_a_shift_ends_with_its_window_or_its_approval_whichever_comes_first() -> None:
    assert PLAIN.ends_at is None
    assert replace(PLAIN, stops_at=AT).ends_at == AT
    approved = {"end": (AT - MINUTE).isoformat()}
    assert replace(PLAIN, stops_at=AT, approved=approved).ends_at == AT - MINUTE
    assert replace(PLAIN, approved=approved).ends_at == AT - MINUTE


def test_jobs_are_waited_for_as_long_as_the_window_lasts_unless_it_is_all_or_nothing() -> None:
    assert not PLAIN.may_wait
    assert replace(PLAIN, stops_at=AT).may_wait
    assert not replace(PLAIN, stops_at=AT, rollback="all").may_wait
    assert patience(Timeouts(), has_window=True) is None
    assert patience(Timeouts(), has_window=False) == timedelta(hours=2)
    assert patience(Timeouts(release=MINUTE), has_window=True) == MINUTE


def test_a_node_group_is_the_same_place_with_or_without_its_kubernetes() -> None:
    group = NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-1")
    plain, emptied = (replace(PLAIN, targets=(one,)).places for one in (group, replace(group, kubernetes_conn_id="k")))
    assert plain == emptied == {"inference": "mk8snodegroup-1"}
