"""What the doctor says of partitions."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.cli.slurm_checks import _partition
from airflow_provider_soperator.slurm.cluster_records import Node, Partition
from airflow_provider_soperator.slurm.states import NodeState


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("IDLE+CLOUD", "ok"),
        ("DOWN+DRAIN", "wrong"),
        # A job powers up the one, and the other is kept off.
        ("IDLE+CLOUD+POWERED_DOWN", "ok"),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", "wrong"),
    ],
)
def test_a_partition_is_well_if_one_of_its_nodes_can_take_jobs(state: str, verdict: str) -> None:
    nodes = [Node(name="worker-0", state=NodeState.parse(state), reason="airflow:capacity/b: lent (gpu_shifts)")]
    said = _partition(Partition(name="main", nodelist="worker-0", state="UP"), nodes)
    assert said.state == verdict
    if verdict == "wrong":
        assert "airflow:capacity/b: lent (gpu_shifts)" in said.said
