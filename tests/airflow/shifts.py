"""What tests of shifts have in common: one block, two targets, and what is seen of both from outside of Airflow."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.shift import Shift
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from sandbox.cloud.landscape import BLOCK_ID, INFERENCE_GROUP
from tests.integration.cluster import Cluster
from tests.patience import PATIENCE

NODES = [f"worker-{ordinal}" for ordinal in range(4)]
TARGETS = (
    SlurmNodesTarget(name="training", nodes="worker-[0-3]"),
    NebiusNodeGroupTarget(name="inference", node_group=INFERENCE_GROUP),
)

#: The same in a DAG file, which comes before the DAG.
HEAD = f"""
from datetime import timedelta

from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator
from airflow_provider_soperator.operators.capacity_dag import capacity_dag

training = SlurmNodesTarget(name="training", nodes="worker-[0-3]")
inference = NebiusNodeGroupTarget(name="inference", node_group="{INFERENCE_GROUP}")
BLOCK = "{BLOCK_ID}"


def shift(task_id, training_nodes, inference_nodes, **options):
    return ShiftCapacityOperator(**dict(
        task_id=task_id,
        targets=[training, inference],
        block=BLOCK,
        desired={{"training": training_nodes, "inference": inference_nodes}},
        poll_interval=1,
    ) | options)
"""


class Capacity:
    """The block's GPUs, as Slurm and Nebius have them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def allocation(self) -> dict[str, int]:
        """Nodes that Slurm may use, and machines of the inference group that are ready."""
        nodes = self.cluster.nodes()
        usable = [name for name in NODES if "DRAIN" not in nodes[name].state]
        return {"training": len(usable), "inference": self.cluster.group(INFERENCE_GROUP).ready_node_count}

    def reservations(self) -> dict[str, Any]:
        """Those of shifts, by their names."""
        found = json.loads(self.cluster.run("scontrol", "show", "reservations", "--json"))["reservations"]
        return {one["name"]: one for one in found if one["name"].startswith("airflow-")}

    def leases(self) -> list[str]:
        return [name for name in self.reservations() if name.startswith("airflow-shift-")]

    def handovers(self) -> list[str]:
        return [name for name in self.reservations() if name.startswith("airflow-handover-")]

    def wait_for_inference(self, machines: int) -> None:
        def ready() -> bool:
            return self.cluster.group(INFERENCE_GROUP).ready_node_count == machines

        self.cluster.wait(f"inference has {machines} machines", ready)

    def bring(self, training: int, inference: int) -> None:
        """Move GPUs without any Airflow, if they are elsewhere."""
        if self.allocation() == {"training": training, "inference": inference}:
            return
        order = ShiftOrder(
            key="test",
            task="test",
            block=BLOCK_ID,
            nebius_conn_id="nebius_default",
            targets=TARGETS,
            desired={"training": training, "inference": inference},
            wanted_at=datetime.now(timezone.utc),
            poll_interval=0.6,
        )
        os.environ.update(self.cluster.access["airflow_connections"])
        asyncio.run(_run(order))

    def end(self) -> None:
        """As it was in the beginning, whatever has failed: nothing reserved, no inference, and only worker-0 on."""
        for name in self.reservations():
            self.cluster.run("scontrol", "delete", f"ReservationName={name}")
        self.cluster.resize(INFERENCE_GROUP, 0).sync_wait(interval=0.1, timeout=PATIENCE)
        for name, node in self.cluster.nodes().items():
            if "DRAIN" in node.state:
                self.cluster.run("scontrol", "update", f"nodename={name}", "state=undrain")
        self.cluster.reset()


async def _run(order: ShiftOrder) -> None:
    async with Shift.open(order, ShiftClients(), logging.getLogger("shift")) as shift:
        await shift.run()


def in_an_hour() -> str:
    """A moment so late that a shift for it only prepares."""
    return (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
