"""The figures of a cluster, from jobs, nodes and shares that leave nothing to chance."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.slurm.cluster_records import Node, Share
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.states import JobState, NodeState
from airflow_provider_soperator.slurm.stats import Gpus, JobLoad, WaitTimes, gauges, snapshot, table

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


def job(number: str = "7", state: str = "PENDING", waited: float = 0, **fields: Any) -> Job:
    said = {"user": "ada", "partition": "main", "tres": "cpu=1,node=1,gres/gpu=8", **fields}
    return Job(id=JobId.parse(number), state=JobState.parse(state), submitted=NOW - timedelta(seconds=waited), **said)


def node(name: str, state: str, used: int = 0, gres: str = "gpu:8", **fields: Any) -> Node:
    said = {"partitions": ("main",), **fields}
    return Node(name=name, state=NodeState.parse(state), gres=gres, gres_used=f"gpu:{used}", **said)


@pytest.mark.parametrize(
    ("state", "counted"),
    [
        ("PENDING", "PENDING"),
        ("RUNNING", "RUNNING"),
        ("RUNNING+CONFIGURING", "CONFIGURING"),
        ("COMPLETING", "COMPLETING"),
        ("COMPLETED+COMPLETING", "COMPLETING"),
        ("SUSPENDED", "SUSPENDED"),
        ("COMPLETED+REQUEUED", "PENDING"),
        ("COMPLETED", None),
        ("CANCELLED by 7", None),
    ],
)
def test_a_job_is_in_one_state(state: str, counted: str | None) -> None:
    stats = snapshot([job(state=state)], [node("a", "IDLE")], None, NOW)
    found = {name: load.jobs for name, load in stats.queue["main"].items() if load.jobs}
    assert found == ({counted: 1} if counted else {})


def test_elements_of_an_array_that_wait_are_jobs() -> None:
    stats = snapshot([job("7_[1-3,9%2]", reason="Resources")], [], None, NOW)
    assert stats.queue["main"]["PENDING"] == JobLoad(jobs=4, nodes=4, gpus=32)
    assert stats.reasons == {"Resources": 4}


def test_reasons_are_counted_without_the_nodes_that_they_mean() -> None:
    waiting = [job(str(number), reason=f"ReqNodeNotAvail,_UnavailableNodes:worker-{number}") for number in (1, 2)]
    assert snapshot(waiting, [], None, NOW).reasons == {"ReqNodeNotAvail": 2}


def test_a_job_for_several_partitions_is_counted_once_and_empty_partitions_are_there() -> None:
    stats = snapshot([job(partition="main,spare")], [node("a", "IDLE", partitions=("main", "spare"))], None, NOW)
    assert {name: states["PENDING"].jobs for name, states in stats.queue.items()} == {"main": 1, "spare": 0}


def test_waits_are_of_jobs_that_could_start() -> None:
    waiting = [job(str(number), waited=number * 60) for number in range(1, 11)]
    others = [
        job("20", waited=1e6, reason="Dependency"),
        job("21", waited=1e6, reason="BeginTime"),
        job("22", waited=1e6, reason="JobHeldUser", priority=0),
        job("23", state="RUNNING", waited=1e6),
        # Elements of an array.
        job("24_[0-1]", waited=1e6, reason="BeginTime,Dependency"),
    ]
    assert snapshot(waiting + others, [], None, NOW).waits == WaitTimes(jobs=10, median=330, p90=540, longest=600)
    # The cluster's clock may be ahead of ours.
    assert snapshot([job(waited=-5)], [], None, NOW).waits == WaitTimes(jobs=1)
    assert snapshot(others, [], None, NOW).waits == WaitTimes()


@pytest.mark.parametrize(
    ("state", "used", "gpus"),
    [
        ("IDLE+CLOUD", 0, Gpus(8, idle=8)),
        ("MIXED+CLOUD", 2, Gpus(8, allocated=2, idle=6)),
        ("MIXED+CLOUD+DRAIN", 2, Gpus(8, allocated=2, drained=6)),
        ("IDLE+CLOUD+DRAIN", 0, Gpus(8, drained=8)),
        ("IDLE+CLOUD+POWERED_DOWN", 0, Gpus(8, off=8)),
        ("IDLE+CLOUD+POWERED_DOWN+DRAIN", 0, Gpus(8, off=8)),
        ("IDLE+CLOUD+POWERING_DOWN", 0, Gpus(8, off=8)),
        ("MIXED+CLOUD+POWERING_UP", 8, Gpus(8, allocated=8)),
        ("IDLE+CLOUD+POWERING_UP", 0, Gpus(8, booting=8)),
        ("DOWN+CLOUD", 0, Gpus(8, down=8)),
        ("IDLE+CLOUD+NOT_RESPONDING", 0, Gpus(8, down=8)),
    ],
)
def test_each_gpu_is_in_one_place(state: str, used: int, gpus: Gpus) -> None:
    stats = snapshot([], [node("a", state, used)], None, NOW)
    assert stats.gpus == gpus
    assert stats.gpus.total == sum([gpus.allocated, gpus.idle, gpus.drained, gpus.booting, gpus.off, gpus.down])


def test_gpus_by_partition_and_type() -> None:
    h100 = Node(
        name="b",
        state=NodeState.parse("MIXED"),
        partitions=("main", "fast"),
        gres="gpu:h100:8(S:0-1)",
        gres_used="gpu:h100:3(IDX:0-2)",
    )
    stats = snapshot([], [node("a", "IDLE"), h100, node("c", "IDLE", gres="")], None, NOW)
    assert stats.gpus_by_partition == {"main": Gpus(16, 3, 13), "fast": Gpus(8, 3, 5)}
    assert stats.gpus_by_type == {"gpu": Gpus(8, idle=8), "h100": Gpus(8, 3, 5)}
    assert (stats.gpus, stats.gpus.on) == (Gpus(16, 3, 13), 16)


def test_users_with_most_gpus_come_first() -> None:
    jobs = [job("1", "RUNNING", user="bob"), job("2", user="bob"), job("3", user="cy", tres="node=1")]
    jobs += [job(str(number), "RUNNING") for number in (4, 5)]
    stats = snapshot(jobs, [], None, NOW, top=2)
    assert [(one.user, one.has.gpus, one.waits_for.jobs) for one in stats.users] == [("ada", 16, 0), ("bob", 8, 1)]


def test_shares_are_of_users_who_have_used_most() -> None:
    shares = [
        Share(account="ml", usage=900),
        Share(account="ml", user="ada", usage=300, fair_share=0.2, level=0.5),
        Share(account="ml", user="bob", usage=600, fair_share=0.1, level=0.25),
        Share(account="bio", user="cy", fair_share=1.0, level=math.inf),
    ]
    stats = snapshot([], [], shares, NOW, top=2)
    assert stats.shares is not None
    assert [share.user for share in stats.shares] == ["bob", "ada"]


def test_it_is_json_and_a_table() -> None:
    shares = [Share(account="bio", user="cy", shares=1, normal_usage=0.0, fair_share=1.0, level=math.inf)]
    jobs = [job("1", "RUNNING"), job("2", waited=5400, reason="Resources")]
    nodes = [node("a", "MIXED", 8), node("b", "IDLE+DRAIN", gres="gpu:h100:4")]
    stats = snapshot(jobs, nodes, shares, NOW)
    plain = json.loads(json.dumps(stats.to_dict(), allow_nan=False))
    assert plain["queue"]["main"]["PENDING"] == {"jobs": 1, "nodes": 1, "gpus": 8}
    assert plain["shares"][0]["level"] is None
    assert plain["at"] == "2026-11-22T12:00:00+00:00"
    shown = table(stats)
    assert "waiting for: 1 Resources" in shown
    assert "longest 1 h 30 min (1 jobs that could start)" in shown
    assert "Nodes: 2 total, 1 usable, 2 up, 1 busy, 1 drained" in shown
    assert [line.split() for line in shown.splitlines() if line.strip().startswith("h100")] == [
        ["h100", "4", "4", "0", "0", "4", "0", "0", "0"]
    ]


def test_what_is_zero_has_a_gauge_too() -> None:
    stats = snapshot([job()], [node("a", "IDLE")], None, NOW)
    found = {(name, *tags.values()): value for name, value, tags in gauges(stats)}
    assert found["queue.jobs", "main", "PENDING"] == 1
    assert found["queue.gpus", "main", "RUNNING"] == 0
    assert found["nodes", "drained"] == 0
    assert found["gpus", "idle"] == found["partition.gpus", "main", "idle"] == 8
    assert len(found) == sum(1 for _ in gauges(stats))
