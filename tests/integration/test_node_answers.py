"""What a real Slurm answers about nodes and partitions, through the states that power and drains put them in."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm import node_conditions
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.node_conditions import DrainReason
from airflow_provider_soperator.slurm.requests import (
    Drain,
    ListNodes,
    ListPartitions,
    PowerDown,
    PowerDownMode,
    PowerUp,
    Undrain,
)
from airflow_provider_soperator.slurm.states import JobBase
from tests.integration.answers import ask, the_job, the_node, wait_node
from tests.integration.cluster import Cluster


@pytest.mark.each_slurm
def test_a_node_through_its_power_states(cluster: Cluster) -> None:
    assert the_node(cluster).is_off
    # It boots once the test has seen what comes before.
    cluster.fault("node-no-boot", node="worker-1")
    ask(cluster, PowerUp(("worker-1",)))
    wait_node(cluster, lambda node: node.is_coming_up)
    cluster.fault("clear")
    wait_node(cluster, lambda node: node.is_usable)
    job = cluster.held_job("--nodelist=worker-1", "--gpus-per-node=8")
    busy = wait_node(cluster, lambda node: node.is_busy)
    assert busy.is_usable
    cluster.wait("its GPUs are taken", lambda: the_node(cluster).gpus_used == 8)

    reason = DrainReason("shifts/night", 'lent until 08:00; "quoted", a = b')
    ask(cluster, PowerDown(("worker-1",), PowerDownMode.ASAP, str(reason)))
    going = the_node(cluster)
    assert going.is_going_off
    assert going.is_draining
    assert node_conditions.is_ours(going, "shifts/night")
    assert DrainReason.parse(going.reason) == reason
    assert going.reason_user == "root"
    assert going.reason_since is not None
    cluster.let_go(job)
    off = wait_node(cluster, lambda node: node.is_off)
    # slurmctld has cleared the drain that came with it.
    assert not off.is_drained

    ask(cluster, Drain(("worker-1",), str(reason)))
    kept = the_node(cluster)
    assert kept.is_off
    assert kept.is_drained
    assert node_conditions.is_ours(kept)
    ask(cluster, Undrain(("worker-1",)))
    assert not node_conditions.is_ours(the_node(cluster))


def test_a_forced_power_down_takes_the_job_with_it(cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    job = JobId.parse(cluster.held_job("--nodelist=worker-1", "--no-requeue"))
    cluster.wait("it runs", lambda: the_job(cluster, job).state.base is JobBase.RUNNING)
    ask(cluster, PowerDown(("worker-1",), PowerDownMode.FORCE))
    wait_node(cluster, lambda node: node.is_off)
    ended = cluster.wait("it has ended", lambda: (found := the_job(cluster, job)).state.is_finished and found)
    assert not ended.state.succeeded


# With the habits of Soperator 5.0 it is powered down in the midst of this, too.
@pytest.mark.oldest_slurm
def test_a_node_that_does_not_boot(cluster: Cluster) -> None:
    cluster.fault("node-no-boot", node="worker-1")
    ask(cluster, PowerUp(("worker-1",)))
    wait_node(cluster, lambda node: node.is_coming_up)
    cluster.give_up_boot("worker-1")
    wait_node(cluster, lambda node: node.failed_to_resume)
    # Were the fault cleared first, the slurmd of its Pod, which 4.1 keeps, could register in the midst of this,
    # and slurmctld would take the node for one that has come up.
    ask(cluster, PowerDown(("worker-1",), PowerDownMode.FORCE))
    wait_node(cluster, lambda node: node.is_off and not node.failed_to_resume)


def test_soperators_reasons_are_known_and_not_ours(cluster: Cluster) -> None:
    ask(cluster, Drain(("worker-0",), "[user_problem] boot_disk_full: 95% [hc_program]"))
    drained = the_node(cluster, "worker-0")
    known = node_conditions.explain(drained.reason)
    assert known is not None
    assert known.heals
    assert not node_conditions.is_ours(drained)
    assert not drained.is_usable
    ask(cluster, Undrain(("worker-0",)))
    wait_node(cluster, lambda node: node.is_usable, "worker-0")


def test_all_nodes_and_partitions(cluster: Cluster) -> None:
    found = {node.name: node for node in ask(cluster, ListNodes())}
    shown = cluster.run("scontrol", "show", "hostnames", "worker-[0-3],worker-cpu-[0-1]").split()
    assert sorted(found) == shown
    worker = found["worker-0"]
    assert (worker.partitions, worker.gpus, worker.gpus_used) == (("hidden", "main"), cluster.settings.gpus, 0)
    assert found["worker-cpu-0"].gpus == 0
    partitions = {partition.name: partition for partition in ask(cluster, ListPartitions())}
    assert partitions["main"].is_default
    assert partitions["hidden"].is_hidden
    cluster.run("scontrol", "update", "NodeName=worker-0", 'Comment=say "hi" = x')
    assert the_node(cluster, "worker-0").comment == 'say "hi" = x'
