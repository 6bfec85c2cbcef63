"""The wall of nodes, its tiles and their jobs."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.board.wall import state_of_tile, wall
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.states import JobState, NodeState


def node(name: str, state: str = "IDLE+CLOUD", **more: str) -> Node:
    return Node(name=name, state=NodeState.parse(state), gres="gpu:8", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slurm", "state"),
    [
        ("IDLE+CLOUD", "idle"),
        ("MIXED+CLOUD", "busy"),
        ("IDLE+COMPLETING", "busy"),
        ("IDLE+CLOUD+POWERED_DOWN", "off"),
        ("IDLE+DRAIN+POWERED_DOWN", "off"),
        ("IDLE+POWERING_DOWN", "going off"),
        ("IDLE+CLOUD+POWERING_UP", "booting"),
        ("MIXED+DRAIN", "draining"),
        ("IDLE+DRAIN", "drained"),
        ("DOWN", "down"),
        ("IDLE+NOT_RESPONDING", "not responding"),
        ("UNKNOWN", "unknown"),
        ("IDLE+CLOUD+FAIL", "failing"),
        ("MIXED+FAIL", "failing"),
        ("IDLE+CLOUD+BLOCKED", "blocked"),
        ("MIXED+BLOCKED", "busy"),
        ("IDLE+BLOCKED+POWERED_DOWN", "off"),
    ],
)
def test_a_tile_has_one_state(slurm: str, state: str) -> None:
    assert state_of_tile(node("worker-0", slurm)) == state


def test_tiles_are_by_node_set_and_in_the_order_of_numbers() -> None:
    names = ["worker-10", "worker-2", "worker-cpu-0", "login"]
    groups = wall(map(node, names), ())
    assert [(group.name, [tile.node.name for tile in group.tiles]) for group in groups] == [
        ("login", ["login"]),
        ("worker", ["worker-2", "worker-10"]),
        ("worker-cpu", ["worker-cpu-0"]),
    ]
    assert [tile.number for tile in groups[1].tiles] == ["2", "10"]


def test_a_tile_tells_its_jobs_and_who_has_drained_it() -> None:
    drained = node("worker-1", "MIXED+DRAIN", reason="airflow:shifts/night: lent until 08:00", reason_user="root")
    running = Job(id=JobId(7), state=JobState.parse("RUNNING"), nodelist="worker-[0-1]")
    pending = Job(id=JobId(8), state=JobState.parse("PENDING"), nodelist="")
    [group] = wall([drained], [running, pending])
    [tile] = group.tiles
    assert tile.jobs == (JobId(7),)
    assert tile.drained_by == "shifts/night"
    assert tile.words == (
        "worker-1: draining, 0 of 8 GPUs in use, job 7, airflow:shifts/night: lent until 08:00 (by root)"
    )
    assert group.counts == {"draining": 1}


def test_a_job_whose_nodes_cannot_be_read_hides_no_other() -> None:
    running = JobState.parse("RUNNING")
    jobs = [Job(id=JobId(7), state=running, nodelist="?"), Job(id=JobId(8), state=running, nodelist="worker-1")]
    [group] = wall([node("worker-1")], jobs)
    assert group.tiles[0].jobs == (JobId(8),)
