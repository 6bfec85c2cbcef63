"""What Kubernetes tells of Slurm's nodes when a job has failed on them, and what becomes of it when it cannot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_soperator.client.job_run import JobRun
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from sandbox.settings import NAMESPACE
from tests.integration.cluster import Cluster, is_ready
from tests.integration.connections import Connections

pytestmark = pytest.mark.oldest_slurm


@pytest.fixture
def hook(connections: Connections) -> SlurmHook:
    """One that asks Slurm over SSH."""
    return connections.login_node(kubernetes_conn_id="kubernetes_default")


def told(hook: SlurmHook, *nodes: str) -> list[str]:
    return asyncio.run(hook.tell_of_pods(nodes or ("worker-0",)))


def test_a_failed_job_is_explained_by_both(cluster: Cluster, hook: SlurmHook) -> None:
    async def diagnosis() -> list[str]:
        async with hook.async_client() as slurm:
            key = SubmissionKey.derive("view", f"{time.time_ns()}", "fails", -1, "1")
            job = BatchJob(command="exit 3", nodelist="worker-0", output="/root/%j.out")
            run = JobRun(slurm, job, [key], tell_of_nodes=hook.tell_of_pods)
            *_, end = [news async for news in run.follow()]
            assert isinstance(end, JobStatus)
            return await run.diagnosis(end)

    lines = asyncio.run(diagnosis())
    machine = cluster.machine_of("worker-0")
    assert lines.index("  Accounting") < lines.index("  Kubernetes") < lines.index(f"    Node {machine}: Ready")
    assert f"    Pod worker-0: Running, on Node {machine}" in lines


def test_the_condition_of_a_machine_that_is_to_be_maintained(cluster: Cluster, hook: SlurmHook) -> None:
    words = {"node": "worker-0", "type": "NebiusMaintenanceScheduled", "reason": "Planned", "message": "at noon"}
    cluster.fault("node-condition", **words, status="True")
    try:
        [line] = [line for line in told(hook) if "NebiusMaintenanceScheduled" in line]
        assert line.startswith("  NebiusMaintenanceScheduled since 20")
        assert line.endswith("(Planned: at noon)")
    finally:
        cluster.fault("node-condition", **words, status="False")
    assert not any("NebiusMaintenanceScheduled" in line for line in told(hook))


def test_a_lost_machine_is_told_of_after_the_pod_has_moved(cluster: Cluster, hook: SlurmHook) -> None:
    before = cluster.machine_of("worker-0")
    cluster.fault("node-dies", node="worker-0")

    def moved() -> bool:
        pod = cluster.pod("worker-0")
        return pod is not None and is_ready(pod) and pod.spec.node_name != before

    cluster.wait("the Pod runs on another machine", moved)
    lines = told(hook)
    assert f"Pod worker-0: Running, on Node {cluster.machine_of('worker-0')}" in lines
    assert f"Node {before}: is gone" in lines
    # The newest: Kubernetes remembers what has happened to the Pods of this name in earlier tests.
    lost = next(line for line in lines if "NodeNotReady" in line)
    assert lost.endswith("Pod worker-0: Warning NodeNotReady: Node is not ready")
    assert any(f"Node {before}: RemovingNode" in line for line in lines)
    started = next(line for line in lines if "Started container slurmd" in line)
    assert lines.index(started) < lines.index(lost), "the newest come first"


@pytest.fixture
def killed_for_memory(cluster: Cluster) -> Iterator[None]:
    """A Pod whose container was."""
    pod = cluster.kubernetes.api_client.sanitize_for_serialization(cluster.pod("worker-0"))
    before: list[dict[str, Any]] = pod["status"]["containerStatuses"]
    end = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-21T12:00:00Z"}
    after = [{**one, "restartCount": 2, "lastState": {"terminated": end}} for one in before[:1]] + before[1:]

    def patch(statuses: list[dict[str, Any]]) -> None:
        cluster.kubernetes.patch_namespaced_pod_status(
            "worker-0", NAMESPACE, {"status": {"containerStatuses": statuses}}
        )

    patch(after)
    yield
    patch(before)


@pytest.mark.usefixtures("killed_for_memory")
def test_what_a_container_went_through(hook: SlurmHook) -> None:
    said = "restarted 2 times, previously ended with exit code 137 (OOMKilled) at 2026-11-21 12:00:00"
    assert f"  container slurmd: {said}" in told(hook)
    assert not any("container munge" in line for line in told(hook))


def test_of_many_nodes_some_are_told_of(hook: SlurmHook) -> None:
    lines = told(hook, "worker-3", "worker-0", "worker-cpu-0", "worker-cpu-1", "worker-1", "worker-2")
    assert lines[0] == "Pod worker-3: does not exist"
    assert lines[-1] == "and 2 more"
    assert sum(line.startswith("Pod ") for line in lines) == 4


def test_what_cannot_be_found_out_is_a_line(cluster: Cluster, hook: SlurmHook) -> None:
    cluster.fault("api", api="kubernetes", effect="error", matching="GET nodes/*", count=0)
    lines = told(hook)
    assert lines[0].startswith("Pod worker-0: Running")
    assert any(line.startswith("(Incomplete: could not read node") for line in lines)
    cluster.fault("api", api="kubernetes", effect="error", matching="*", count=0)
    [line] = told(hook)
    assert line.startswith("Kubernetes was not asked: could not read pod worker-0")


def test_an_api_that_does_not_answer_is_not_waited_for(cluster: Cluster, connections: Connections) -> None:
    cluster.fault("api", api="kubernetes", effect="hang", matching="*", count=0)
    said = asyncio.run(SoperatorClusterHook("kubernetes_default").tell_of(["worker-0"], within=1))
    assert said == ["Kubernetes was not asked: its API did not answer within 1 s"]


def test_a_connection_that_is_not_there_is_named(connections: Connections) -> None:
    [line] = told(connections.login_node(kubernetes_conn_id="no_such_connection"))
    assert line == "Kubernetes was not asked: there is no connection no_such_connection: add it, or name another one"


def test_without_a_kubernetes_connection_nothing_is_asked(connections: Connections) -> None:
    assert told(connections.login_node()) == []
