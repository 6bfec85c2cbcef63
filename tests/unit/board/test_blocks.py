"""Blocks of DAGs: the bar of who has how many GPUs, and what is told of a block that could not be looked at."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_provider_soperator.board import blocks
from airflow_provider_soperator.board.blocks import CapacityLook, look_at_capacity, sides
from airflow_provider_soperator.board.capacity_dags import CapacityDag
from airflow_provider_soperator.capacity.holdings import Holding, World
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.errors import CapacityError
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.cluster_records import Node

TARGETS = (
    SlurmNodesTarget(name="training", nodes="worker-[0-3]", slurm_conn_id="c"),
    NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-1"),
)
ORDER = ShiftOrder(
    key="watch",
    task="gpu_shifts",
    block="block-1",
    nebius_conn_id="nebius_default",
    targets=TARGETS,
    desired={},
    wanted_at=datetime.fromtimestamp(0, timezone.utc),
)
SCHEDULE = CapacitySchedule(
    timezone="UTC",
    windows=[Window("daily 20:00 - 08:00", {"training": 4, "inference": 0}, name="night")],
    otherwise={"training": 1, "inference": 3},
)
DAG = CapacityDag(dag_id="gpu_shifts", is_paused=False, schedule=SCHEDULE, order=ORDER)
WORLD = World(
    CapacityBlock(id="block-1", limit=64, usage=48),
    {
        "training": Holding(allowed=3, held=3, ready=2, finishing=1),
        "inference": Holding(allowed=2, held=2, ready=1, bought=3, to_come=2),
    },
    {"training": 8, "inference": 8},
)
NODES = [
    Node(name="worker-0", gres="gpu:8", gres_used="gpu:8"),
    Node(name="worker-1", gres="gpu:8", gres_used="gpu:3"),
    Node(name="worker-9", gres="gpu:8", gres_used="gpu:8"),
]


def told(connection: str = "c", world: World = WORLD) -> dict[str, list[tuple[str, int]]]:
    found = sides(DAG, world, connection, NODES)
    return {side.name: [(part.kind, part.gpus) for part in side.parts] for side in found}


def test_each_side_has_what_is_busy_and_idle_and_the_rest_is_of_others_or_free() -> None:
    assert told() == {
        # worker-9 is no node of the target.
        "training": [("busy", 11), ("idle", 13)],
        "inference": [("held", 8), ("moving", 8)],
        "others": [("others", 8)],
        "free": [("free", 16)],
    }
    [_, inference, *_] = sides(DAG, WORLD, "c", NODES)
    assert (inference.gpus, inference.bought) == (16, 8)


def test_a_block_that_was_looked_at_before_a_target_was_renamed_is_drawn_as_it_was() -> None:
    order = replace(ORDER, targets=(replace(TARGETS[0], name="batch"), TARGETS[1]))
    [training, *_] = sides(replace(DAG, order=order), WORLD, "c", NODES)
    assert (training.name, [part.kind for part in training.parts]) == ("training", ["held"])


def test_the_parts_of_a_bar_fill_it_from_left_to_right() -> None:
    parts = [part for side in sides(DAG, WORLD, "c", NODES) for part in side.parts]
    assert [part.x for part in parts] == [0, 17.19, 37.5, 50.0, 62.5, 75.0]
    assert sum(part.width for part in parts) == pytest.approx(100, abs=0.05)


def test_of_nodes_of_another_connection_it_is_unknown_which_are_busy() -> None:
    assert told("other")["training"] == [("held", 24)]


def test_a_block_whose_usage_is_unknown_has_no_free_part() -> None:
    world = replace(WORLD, block=replace(WORLD.block, usage=None))
    assert list(told(world=world)) == ["training", "inference"]


def look(monkeypatch: pytest.MonkeyPatch, answer: Any, before: CapacityLook | None = None) -> CapacityLook:
    async def world(*args: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(blocks, "capacity_dags", lambda connection: [DAG, replace(DAG, dag_id="own", order=None)])
    monkeypatch.setattr(blocks.reconciliation, "look", world)
    return asyncio.run(look_at_capacity("c", before))


def test_a_block_that_cannot_be_looked_at_is_as_it_was_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    first = look(monkeypatch, WORLD)
    assert (first.worlds, first.failures) == ({"gpu_shifts": WORLD}, {})
    then = look(monkeypatch, CapacityError("the cloud does not answer"), first)
    assert then.worlds == first.worlds
    assert then.since == {"gpu_shifts": first.taken}
    assert then.failures == {"gpu_shifts": "The cloud does not answer."}
    assert look(monkeypatch, CapacityError("still not"), then).since == then.since


def test_a_database_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(connection: str) -> Any:
        raise OSError("no route to host")

    monkeypatch.setattr(blocks, "capacity_dags", away)
    assert list(asyncio.run(look_at_capacity("c")).failures) == [""]
