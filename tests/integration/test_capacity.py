"""One block of GPUs, and all who want them: training nodes, the inference service, and whoever else there is."""

from __future__ import annotations

import time

import pytest

from sandbox.cloud.landscape import INFERENCE_GROUP, TRAINING_GROUP
from sandbox.settings import EPHEMERAL_SET, STATIC_SET
from tests.integration.cluster import NOT_UP, OFF, Cluster, NodeInfo, check_ledger
from tests.patience import PATIENCE

pytestmark = pytest.mark.oldest_slurm

# Machines outlive their nodes


def test_the_block_has_its_gpus_back_only_some_time_after_the_node_is_off(cluster: Cluster) -> None:
    def switched_off() -> tuple[str | None, float] | None:
        cluster.power_up("worker-1")
        machine = cluster.machine_of("worker-1")
        cluster.run("scontrol", "power", "down", "worker-1")
        cluster.wait_node("worker-1", has={"POWERED_DOWN"})
        seen_off = time.time()
        cluster.wait("its Pod is gone", lambda: cluster.pod("worker-1") is None)
        return (machine, seen_off) if [one["entry"] for one in cluster.ledger_of(machine)] == ["claim"] else None

    # Where the test is slow the machine has gone by then.
    machine, seen_off = cluster.wait("the node is off and its machine still holds GPUs", switched_off)
    cluster.wait("the machine gives back its GPUs", lambda: len(cluster.ledger_of(machine)) == 2)
    release = cluster.ledger_of(machine)[-1]
    assert (release["entry"], release["gpus"]) == ("release", cluster.settings.gpus)
    assert release["at"] > seen_off


@pytest.mark.each_slurm
def test_power_up_soon_after_power_down_finds_the_same_machine(cluster: Cluster) -> None:
    def again() -> tuple[str, NodeInfo] | None:
        cluster.power_up("worker-1")
        machine = cluster.machine_of("worker-1")
        cluster.power_down("worker-1")
        node = cluster.power_up("worker-1")
        return (machine, node) if cluster.machine_of("worker-1") == machine else None

    # Where the test is slow the machine has gone by then.
    machine, node = cluster.wait("the node is up again before its machine goes", again)
    assert node.instance_id == (machine if cluster.settings.slurm == "24.11" else "")
    assert [entry["entry"] for entry in cluster.ledger_of(machine)] == ["claim"]


# No machine in time


def test_resume_timeout_strikes_while_the_block_is_exhausted(cluster: Cluster) -> None:
    cluster.settle()
    cluster.fault("block-exhausted", leave=0)
    before = cluster.ledger()
    job = cluster.sbatch("--nodelist=worker-1")
    cluster.wait("the Pod finds no room", lambda: "NotEnoughResources" in cluster.events("worker-1"))
    [event] = cluster.group(TRAINING_GROUP).events
    assert event.last_occurrence is not None
    assert event.last_occurrence.code == "NotEnoughResources"
    cluster.give_up_boot("worker-1")
    node = cluster.wait_node("worker-1", has={"DOWN", "POWERED_DOWN"})
    assert node.reason == "ResumeTimeout reached"
    cluster.wait("the job is back in the queue", lambda: cluster.job(job)["restart_cnt"] == 1)
    assert "PENDING" in cluster.job_state(job)
    # Nobody got anything, and the one machine that there was no room for was refused once.
    assert [(entry["entry"], entry["holder"]) for entry in cluster.ledger()[len(before) :]] == [
        ("refused", TRAINING_GROUP)
    ]
    if cluster.settings.has_resume_fail_program:
        cluster.wait_gone("worker-1")
        assert cluster.active_nodes() == [0]
        cluster.fault("clear")
        cluster.run("scontrol", "power", "up", "worker-1")
    else:
        # Nobody takes the order back: the node comes up by itself once there are GPUs, whenever that is.
        assert cluster.active_nodes() == [0, 1]
        assert cluster.pod("worker-1").status.phase == "Pending"
        cluster.fault("clear")
    cluster.wait_node("worker-1", has={"IDLE"}, lacks=NOT_UP)
    cluster.start_soon(job)
    cluster.wait_job(job, "COMPLETED")


@pytest.mark.each_slurm
def test_a_node_that_does_not_boot_keeps_its_machine_up_to_4_1(cluster: Cluster) -> None:
    cluster.fault("node-no-boot", node="worker-1")
    cluster.run("scontrol", "power", "up", "worker-1")
    machine = cluster.wait("the Pod has a machine", lambda: cluster.machine_of("worker-1"))
    cluster.give_up_boot("worker-1")
    node = cluster.wait_node("worker-1", has={"DOWN", "POWERED_DOWN"})
    assert node.reason == "ResumeTimeout reached"
    if cluster.settings.has_resume_fail_program:
        cluster.wait_gone("worker-1")
    else:
        assert cluster.active_nodes() == [0, 1]
        assert cluster.machine_of("worker-1") == machine
        cluster.run("scontrol", "power", "down", "force", "worker-1")
        cluster.wait("the node is off and sound", lambda: cluster.node("worker-1").state == OFF)
    cluster.wait("the machine gives back its GPUs", lambda: len(cluster.ledger_of(machine)) == 2)
    assert cluster.active_nodes() == [0]


# Scaling


def test_a_smaller_node_set_takes_nodes_out_of_slurm_and_no_ordinal_off_the_power_state(cluster: Cluster) -> None:
    cluster.power_up("worker-3")
    machine = cluster.machine_of("worker-3")
    with cluster.scaled(EPHEMERAL_SET, 2):
        for name in ("worker-2", "worker-3"):
            cluster.wait_known(name, known=False)
        assert cluster.node("worker-0").state == {"IDLE", "CLOUD"}
        assert cluster.node("worker-1").state == OFF
        # So its Pod stays, and with it a machine that Slurm knows nothing of, until a person takes it off.
        assert cluster.active_nodes() == [0, 3]
        assert cluster.machine_of("worker-3") == machine
        cluster.set_active_nodes([0])
        cluster.wait("its Pod is gone", lambda: cluster.pod("worker-3") is None)
        cluster.wait("the machine gives back its GPUs", lambda: len(cluster.ledger_of(machine)) == 2)
    for name in ("worker-2", "worker-3"):
        assert cluster.node(name).state == OFF


def test_a_static_node_set_grows_and_shrinks_by_a_node_that_runs_jobs(cluster: Cluster) -> None:
    name = f"{STATIC_SET}-{cluster.settings.static}"
    with cluster.scaled(STATIC_SET, cluster.settings.static + 1):
        cluster.wait_known(name, known=True)
        cluster.wait_node(name, has={"IDLE"}, lacks=NOT_UP)
        assert cluster.run("srun", f"--nodelist={name}", "hostname").strip() == name
        assert cluster.machine_of(name) is not None
    cluster.wait_gone(name)


# Shifts


def test_gpus_go_from_training_to_inference_and_back(cluster: Cluster) -> None:
    cluster.settle()
    cluster.power_up("worker-1")
    with cluster.inference(replicas=3):
        growth = cluster.resize(INFERENCE_GROUP, 3)
        cluster.wait("all free GPUs are taken", lambda: cluster.group(INFERENCE_GROUP).ready_node_count == 2)
        [event] = cluster.group(INFERENCE_GROUP).events
        assert event.last_occurrence is not None
        assert event.last_occurrence.code == "NotEnoughResources"
        cluster.wait("two replicas run, one waits", lambda: len(set(cluster.replicas_on()) - {None}) == 2)
        assert None in cluster.replicas_on()
        growth.sync_update()
        assert not growth.done()

        cluster.run("scontrol", "power", "down", "worker-1")
        cluster.wait("the third replica runs", lambda: len(set(cluster.replicas_on()) - {None}) == 3)
        growth.sync_wait(interval=0.1, timeout=PATIENCE)
        assert growth.successful()
        assert cluster.usage() == cluster.settings.block

        cluster.run("scontrol", "power", "up", "worker-1")
        cluster.wait("training is refused", lambda: "NotEnoughResources" in cluster.events("worker-1"))
        assert cluster.machine_of("worker-1") is None
        assert "POWERING_UP" in cluster.node("worker-1").state

    cluster.wait_node("worker-1", has={"IDLE"}, lacks=NOT_UP)
    cluster.wait("only two nodes hold GPUs", lambda: cluster.usage() == 2 * cluster.settings.gpus)
    assert cluster.group(INFERENCE_GROUP).node_count == 0


# The ledger


def test_the_block_has_never_given_more_than_it_had(cluster: Cluster) -> None:
    entries = cluster.ledger()
    check_ledger(entries)
    too_much = {**entries[-1], "entry": "claim", "holder": "one-too-many", "gpus": cluster.settings.block}
    with pytest.raises(AssertionError, match="more than the block has"):
        check_ledger([*entries, too_much])
