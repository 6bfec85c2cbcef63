"""A plan says in words what is going to be done, and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.capacity.holdings import Holding, ProjectShare, World
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.shift_plan import ShiftPlan, missing_units, plan
from airflow_provider_soperator.capacity.targets import (
    BoughtNodes,
    KubernetesScaleTarget,
    NebiusNodeGroupTarget,
    SlurmNodesTarget,
)
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

TOMORROW = datetime(2096, 11, 21, 20, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
ORDER = ShiftOrder(
    key="k",
    task="t",
    block="b",
    nebius_conn_id="n",
    targets=(
        SlurmNodesTarget(name="training", nodes="worker-[0-7]"),
        KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8),
    ),
    desired={"training": 6, "inference": 2},
    wanted_at=TOMORROW,
    transfer=15 * MINUTE,
)


def planned(training: int, inference: int, usage: int | None = 64, **changes: Any) -> ShiftPlan:
    holdings = {
        name: Holding(allowed=units, held=units, ready=units)
        for name, units in (("training", training), ("inference", inference))
    }
    world = World(CapacityBlock(id="b", limit=64, usage=usage), holdings, {"training": 8, "inference": 8})
    return plan(world, replace(ORDER, **changes), {"training": {"worker-3": "idle"}} if training > 6 else {})


def test_there() -> None:
    found = planned(8, 0)
    lines = str(found).split("\n")
    assert lines[:3] == [
        "training goes from 8 to 6 nodes",
        "    worker-3 will go: idle",
        "inference goes from 0 to 2 replicas",
    ]
    assert [line.partition(". ")[0] for line in lines[3:]] == ["1", "2", "3", "4"]
    leaves, wanted = "21 Nov 19:45:00 UTC", "21 Nov 20:00:00 UTC"
    assert found.steps[0].startswith(f"until {leaves}: jobs that would run longer are kept off")
    assert found.steps[1].startswith(f"at {leaves}: training releases idle nodes, and busy ones")
    assert found.steps[2].endswith("inference gets one more")
    assert found.steps[3] == f"by {wanted}: inference gets the last replica"


def test_idle_nodes_only_need_nothing_ahead() -> None:
    assert not any(step.startswith("until") for step in planned(8, 0, mode="idle").steps)


def test_force_is_announced() -> None:
    found = planned(8, 0, mode="force", force_after=10 * MINUTE, grace=2 * MINUTE, signal="USR1")
    assert any("SIGUSR1" in step and "20:10:00" in step for step in found.steps)


def test_no_job_is_announced_to_end_before_its_grace_is_over() -> None:
    found = planned(8, 0, mode="force", grace=20 * MINUTE)
    assert any("SIGTERM" in step and "20:05:00" in step for step in found.steps), "nodes leave from 19:45 on"
    past = datetime(2020, 1, 1, tzinfo=timezone.utc)
    assert "01 Jan" not in str(planned(8, 0, mode="force", wanted_at=past))


def test_what_is_wanted_by_now_begins_now() -> None:
    past = datetime(2020, 1, 1, tzinfo=timezone.utc)
    found = planned(8, 0, wanted_at=past)
    assert found.steps[0].startswith("now: training releases")
    assert not any("2020" in step or "01 Jan" in step for step in found.steps)


def test_growing_alone_needs_nobody_to_leave() -> None:
    found = planned(6, 0, 48)
    assert str(found).startswith("training keeps its 6 nodes\n")
    assert found.steps[0].endswith("inference gets what is free in the block")
    assert "releases" not in str(found)


def test_shrinking_alone_gives_to_nobody() -> None:
    assert "gets" not in str(planned(8, 2))


def test_what_is_possible_is_told_unit_by_unit() -> None:
    fixed = {"stuck": {"worker-3": "is drained: disk", "worker-4": "is drained: disk"}, "broken": 2, "size": 8}
    holdings = {
        "training": Holding(allowed=6, held=6, ready=4, **fixed),  # type: ignore[arg-type]
        "inference": Holding(allowed=0, held=0, ready=0),
    }
    world = World(CapacityBlock(id="b", limit=64, usage=56), holdings, {"training": 8, "inference": 8})
    found = plan(world, replace(ORDER, desired={"training": 1, "inference": 7}), {"training": {"worker-0": "idle"}})
    assert str(found).split("\n")[:5] == [
        "training goes from 6 to 2 nodes (1 desired), 0 of them ready",
        "    worker-0 will go: idle",
        "    each of worker-[3-4] is left as it is, as it is drained: disk",
        "inference goes from 0 to 5 replicas (7 desired)",
        "8 GPUs of the block belong to others, or to machines on their way out",
    ]
    assert found.describe()["possible"] == {"training": 2, "inference": 5}
    assert found.describe()["gpus_of_others"] == 8


def test_what_cannot_move_is_kept() -> None:
    holdings = {
        "training": Holding(allowed=1, held=1, ready=1, stuck={"worker-0": "is drained: disk"}),
        "inference": Holding(allowed=1, held=1, ready=1),
    }
    world = World(CapacityBlock(id="b", limit=16, usage=16), holdings, {"training": 8, "inference": 8})
    found = plan(world, replace(ORDER, desired={"training": 0, "inference": 2}), {})
    assert str(found).split("\n") == [
        "training keeps its 1 node (0 desired)",
        "    worker-0 is left as it is, as it is drained: disk",
        "inference keeps its 1 replica (2 desired)",
        "1. nothing to do",
    ]


@pytest.mark.parametrize(("limit", "is_told"), [(16, True), (24, False)])
def test_the_part_of_the_block_that_a_project_may_have_is_told_where_it_is_too_small(limit: int, is_told: bool) -> None:
    holdings = {"training": Holding(allowed=5, held=5, ready=5), "inference": Holding(allowed=1, held=1, ready=1)}
    share = ProjectShare("project-e00serving", frozenset({"inference"}), limit, 8)
    block = CapacityBlock(id="b", limit=48, usage=48)
    order = replace(ORDER, desired={"training": 3, "inference": 3})
    found = str(plan(World(block, holdings, {"training": 8, "inference": 8}, [share]), order, {}))
    said = f"project-e00serving may have {limit} GPUs of the block, and has 8"
    assert (said in found, "inference goes from 1 to 2 replicas (3 desired)" in found) == (is_told, is_told)


@pytest.mark.parametrize(("usage", "is_told"), [(16, True), (8, False), (None, True)])
def test_and_in_what_is_missing_where_it_is_full(usage: int | None, is_told: bool) -> None:
    seen = {"training": Holding(allowed=3, held=3, ready=3), "inference": Holding(allowed=2, held=2, ready=2)}
    share = ProjectShare("project-e00serving", frozenset({"inference"}), 16, usage)
    world = World(CapacityBlock(id="b", limit=48, usage=40), seen, {"training": 8, "inference": 8}, [share])
    (line,) = missing_units(world, replace(ORDER, desired={"training": 3, "inference": 3}))
    assert line == "inference has 2 of 3 replicas ready" + f": {share}" * is_told


@pytest.mark.parametrize("is_known", [True, False])
def test_what_is_bought_is_a_step_also_where_nothing_moves(is_known: bool) -> None:
    buys = BoughtNodes(node_group="bought", max_nodes=2, gpu_hours=64)
    target = NebiusNodeGroupTarget(name="inference", node_group="group", fallback=buys)
    until = TOMORROW + 60 * MINUTE if is_known else None
    found = planned(6, 1, usage=64, targets=(ORDER.targets[0], target), until=until)
    said = "from 21 Nov 20:10:00 UTC on: inference buys what the block lacks by then, up to 2 nodes"
    assert found.steps == ((said,) if is_known else ("nothing to do",))
    assert found.describe()["buys"] == ["inference"] * is_known


def test_nothing() -> None:
    found = planned(6, 2)
    assert found.steps == ("nothing to do",)


@pytest.mark.parametrize(("usage", "free", "others"), [(64, 0, 0), (None, None, None)])
def test_as_json(usage: int | None, free: int | None, others: int | None) -> None:
    found = planned(8, 0, usage)
    said = found.describe()
    assert said.pop("markdown")
    assert said == {
        "text": str(found),
        "moves": {"training": {"now": 8, "then": 6}, "inference": {"now": 0, "then": 2}},
        "possible": {"training": 6, "inference": 2},
        "nodes": {"training": ["worker-3"]},
        "back": {},
        "fixed": {},
        "jobs": {},
        "buys": [],
        "steps": list(found.steps),
        "free_gpus": free,
        "gpus_of_others": others,
        "notes": [],
    }


def test_what_others_do_is_told_before_the_steps() -> None:
    found = replace(planned(8, 0, 40), notes=("the block is also moved by Ann",))
    lines = str(found).splitlines()
    assert lines.index("the block is also moved by Ann") < next(n for n, line in enumerate(lines) if line[:2] == "1.")
    assert "- the block is also moved by Ann" in found.describe()["markdown"]
