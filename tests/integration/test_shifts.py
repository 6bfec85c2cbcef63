"""Shifts of capacity as they are meant to go: nobody loses anything, and the block is never asked for what it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.shift_plan import ShiftOutcome
from airflow_provider_soperator.capacity.steering import SteeringCommand
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget
from airflow_provider_soperator.capacity.targets.reservation_timing import JobHistory
from airflow_provider_soperator.capacity.targets.slurm_session import SlurmNodesSession
from sandbox.cloud.landscape import INFERENCE_NAMESPACE, REMOTE_INFERENCE_GROUP
from tests.integration.cluster import Cluster, check_ledger
from tests.integration.shifts import WHOLE_NODE, Queue, Said, Shifts, at, opened
from tests.patience import PATIENCE

pytestmark = pytest.mark.lane("shifts")


@pytest.mark.each_slurm
def test_nights_and_days_under_a_queue(shifts: Shifts) -> None:
    queue = Queue(shifts)
    day = shifts.start(shifts.order(2, 2))
    shifts.wait_said(day, "powers down after its jobs")
    queue.let_go()
    outcome = day.end()
    assert outcome.allocation == {"training": 2, "inference": 2}
    shifts.check(2, same_cluster=2)
    figures = outcome.figures
    assert (figures.jobs_requeued, figures.jobs_killed, figures.lost_gpu_seconds) == (0, 0, 0)
    assert figures.limbo_gpu_seconds > 0
    assert figures.bought_gpus == 0
    night = shifts.run(shifts.order(4, 0))
    assert night.allocation == {"training": 4, "inference": 0}
    shifts.check_at_rest()
    queue.end()
    check_ledger(shifts.cluster.ledger())


@pytest.mark.oldest_slurm
def test_three_targets_of_three_kinds_in_both_layouts(shifts: Shifts) -> None:
    """The replicas in the other cluster bring their machines by themselves: its node group is autoscaled."""
    replicas = KubernetesScaleTarget(
        name="far",
        resource="vllm",
        namespace=INFERENCE_NAMESPACE,
        kubernetes_conn_id="kubernetes_inference",
        gpus_per_unit=8,
    )
    targets = (shifts.training(), shifts.inference(), replicas)
    with shifts.autoscaled(REMOTE_INFERENCE_GROUP, most=4):
        desired = {"training": 1, "inference": 2, "far": 1}
        assert shifts.run(shifts.order(1, 2, targets=targets, desired=desired)).allocation == desired
        shifts.check(1, same_cluster=2, own_cluster=1)
        # From one inference to the other, and training stays out of it.
        desired = {"training": 1, "inference": 1, "far": 2}
        assert shifts.run(shifts.order(1, 1, targets=targets, desired=desired)).allocation == desired
        shifts.check(1, same_cluster=1, own_cluster=2)
        desired = {"training": 4, "inference": 0, "far": 0}
        assert shifts.run(shifts.order(4, 0, targets=targets, desired=desired)).allocation == desired
    shifts.check_at_rest()


def test_nothing_is_done_where_everything_is_as_it_shall_be(shifts: Shifts) -> None:
    before = shifts.cluster.ledger()
    outcome = shifts.run(shifts.order(4, 0))
    assert (outcome.allocation, outcome.figures.limbo_gpu_seconds) == ({"training": 4, "inference": 0}, 0)
    assert shifts.cluster.ledger() == before
    shifts.check_at_rest()


# Ahead of the handover


def test_ahead_of_it_only_jobs_start_that_end_by_then(shifts: Shifts, monkeypatch: pytest.MonkeyPatch) -> None:
    # Those of other tests have lasted a second, for which no node would be reserved yet.
    async def unknown(session: SlurmNodesSession) -> JobHistory:
        return JobHistory()

    monkeypatch.setattr(SlurmNodesSession, "_history", unknown)
    cluster = shifts.cluster
    # Slurm counts time limits in minutes.
    ahead = shifts.order(2, 2, wanted_at=at(2 * PATIENCE), transfer=timedelta(seconds=5))
    first = shifts.start(ahead)
    shifts.wait_said(first, "only jobs that end by then start there")
    (handover,) = [name for name in shifts.reservations() if "handover" in name]
    leaving = shifts.nodes_of(handover)
    assert len(leaving) == 2
    staying = [name for name in shifts.workers if name not in leaving]
    for name in staying:
        cluster.wait_job(cluster.held_job(WHOLE_NODE, f"--nodelist={name}"), "RUNNING")
    long = cluster.held_job(WHOLE_NODE, f"--time={2 * PATIENCE // 60 + 2}")
    short = cluster.held_job(WHOLE_NODE, f"--time={PATIENCE // 60}")
    cluster.wait_job(short, "RUNNING")
    assert cluster.job(short)["nodes"] in leaving
    cluster.wait("the long one waits for the others", lambda: cluster.job(long)["state_reason"] != "None")
    assert cluster.job_state(long) == "PENDING"
    assert len(shifts.usable()) == 4
    assert not shifts.drained()
    # The one that goes on with it finds that its time has come. Before it looks again, Slurm has ended the drain that
    # comes with a power down: for the long one no node is powered up again all the same.
    first.die()
    second = shifts.start(replace(ahead, wanted_at=at(0), poll_interval=12))
    shifts.wait_said(second, "powers down after its jobs")
    cluster.let_go(short)
    outcome = second.end()
    assert set(shifts.drained()) == set(leaving)
    shifts.check(2, same_cluster=2)
    assert (outcome.figures.jobs_ended, outcome.figures.jobs_requeued, outcome.figures.jobs_killed) == (1, 0, 0)
    assert shifts.fates([short]) == {short: ("COMPLETED", 0)}
    assert cluster.job_state(long) == "PENDING"
    cluster.run("scancel", "--full", "--partition=main")
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()


@pytest.mark.soak
def test_nodes_that_stand_idle_ahead_of_it_are_counted(shifts: Shifts) -> None:
    figures = shifts.run(shifts.order(2, 2, wanted_at=at(15))).figures
    leaving = 2 * 8 * figures.total_seconds
    assert 0 < figures.idle_gpu_seconds < leaving
    assert figures.target_gpu_seconds["training"] > figures.target_gpu_seconds["inference"] > 0
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()


def test_nodes_that_are_kept_free_are_reserved_and_not_in_maintenance(shifts: Shifts) -> None:
    cluster = shifts.cluster
    # It begins after the window, and before a handover would end by itself.
    later = ["ReservationName=teamA", "Users=alice", "Nodes=worker-0", "StartTime=now+1day", "Duration=60"]
    cluster.run("scontrol", "create", "reservation", *later)
    jobs = [cluster.held_job(WHOLE_NODE, "--time=30", f"--nodelist={name}") for name in shifts.workers]
    for job in jobs:
        cluster.wait_job(job, "RUNNING")
    end = at(3600)
    running = shifts.start(shifts.order(0, 4, until=end, stops_at=end))
    shifts.wait_said(running, "powers down after its jobs")
    (handover,) = [name for name in shifts.reservations() if "handover" in name]
    assert shifts.nodes_of(handover) == shifts.workers
    cluster.wait("the nodes are reserved", lambda: "RESERVED" in cluster.node("worker-0").state)
    for name in shifts.workers:
        assert not {"MAINTENANCE", "DRAIN"} & set(cluster.node(name).state)
    for job in jobs:
        assert cluster.job_state(job) == "RUNNING"
        cluster.let_go(job)
    assert running.end().allocation == {"training": 0, "inference": 4}
    assert {state for state, _ in shifts.fates(jobs).values()} == {"COMPLETED"}
    cluster.run("scontrol", "delete", "ReservationName=teamA")
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()


class StopsSoon:
    """A person who stops a shift once it has told the first nodes to go."""

    def __init__(self) -> None:
        self._looks = 0

    async def commands(self, record: ShiftRecord) -> list[SteeringCommand]:
        self._looks += 1
        return [SteeringCommand(action="stop", at=at(0), by="ann")] if self._looks > 1 else []

    async def show(self, state: Mapping[str, Any]) -> None: ...


def test_nodes_that_are_told_to_go_as_it_stops_are_kept_off(shifts: Shifts) -> None:
    """Slurm ends the drain of a power down within a second or two, when it begins."""

    async def stopped() -> ShiftOutcome:
        async with opened(shifts.order(0, 4), Said().log) as shift:
            return await shift.run(None, StopsSoon())

    assert asyncio.run(stopped()).state == "partial"
    cluster, drained = shifts.cluster, shifts.drained()
    assert [*drained] == shifts.workers
    assert all(reason.startswith("airflow:capacity/") for reason in drained.values())
    cluster.wait("all are off", lambda: all("POWERED_DOWN" in cluster.node(name).state for name in shifts.workers))
    assert shifts.drained() == drained
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()


# How far nodes may be hurried


@pytest.mark.soak
@pytest.mark.oldest_slurm
def test_idle_waits_and_lets_jobs_start_until_a_node_is_idle(shifts: Shifts) -> None:
    cluster = shifts.cluster
    half = {name: cluster.held_job("--gpus-per-node=4", f"--nodelist={name}") for name in shifts.workers}
    for job in half.values():
        cluster.wait_job(job, "RUNNING")
    running = shifts.start(shifts.order(3, 1, mode="idle"))
    shifts.wait_said(running, "powers down after its jobs")
    assert not shifts.drained()
    assert not [name for name, node in cluster.nodes().items() if "POWER_DOWN" in node.state]
    more = cluster.held_job("--gpus-per-node=4", "--nodelist=worker-0")
    cluster.wait_job(more, "RUNNING")
    # Whichever is idle first: it need not be the one that was to go.
    cluster.let_go(half["worker-2"])
    outcome = running.end()
    assert set(shifts.drained()) == {"worker-2"}
    shifts.check(3, same_cluster=1)
    assert (outcome.figures.jobs_requeued, outcome.figures.jobs_killed) == (0, 0)
    assert {state for state, _ in shifts.fates(half.values()).values()} == {"COMPLETED", "RUNNING"}
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()


@pytest.mark.soak
def test_a_node_that_falls_idle_takes_the_place_of_a_busy_one(shifts: Shifts) -> None:
    cluster = shifts.cluster
    jobs = {name: cluster.held_job(WHOLE_NODE, f"--nodelist={name}") for name in shifts.workers}
    for job in jobs.values():
        cluster.wait_job(job, "RUNNING")
    running = shifts.start(shifts.order(3, 1))
    shifts.wait_said(running, "worker-0 powers down after its jobs")
    cluster.let_go(jobs["worker-3"])
    assert running.end().state == "done"
    assert set(shifts.drained()) == {"worker-3"}
    assert cluster.job_state(jobs["worker-0"]) == "RUNNING"
    # It was only reserved, and is free for jobs again.
    assert not shifts.reservations()
    assert "worker-0" in shifts.usable()
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()


# What others keep for themselves


@pytest.mark.soak
def test_what_somebody_has_drained_is_left_to_them(shifts: Shifts) -> None:
    cluster = shifts.cluster
    cluster.run("scontrol", "update", "nodename=worker-3", "state=drain", "reason=disk")
    outcome = shifts.run(shifts.order(0, 4))
    assert outcome.state == "partial"
    assert "worker-3 is drained by root: disk" in outcome.missing[0]
    assert shifts.machines() == 3
    assert shifts.drained()["worker-3"] == "disk"
    cluster.run("scontrol", "update", "nodename=worker-3", "state=undrain")
    assert shifts.run(shifts.order(4, 0)).state == "done"
    shifts.check_at_rest()


@pytest.mark.soak
def test_what_others_have_reserved_is_left_to_them(shifts: Shifts) -> None:
    cluster = shifts.cluster
    words = ("ReservationName=team", "Users=root", "Nodes=worker-0", "StartTime=now+30minutes", "Duration=60")
    cluster.run("scontrol", "create", "reservation", *words)
    try:
        assert shifts.run(shifts.order(3, 1)).state == "done"
        assert "worker-0" not in shifts.drained()
    finally:
        cluster.run("scontrol", "delete", "ReservationName=team")
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()


def warnable(shifts: Shifts) -> list[str]:
    """A job at work on each node, of which the last one ends when it is warned."""
    cluster = shifts.cluster
    # As Slurm's own preemption does, the signal goes to steps: this one notes it, and works on.
    note, live = "date +%s.%N >> /root/warned-$SLURM_JOB_ID", "date +%s.%N >> /root/alive-$SLURM_JOB_ID; sleep 0.2"
    stubborn = f"srun bash -c \"trap '{note}' TERM; while :; do {live}; done\""
    tidy = "srun bash -c \"trap 'exit 0' TERM; touch /root/alive-$SLURM_JOB_ID; while :; do sleep 0.2; done\""
    jobs = [
        cluster.sbatch(WHOLE_NODE, f"--nodelist={name}", wrap=tidy if name == "worker-3" else stubborn)
        for name in shifts.workers
    ]
    for job in jobs:
        cluster.wait(
            f"{job} is at work", lambda job=job: cluster.try_run("test", "-e", f"/root/alive-{job}").returncode == 0
        )
    return jobs


def grace_of(cluster: Cluster, job: str) -> float:
    """Seconds for which a job was at work after its warning."""
    alive, warned = (cluster.try_run("cat", f"/root/{what}-{job}").stdout.split() for what in ("alive", "warned"))
    return float(alive[-1]) - float(warned[0]) if warned else 0.0


def test_force_warns_gives_the_grace_and_requeues(shifts: Shifts) -> None:
    cluster, grace = shifts.cluster, 3.0
    while True:
        *requeued, ended = jobs = warnable(shifts)
        figures = shifts.run(shifts.order(0, 4, mode="force", grace=timedelta(seconds=grace))).figures
        given = [grace_of(cluster, job) for job in requeued]
        # It begins before the signal is sent: on a busy machine that, and to heed it, takes most of a short one.
        is_heeded = shifts.fates([ended]) == {ended: ("COMPLETED", 0)} and min(given) > grace * 5 / 6
        if is_heeded or 5 * grace > PATIENCE:
            break
        cluster.run("scancel", "--full", "--partition=main")
        shifts.run(shifts.order(4, 0))
        grace *= 5
    shifts.check(0, same_cluster=4)
    assert shifts.fates(jobs) == {ended: ("COMPLETED", 0)} | dict.fromkeys(requeued, ("PENDING", 1))
    assert (figures.jobs_ended, figures.jobs_requeued, figures.jobs_killed) == (1, 3, 0)
    assert figures.lost_gpu_seconds > 3 * 8 * grace
    accounted = cluster.run(
        "sacct", "--noheader", "--duplicates", "--allocations", "--format=State", f"--jobs={','.join(jobs)}"
    )
    assert "NODE_FAIL" not in accounted
    assert min(given) > grace * 5 / 6, "one did not get its grace"
    cluster.run("scancel", *requeued)
    shifts.run(shifts.order(4, 0))
    shifts.check_at_rest()
