"""What a node is ordered, and what it is called then."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.requests import Drain, PowerDown
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.work.nodes import NodeChange


@pytest.mark.parametrize("stays", [True, False])
def test_a_node_that_is_to_stay_down_is_drained_once_it_goes(stays: bool) -> None:
    change = NodeChange(
        action="down",
        nodes=("worker-0",),
        owner="nights",
        reason="lent",
        stay_down=stays,
        slurm_conn_id="soperator_default",
        since=datetime.now(timezone.utc),
        deadline=None,
    )
    node = Node(name="worker-0", state=NodeState.parse("IDLE"))
    [order] = change.decide([node]).orders
    assert isinstance(order, PowerDown)
    more = change.decide([replace(node, state=NodeState.parse("IDLE+POWERING_DOWN"))]).orders
    assert [(type(one), one.reason) for one in more] == [(Drain, "airflow:nights: lent")] * stays
