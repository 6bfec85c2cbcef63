"""The nodes that go are those that lose least by it at this moment, and those that were told stay chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_soperator.capacity.node_choice import choose, loads_of, work_of
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.states import JobState, NodeState

NOW = datetime(2026, 11, 21, 20, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)

OFF, GOING, IDLE, BUSY, ENDING = (
    "IDLE+CLOUD+POWERED_DOWN",
    "MIXED+CLOUD+POWER_DOWN",
    "IDLE+CLOUD",
    "MIXED+CLOUD",
    "IDLE+CLOUD+COMPLETING",
)


def node(number: int, state: str = BUSY) -> Node:
    return Node(name=f"worker-{number}", state=NodeState.parse(state), gres="gpu:8")


def job(number: int, nodes: str, *, left: timedelta | None = HOUR, ran: timedelta = HOUR, gpus: int = 8) -> Job:
    return Job(
        id=JobId(number),
        name="train",
        state=JobState.parse("RUNNING"),
        nodelist=nodes,
        started=NOW - ran,
        ends=NOW + (left or timedelta(days=365)),
        time_limit=ran + left if left else NoDuration.UNLIMITED,
        tres=f"cpu=16,gres/gpu={gpus}" if gpus else "cpu=16",
    )


def chosen(nodes: Sequence[Node], jobs: Sequence[Job], count: int, **how: Any) -> dict[str, str]:
    return choose(loads_of(nodes, jobs), count, now=NOW, **how)


def numbers(choices: Iterable[str]) -> list[int]:
    return [int(name.rpartition("-")[2]) for name in choices]


def test_what_was_told_goes_first_then_what_is_off_then_what_is_idle_then_what_ends_first() -> None:
    nodes = [node(0), node(1), node(2, IDLE), node(3, GOING), node(4, OFF)]
    jobs = [job(7, "worker-0", left=2 * HOUR), job(8, "worker-1", left=HOUR), job(9, "worker-3")]
    found = chosen(nodes, jobs, 5, told={"worker-3"})
    assert numbers(found) == [3, 4, 2, 1, 0]
    assert list(found.values()) == [
        "already powering down",
        "off",
        "idle",
        "runs 8 (train) until 21 Nov 2026 21:00:00 UTC at the latest",
        "runs 7 (train) until 21 Nov 2026 22:00:00 UTC at the latest",
    ]


def test_a_node_is_free_when_the_last_of_its_jobs_has_ended() -> None:
    nodes = [node(0), node(1)]
    jobs = [job(7, "worker-0", left=HOUR), job(8, "worker-[0-1]", left=3 * HOUR), job(9, "worker-1", left=4 * HOUR)]
    found = chosen(nodes, jobs, 2)
    assert numbers(found) == [0, 1]
    assert [why.partition(" until ")[2][:17] for why in found.values()] == ["21 Nov 2026 23:00", "22 Nov 2026 00:00"]


def test_what_may_run_for_ever_goes_last() -> None:
    found = chosen([node(0), node(1)], [job(7, "worker-0", left=None), job(8, "worker-1", left=1000 * HOUR)], 2)
    assert numbers(found) == [1, 0]
    assert found["worker-0"] == "runs 7 (train) without a time limit"


def test_by_work_that_would_be_lost() -> None:
    nodes = [node(0), node(1), node(2)]
    jobs = [
        job(7, "worker-0", left=HOUR, ran=3 * HOUR),
        job(8, "worker-1", left=9 * HOUR, ran=HOUR),
        job(9, "worker-2", left=5 * HOUR, ran=3 * HOUR, gpus=1),
    ]
    assert numbers(chosen(nodes, jobs, 3, by="work")) == [2, 1, 0]
    assert numbers(chosen(nodes, jobs, 3, by="end")) == [0, 2, 1]


def test_work_is_gpu_seconds_of_this_run() -> None:
    assert work_of(job(7, "worker-0", ran=HOUR, gpus=8), NOW) == 8 * 3600
    assert work_of(job(7, "worker-0", ran=HOUR, gpus=0), NOW) == 3600
    assert work_of(Job(id=JobId(7)), NOW) == 0


def test_a_node_whose_job_is_being_ended_is_not_idle() -> None:
    assert numbers(chosen([node(0, ENDING), node(1, IDLE)], [], 2)) == [1, 0]


def test_those_that_were_told_stay_chosen_whatever_is_idle_by_now() -> None:
    nodes = [node(0, IDLE), node(1, GOING), node(2, IDLE)]
    assert chosen(nodes, [job(7, "worker-1")], 1, told={"worker-1"}) == {"worker-1": "already powering down"}
    assert numbers(chosen(nodes, [job(7, "worker-1")], 3)) == [0, 2, 1]


def test_those_that_were_only_reserved_give_way_to_what_is_idle_now() -> None:
    nodes = [node(0), node(1, IDLE)]
    assert numbers(chosen(nodes, [job(7, "worker-0")], 1, reserved={"worker-0"})) == [1]


def test_of_nodes_that_are_free_in_time_those_stay_reserved_that_are() -> None:
    """Or the reservation would move from node to node as short jobs come and go."""
    nodes, jobs = [node(0, IDLE), node(1), node(2)], [job(7, "worker-1"), job(8, "worker-2", left=3 * HOUR)]
    how: dict[str, Any] = {"leaves_at": NOW + 2 * HOUR}
    assert numbers(chosen(nodes, jobs, 1, reserved={"worker-1"}, **how)) == [1]
    assert numbers(chosen(nodes, jobs, 1, reserved={"worker-2"}, **how)) == [0]


@pytest.mark.parametrize("state", ["DOWN+CLOUD", "IDLE+CLOUD+NOT_RESPONDING", "IDLE+CLOUD+POWERING_UP"])
def test_what_is_ill_or_not_there_yet_goes_before_what_is_well(state: str) -> None:
    found = chosen([node(0, IDLE), node(1, state)], [], 2)
    assert numbers(found) == [1, 0]
    assert found["worker-1"] == f"is {NodeState.parse(state)}"


def test_jobs_that_cannot_be_requeued_come_last_where_jobs_may_be_ended() -> None:
    nodes = [node(0), node(1)]
    jobs = [replace(job(7, "worker-0", left=HOUR), may_requeue=False), job(8, "worker-1", left=5 * HOUR)]
    assert numbers(chosen(nodes, jobs, 2)) == [0, 1]
    assert numbers(chosen(nodes, jobs, 2, ends_jobs=True)) == [1, 0]


@pytest.mark.parametrize("limit", [NoDuration.UNLIMITED, timedelta(days=365)])
def test_a_limit_of_a_year_is_none(limit: timedelta | NoDuration) -> None:
    """As slurmctld makes one up where a partition has none."""
    endless = replace(job(7, "worker-0", left=None), time_limit=limit)
    assert chosen([node(0)], [endless], 1)["worker-0"] == "runs 7 (train) without a time limit"


def test_when_fewer_are_to_go_than_were_chosen_before_those_stay_that_have_most_to_lose() -> None:
    nodes = [node(0), node(1, IDLE), node(2, OFF)]
    leaving = {"worker-0", "worker-1", "worker-2"}
    jobs = [job(7, "worker-0")]
    assert numbers(chosen(nodes, jobs, 1, told=leaving)) == [2]
    assert numbers(chosen(nodes, jobs, 2, told=leaving)) == [2, 1]


BLOCKS = {f"worker-{number}": f"rack{number // 2}" for number in range(6)}


def test_nodes_of_one_block_go_together() -> None:
    # One idle node in each of two blocks, and a block whose two nodes are free soon.
    nodes = [node(0, IDLE), node(1), node(2), node(3), node(4, IDLE), node(5)]
    jobs = [
        job(7, "worker-1", left=9 * HOUR),
        job(8, "worker-[2-3]", left=HOUR),
        job(9, "worker-5", left=8 * HOUR),
    ]
    assert numbers(chosen(nodes, jobs, 2)) == [0, 4]
    found = chosen(nodes, jobs, 2, blocks=BLOCKS)
    assert numbers(found) == [2, 3]
    assert found["worker-2"].endswith(", in block rack1")


def test_of_blocks_that_lose_the_same_the_smallest_goes() -> None:
    nodes = [node(number, IDLE) for number in range(3)]
    blocks = {"worker-0": "large", "worker-1": "large", "worker-2": "small"}
    assert numbers(chosen(nodes, [], 1, blocks=blocks)) == [2]


def test_a_node_that_is_gone_already_is_not_replaced_by_a_whole_block() -> None:
    nodes = [node(0, OFF), node(1), node(2, IDLE), node(3, IDLE)]
    found = chosen(nodes, [job(7, "worker-1", left=9 * HOUR)], 2, blocks=BLOCKS, told={"worker-0"})
    assert numbers(found) == [0, 2]


@pytest.mark.parametrize(
    "how",
    [{"by": "end"}, {"by": "work"}, {"blocks": BLOCKS}],
    ids=["end", "work", "blocks"],
)
@settings(max_examples=30)
@given(data=st.data())
def test_whoever_asks_again_is_told_the_same(how: dict[str, Any], data: st.DataObject) -> None:
    loads = st.tuples(st.sampled_from([OFF, GOING, IDLE, BUSY, ENDING]), st.integers(1, 9), st.integers(0, 9))
    count = data.draw(st.integers(0, 6))

    def world() -> tuple[list[Node], list[Job]]:
        said = data.draw(st.lists(loads, min_size=6, max_size=6))
        nodes = [node(number, state) for number, (state, _, _) in enumerate(said)]
        busy = {number: load for number, load in enumerate(said) if load[0] in (BUSY, GOING)}
        return nodes, [
            job(number + 1, f"worker-{number}", left=left * HOUR, ran=ran * HOUR)
            for number, (_, left, ran) in busy.items()
        ]

    first = list(chosen(*world(), count, **how))
    assert len(first) == len(set(first)) == count
    # Whatever has become of the nodes meanwhile.
    nodes, jobs = world()
    assert set(chosen(nodes, jobs, count, told=set(first), **how)) == set(first)
    more = set(chosen(nodes, jobs, min(6, count + 1), told=set(first), **how))
    assert more >= set(first)


@given(st.permutations(range(6)), st.integers(0, 6))
def test_nobody_goes_who_loses_more_than_one_who_stays(ends: Sequence[int], count: int) -> None:
    nodes = [node(number) for number in range(6)]
    left: Mapping[int, timedelta] = {number: (1 + ends[number]) * HOUR for number in range(6)}
    found = numbers(chosen(nodes, [job(number + 1, f"worker-{number}", left=left[number]) for number in left], count))
    assert found == sorted(left, key=lambda number: left[number])[:count]
