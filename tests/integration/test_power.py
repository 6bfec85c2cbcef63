"""Power saving as Soperator has it: what `scontrol power` does to nodes, jobs, Pods and machines."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.settings import EPHEMERAL_SET, STATIC_SET
from tests.integration.cluster import NOT_UP, OFF, Cluster
from tests.patience import PATIENCE

GOING_UP = {"POWER_UP", "POWERING_UP"}

# Power up


@pytest.mark.each_slurm
def test_power_up_boots_a_machine_of_the_block(cluster: Cluster) -> None:
    cluster.settle()
    before = cluster.ledger()
    cluster.run("scontrol", "power", "up", "worker-1")
    node = cluster.wait_node("worker-1", has={"IDLE"}, lacks=NOT_UP)
    [claim] = cluster.ledger()[len(before) :]
    assert (claim["entry"], claim["gpus"]) == ("claim", cluster.settings.gpus)
    assert cluster.active_nodes() == [0, 1]
    assert cluster.machine_of("worker-1") == claim["holder"]
    machine = cluster.kubernetes.read_node(claim["holder"])
    assert machine.spec.provider_id == f"nebius://{claim['holder']}"
    assert machine.status.allocatable["nvidia.com/gpu"] == str(cluster.settings.gpus)
    if cluster.settings.slurm == "24.11":
        assert node.instance_id == claim["holder"]
    else:
        # slurmctld 26.05 takes the id from a registration only if the node booted after it was last heard of, and
        # it sets "last heard of" to now for a node that powers up: it does not learn the id of this boot.
        assert node.instance_id == ""


def test_a_queued_job_powers_up_the_node_it_needs(cluster: Cluster) -> None:
    # It boots once the test has seen what comes before.
    cluster.fault("node-no-boot", node="worker-1")
    job = cluster.sbatch("--nodelist=worker-1", "--gpus-per-node=8", wrap="hostname")
    cluster.wait_node("worker-1", has={"POWERING_UP"})
    assert "CONFIGURING" in cluster.job_state(job)
    cluster.fault("clear")
    cluster.wait_job(job, "COMPLETED")
    assert cluster.run("cat", f"/root/{job}.out").strip() == "worker-1"
    assert cluster.active_nodes() == [0, 1]


def test_a_job_of_three_nodes_powers_up_all_of_them(cluster: Cluster) -> None:
    job = cluster.sbatch("--nodes=3", "--nodelist=worker-[1-3]", "--gpus-per-node=8", wrap="srun hostname")
    cluster.wait("all three power up", lambda: cluster.active_nodes() == [0, 1, 2, 3])
    cluster.wait_job(job, "COMPLETED")
    said = cluster.run("cat", f"/root/{job}.out").split()
    assert sorted(said) == ["worker-1", "worker-2", "worker-3"]
    assert len({cluster.machine_of(name) for name in said}) == 3
    assert cluster.usage() == cluster.settings.block


def test_power_up_is_ignored_while_the_node_powers_down(cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    with cluster.lasting_power_down("worker-1"):
        cluster.run("scontrol", "power", "down", "worker-1")
        cluster.wait_node("worker-1", has={"POWERING_DOWN"})
        said = cluster.try_run("scontrol", "power", "up", "worker-1")
        assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
        state = cluster.node("worker-1").state
        assert "POWERING_DOWN" in state
        assert not GOING_UP & state
    # An order that had been kept would now show beside POWERED_DOWN, and would soon undo it.
    assert cluster.wait_node("worker-1", has={"POWERED_DOWN"}).state == OFF
    cluster.wait_gone("worker-1")
    assert cluster.node("worker-1").state == OFF
    assert cluster.active_nodes() == [0]


# Power down


def test_power_down_waits_for_the_job_and_lets_more_jobs_start(cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    first = cluster.held_job("--nodelist=worker-1", "--gpus-per-node=4")
    cluster.wait_job(first, "RUNNING")
    cluster.run("scontrol", "power", "down", "worker-1")
    node = cluster.wait_node("worker-1", has={"POWER_DOWN"})
    assert "DRAIN" not in node.state
    second = cluster.held_job("--nodelist=worker-1", "--gpus-per-node=4")
    cluster.wait_job(second, "RUNNING")
    cluster.let_go(first)
    cluster.wait_job(first, "COMPLETED")
    assert cluster.job_state(second) == "RUNNING"
    assert "POWERING_DOWN" not in cluster.node("worker-1").state
    cluster.let_go(second)
    cluster.wait_job(second, "COMPLETED")
    cluster.wait_node("worker-1", has={"POWERED_DOWN"})
    cluster.wait_gone("worker-1")
    assert cluster.active_nodes() == [0]


def test_power_down_asap_waits_for_the_job_and_lets_no_other_start(cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    with cluster.lasting_power_down("worker-1"):
        first = cluster.held_job("--nodelist=worker-1", "--gpus-per-node=4")
        cluster.wait_job(first, "RUNNING")
        cluster.run("scontrol", "power", "down", "asap", "worker-1")
        node = cluster.wait_node("worker-1", has={"POWER_DOWN", "DRAIN"})
        assert node.reason == "POWER_DOWN_ASAP"
        second = cluster.sbatch("--nodelist=worker-1", "--gpus-per-node=4")
        cluster.wait("the scheduler has seen it", lambda: cluster.job(second)["state_reason"] == "ReqNodeNotAvail")
        assert cluster.job_state(first) == "RUNNING"
        cluster.let_go(first)
        cluster.wait_job(first, "COMPLETED")
        cluster.wait_node("worker-1", has={"POWERING_DOWN"}, lacks={"POWER_DOWN", "DRAIN"})
        assert cluster.job_state(second) == "PENDING"
    # The drain has gone with the power, so that it does not keep the node off.
    cluster.wait_job(second, "COMPLETED")
    assert cluster.run("sacct", "--noheader", "--parsable2", "--allocations", "-j", second, "-o", "NodeList") == (
        "worker-1\n"
    )


@pytest.mark.each_slurm
def test_power_down_force_requeues_the_job_which_then_runs_again(cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    with cluster.lasting_power_down("worker-1"):
        job = cluster.held_job("--nodelist=worker-1", "--gpus-per-node=8")
        cluster.wait_job(job, "RUNNING")
        cluster.run("scontrol", "power", "down", "force", "worker-1")
        cluster.wait("the job is back in the queue", lambda: cluster.job(job)["restart_cnt"] == 1)
        cluster.wait_node("worker-1", has={"POWERING_DOWN"})
        assert "PENDING" in cluster.job_state(job)
    cluster.wait_node("worker-1", has={"POWERED_DOWN"})
    cluster.start_soon(job)
    cluster.let_go(job)
    cluster.wait_job(job, "COMPLETED")
    assert cluster.job(job)["restart_cnt"] == 1


@pytest.mark.each_slurm
def test_a_reason_for_power_down_asap_is_taken_from_25_11_on(cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    said = cluster.try_run("scontrol", "power", "down", "asap", "worker-1", "Reason=serving needs it")
    if cluster.settings.slurm == "24.11":
        assert said.returncode == 1
        assert "too many arguments for keyword:power" in said.stderr
        node = cluster.node("worker-1")
        assert (node.state, node.reason) == ({"IDLE", "CLOUD"}, "")
    else:
        assert (said.returncode, said.stderr) == (0, "")
        node = cluster.wait_node("worker-1", has={"POWERED_DOWN"})
        assert node.reason == "serving needs it"


@pytest.mark.each_slurm
def test_power_down_of_a_node_that_is_off_runs_the_cycle_again(cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "nodename=worker-1", "state=drain", "reason=stay off")
    cluster.wait_node("worker-1", has={"POWERED_DOWN", "DRAIN"})
    with cluster.lasting_power_down("worker-1"):
        cluster.run("scontrol", "power", "down", "worker-1")
        cluster.wait_node("worker-1", has={"POWERING_DOWN"}, lacks={"POWERED_DOWN"})
    node = cluster.wait_node("worker-1", has={"POWERED_DOWN"}, lacks={"POWERING_DOWN"})
    assert "DRAIN" not in node.state


# Static nodes


def test_power_down_of_a_static_node_stops_nothing_and_loses_the_node_to_slurm(cluster: Cluster) -> None:
    name = f"{STATIC_SET}-1"
    before = cluster.pod(name).metadata.uid
    cluster.run("scontrol", "power", "down", name)
    cluster.wait_node(name, has={"POWERED_DOWN"})
    skipped = f"power-manager: NodeSet {STATIC_SET} is not ephemeral, skipping"
    cluster.wait("it was told so", lambda: skipped in cluster.kubectl("logs", "controller-0", "--container=slurmctld"))
    assert cluster.pod(name).metadata.uid == before
    assert cluster.run("hostname", pod=name).strip() == name
    assert cluster.custom("nodesets", STATIC_SET)["status"]["phase"] == "Ready"
    # slurmd runs on, but as it does not register again, `power up` would end in ResumeTimeout. A new slurmd does.
    cluster.replace_pod(name)
    cluster.wait_node(name, has={"IDLE"}, lacks=NOT_UP)
    assert cluster.run("srun", f"--nodelist={name}", "hostname").strip() == name


# NodeSet and NodeSetPowerState


def test_the_power_state_lists_the_nodes_that_are_on_in_order(cluster: Cluster) -> None:
    cluster.run("scontrol", "power", "up", "worker-3")
    cluster.wait("worker-3 is listed", lambda: cluster.active_nodes() == [0, 3])
    cluster.run("scontrol", "power", "up", "worker-1")
    cluster.wait("worker-1 is listed before it", lambda: cluster.active_nodes() == [0, 1, 3])
    cluster.wait("the status has followed", lambda: power_state(cluster)["status"]["activeCount"] == 3)
    state = power_state(cluster)
    [condition] = state["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"], condition["message"]) == (
        "Ready",
        "True",
        "ActiveNodesReconciled",
        # Of when it was made: Soperator writes a condition again only when its status turns.
        "1 active nodes reconciled",
    )
    assert state["spec"]["nodeSetRef"] == EPHEMERAL_SET
    assert state["metadata"]["labels"]["slurm.nebius.ai/nodeset"] == EPHEMERAL_SET


def test_a_missing_power_state_is_made_anew_with_the_initial_nodes_on(cluster: Cluster) -> None:
    before = power_state(cluster)["metadata"]["uid"]
    cluster.kubectl("delete", "nodesetpowerstate", EPHEMERAL_SET)
    [state] = cluster.wait("there is a new one", lambda: cluster.list_custom("nodesetpowerstates"))
    assert state["metadata"]["uid"] != before
    assert state["spec"]["activeNodes"] == [0]
    assert cluster.node("worker-0").state == {"IDLE", "CLOUD"}


@pytest.mark.each_slurm
def test_a_node_set_with_nodes_off_is_ready_only_from_5_0_on(cluster: Cluster) -> None:
    some_off = cluster.wait("the controller has looked", lambda: readiness(cluster, available=1))
    cluster.run("scontrol", "power", "up", "worker-[1-3]")
    for ordinal in range(1, 4):
        cluster.wait_node(f"worker-{ordinal}", has={"IDLE"}, lacks=NOT_UP)
    all_on = cluster.wait("all are on", lambda: readiness(cluster, available=4))
    if cluster.settings.soperator == "4.1":
        assert some_off == ("Provisioning", "False", "NodeSetNotReady", "NodeSet is not ready")
        assert all_on == ("Ready", "True", "NodeSetReady", "NodeSet is ready")
    else:
        assert some_off == ("Ready", "True", "NodeSetReady", "All 1 worker pods are available")
        assert all_on == ("Ready", "True", "NodeSetReady", "All 4 worker pods are available")


def test_a_power_state_changed_by_hand_goes_past_slurm(cluster: Cluster) -> None:
    # It asks a slurmd whether it is there a third of that after it was last heard of.
    with cluster.configured("slurmd_timeout", 3 * PATIENCE):
        cluster.set_active_nodes([0, 2])
        # slurmctld was not told, and yet the slurmd that registers makes it take the node for one that is on.
        cluster.wait_node("worker-2", has={"IDLE"}, lacks=NOT_UP)
        cluster.set_active_nodes([0])
        cluster.wait("the Pod is gone", lambda: cluster.pod("worker-2") is None)
        cluster.wait("so is its slurmd", lambda: "worker-2" not in cluster.sandbox.init.processes())
        assert cluster.node("worker-2").state == {"IDLE", "CLOUD"}
        # A slurmctld that reads its configuration sends it to all that are on.
        cluster.power_down("worker-2")


# Reading


def power_state(cluster: Cluster) -> dict[str, Any]:
    return cluster.custom("nodesetpowerstates", EPHEMERAL_SET)


def readiness(cluster: Cluster, available: int) -> tuple[str, ...] | None:
    """What the NodeSet says of itself, once it has seen that so many Pods are available."""
    status = cluster.custom("nodesets", EPHEMERAL_SET)["status"]
    if status["replicas"] != available:
        return None
    [ready] = [entry for entry in status["conditions"] if entry["type"] == "PodsReady"]
    return status["phase"], ready["status"], ready["reason"], ready["message"]
