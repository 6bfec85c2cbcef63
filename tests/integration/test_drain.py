"""Drains: which of them last, which go with the power, and whose reasons Slurm shows."""

from __future__ import annotations

import pytest

from sandbox.faults import DRAIN_REASONS
from tests.integration.cluster import NOT_UP, Cluster, NodeInfo


@pytest.mark.parametrize("short", DRAIN_REASONS)
def test_a_drain_shows_the_reason_of_whoever_set_it(cluster: Cluster, short: str) -> None:
    cluster.fault("node-drain", node="worker-0", reason=short)
    node = cluster.node("worker-0")
    assert node.state == {"IDLE", "CLOUD", "DRAIN"}
    assert node.reason == DRAIN_REASONS[short]
    assert (
        cluster.run("sinfo", "--noheader", "--nodes=worker-0", "--partition=main", "--format=%E").strip()
        == (DRAIN_REASONS[short])
    )


def test_a_drain_keeps_jobs_off_until_it_is_undone(cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "nodename=worker-0", "state=drain", "reason=looked at")
    job = cluster.sbatch("--nodelist=worker-0")
    cluster.wait("the scheduler has seen the job", lambda: cluster.job(job)["state_reason"] == "ReqNodeNotAvail")
    assert cluster.job_state(job) == "PENDING"
    cluster.run("scontrol", "update", "nodename=worker-0", "state=undrain")
    cluster.wait_job(job, "COMPLETED")


@pytest.mark.each_slurm
def test_the_start_of_a_pod_undoes_a_drain_up_to_4_1_only(cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "nodename=worker-1", "state=drain", "reason=airflow: keep off", "comment=mine")
    cluster.run("scontrol", "power", "up", "worker-1")
    node = cluster.wait_node("worker-1", has={"IDLE"}, lacks=NOT_UP - {"DRAIN"})
    job = cluster.sbatch("--nodelist=worker-1")
    if cluster.settings.soperator == "4.1":
        assert (node.state, node.reason, node.comment) == ({"IDLE", "CLOUD"}, "", "")
    else:
        assert (node.state, node.reason, node.comment) == ({"IDLE", "CLOUD", "DRAIN"}, "airflow: keep off", "mine")
        cluster.wait("the scheduler has seen the job", lambda: cluster.job(job)["state_reason"] == "ReqNodeNotAvail")
        cluster.run("scontrol", "update", "nodename=worker-1", "state=undrain")
        assert cluster.node("worker-1").comment == "mine"
    cluster.wait_job(job, "COMPLETED")


@pytest.mark.each_slurm
def test_a_drain_from_before_power_down_goes_with_the_power(cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    cluster.run("scontrol", "update", "nodename=worker-1", "state=drain", "reason=stay off")
    assert "DRAIN" in cluster.node("worker-1").state
    cluster.run("scontrol", "power", "down", "worker-1")

    def goes_or_is_off() -> NodeInfo | None:
        # On a busy machine all of SuspendTimeout may lie between two looks.
        node = cluster.node("worker-1")
        return node if node.state & {"POWERING_DOWN", "POWERED_DOWN"} else None

    assert "DRAIN" not in cluster.wait("worker-1 powers down", goes_or_is_off).state
    # So a queued job powers it up again, as if nobody had wanted it off.
    job = cluster.sbatch("--nodelist=worker-1")
    cluster.wait_job(job, "COMPLETED")


def test_a_drain_set_while_powering_down_keeps_the_node_off(cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    # Else it may be off before it is drained.
    with cluster.lasting_power_down("worker-1"):
        cluster.run("scontrol", "power", "down", "worker-1")
        cluster.wait_node("worker-1", has={"POWERING_DOWN"})
        cluster.run("scontrol", "update", "nodename=worker-1", "state=drain", "reason=airflow: shift")
    node = cluster.wait_node("worker-1", has={"POWERED_DOWN", "DRAIN"}, lacks={"POWERING_DOWN"})
    assert node.reason == "airflow: shift"
    job = cluster.sbatch("--nodelist=worker-1")
    cluster.wait("the scheduler has seen the job", lambda: cluster.job(job)["state_reason"] == "ReqNodeNotAvail")
    assert cluster.job_state(job) == "PENDING"
    assert cluster.node("worker-1").state == {"IDLE", "CLOUD", "POWERED_DOWN", "DRAIN"}
    cluster.run("scontrol", "update", "nodename=worker-1", "state=undrain")
    cluster.wait_job(job, "COMPLETED")
