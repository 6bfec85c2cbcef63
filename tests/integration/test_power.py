"""Power saving as Soperator has it: what `scontrol power` does to nodes, Pods, machines and the block."""

from __future__ import annotations

from tests.integration.cluster import NOT_UP, Cluster


def test_power_up_boots_a_machine_of_the_block(cluster: Cluster) -> None:
    before = cluster.usage()
    cluster.run("scontrol", "power", "up", "worker-1")
    node = cluster.wait_node("worker-1", has={"IDLE"}, lacks=NOT_UP)
    assert cluster.usage() == before + cluster.settings.gpus
    assert node.instance_id in {entry["holder"] for entry in cluster.ledger()}
