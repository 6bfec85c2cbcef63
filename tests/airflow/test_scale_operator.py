"""One target at a time brought to a number of units by a task: in a worker, in the triggerer, and ended half way."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sandbox.cloud.landscape import BLOCK_ID, REMOTE_INFERENCE_GROUP
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster
from tests.integration.scaling import Service

pytestmark = pytest.mark.lane("airflow of shifts")

HEAD = """
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget, NebiusNodeGroupTarget
from airflow_provider_soperator.operators.scaling import ScaleTargetOperator
"""
TASKS = f"""
def service(resource, gpus=8):
    return KubernetesScaleTarget(
        name=resource, resource=resource, namespace="inference", kubernetes_conn_id="kubernetes_inference",
        gpus_per_unit=gpus,
    )

common = dict(poll_interval=0.5, retries=0)
machines = ScaleTargetOperator(
    task_id="machines", target=NebiusNodeGroupTarget(name="machines", node_group="{REMOTE_INFERENCE_GROUP}"),
    units=1, block="{BLOCK_ID}", **common,
)
up = ScaleTargetOperator(
    task_id="up", target=service("vllm"), units="{{{{ params.replicas }}}}", deferrable=True, **common
)
late = ScaleTargetOperator(
    task_id="late", target=service("vllm"), units=2, timeout=timedelta(seconds=3), deferrable=True, **common
)
down = ScaleTargetOperator(task_id="down", target=service("vllm"), units=0, trigger_rule="all_done", **common)
machines >> up >> late >> down

for way, deferrable in (("deferred", True), ("in_worker", False)):
    # No machine has so many GPUs.
    ScaleTargetOperator(
        task_id=f"killed_{{way}}", target=service(f"large-{{way.replace('_', '-')}}", 16), units=1,
        deferrable=deferrable, **common,
    )
    ScaleTargetOperator(
        task_id=f"mistake_{{way}}", target=service("no-such"), units=1, deferrable=deferrable, poll_interval=1,
        retries=3, retry_delay=timedelta(seconds=0),
    )
ScaleTargetOperator(task_id="no_number", target=service("vllm"), units="{{{{ dag.dag_id }}}}", **common)
"""


@pytest.fixture(scope="module")
def vllm(slurm: Cluster) -> Iterator[Service]:
    one = Service(slurm, slurm.paths.inference_kubeconfig, REMOTE_INFERENCE_GROUP, "kubernetes_inference")
    for way in ("deferred", "in-worker"):
        large = one.get("deployment")
        large["metadata"] = {"name": f"large-{way}"}
        large["spec"]["selector"]["matchLabels"] = {"app": way}
        large["spec"]["template"]["metadata"]["labels"] = {"app": way}
        large["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "16"
        one.create(large)
    yield one
    one.kubectl("delete", "deployment", "large-deferred", "large-in-worker")
    one.end()


@pytest.fixture(scope="module")
def run(stack: Stack, vllm: Service) -> Run:
    return stack.add_dag("scale", TASKS, head=HEAD, dag_options="params={'replicas': 1}").trigger()


@pytest.mark.parametrize("way", ["deferred", "in_worker"])
def test_a_task_that_is_ended_leaves_the_target_where_it_is(run: Run, vllm: Service, way: str) -> None:
    task_id, resource = f"killed_{way}", f"large-{way.replace('_', '-')}"
    run.wait(task_id, "deferred" if way == "deferred" else "running")
    run.stack.wait("the service was scaled", lambda: vllm.get("deployment", resource)["spec"]["replicas"] == 1)
    run.mark(task_id, "failed")
    run.wait_log(task_id, f"{resource} is left as it is")
    assert vllm.get("deployment", resource)["spec"]["replicas"] == 1


def test_a_node_group_and_then_the_service_on_it_are_brought_up(run: Run, vllm: Service) -> None:
    run.wait("machines", "success")
    assert run.xcom("machines") | {"seconds": 0} == {"target": "machines", "units": 1, "gpus": 8, "seconds": 0}
    run.wait("up", "success")
    assert run.xcom("up") | {"seconds": 0} == {"target": "vllm", "units": 1, "gpus": 8, "seconds": 0}
    assert "Deployment vllm goes from 0 to 1 replicas" in run.wait_log("up", "goes from")


def test_what_does_not_get_there_in_time_is_explained(run: Run) -> None:
    run.wait("late", "failed")
    log = run.wait_log("late", "its time is over")
    assert "vllm is to have 2 replicas, and its time is over: 1 of 2 replicas are ready" in log
    assert "0 nodes are available" in log
    run.wait("down", "success")
    assert run.xcom("down")["units"] == 0


@pytest.mark.parametrize("way", ["deferred", "in_worker"])
def test_a_mistake_is_not_tried_again(run: Run, way: str) -> None:
    task = run.wait(f"mistake_{way}", "failed")
    assert task["try_number"] == 1
    run.wait_log(f"mistake_{way}", "there is no Deployment no-such in namespace inference")


def test_a_template_that_makes_no_number_is_named(run: Run) -> None:
    run.wait("no_number", "failed")
    run.wait_log("no_number", "units='scale' is no number")


def test_nobody_asked_for_more_than_there_was(slurm: Cluster, run: Run) -> None:
    run.wait("down", "success")
    entries = [json.loads(line) for line in slurm.paths.ledger.read_text().splitlines()]
    assert ("refused", REMOTE_INFERENCE_GROUP) not in [(entry["entry"], entry["holder"]) for entry in entries]
