"""One target at a time brought to a number of units by a task, without Airflow's processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget, NebiusNodeGroupTarget
from airflow_provider_soperator.operators.capacity import ScaleTargetOperator
from sandbox.cloud.landscape import BLOCK_ID, INFERENCE_NAMESPACE, REMOTE_INFERENCE_GROUP
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.late import too_late
from tests.integration.scaling import Service, service


@pytest.fixture
def vllm(cluster: Cluster, connections: Connections) -> Iterator[Service]:
    with service(cluster, "own cluster") as one:
        yield one


def target(vllm: Service, resource: str = "vllm") -> KubernetesScaleTarget:
    return vllm.target(name=resource, resource=resource, namespace=INFERENCE_NAMESPACE)


def perform(**options: Any) -> Any:
    """Execute the task as a worker would."""
    said = {"task_id": "scale", "poll_interval": 0.2, "deferrable": False, **options}
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="scale", map_index=-1)
    return ScaleTargetOperator(**said).execute({"ti": ti})


def test_a_node_group_and_then_the_service_on_it_are_brought_up_and_down(vllm: Service) -> None:
    before = len(vllm.cluster.ledger())
    machines = NebiusNodeGroupTarget(name="machines", node_group=REMOTE_INFERENCE_GROUP)
    outcome = perform(target=machines, units=1, block=BLOCK_ID)
    assert outcome | {"seconds": 0} == {"target": "machines", "units": 1, "gpus": 8, "seconds": 0}
    # As a template makes it.
    outcome = perform(target=target(vllm), units="1")
    assert outcome | {"seconds": 0} == {"target": "vllm", "units": 1, "gpus": 8, "seconds": 0}
    late = too_late(
        lambda within: perform(target=target(vllm), units=2, timeout=timedelta(seconds=within)),
        r"not done within \d+:\d\d:[^ ]+: vllm: 1 of 2 replicas are ready",
        within=3,
    )
    assert "0 nodes are available" in late
    assert json.loads(vllm.kubectl("get", "deployment", "vllm", "--output=json"))["spec"]["replicas"] == 2
    assert perform(target=target(vllm), units=0)["units"] == 0
    entries = vllm.cluster.ledger()[before:]
    assert "refused" not in {entry["entry"] for entry in entries}


def test_a_mistake_is_not_tried_again(vllm: Service) -> None:
    with pytest.raises(AirflowFailException, match="there is no Deployment no-such in namespace inference"):
        perform(target=target(vllm, "no-such"), units=1)


def test_a_template_that_makes_no_number_is_named(vllm: Service) -> None:
    with pytest.raises(AirflowFailException, match="units must be a number, got 'scale'"):
        perform(target=target(vllm), units="scale")
