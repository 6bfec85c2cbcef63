"""What the objects of a workload tell of its replicas, where the sandbox's API has nothing to tell."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_provider_soperator.soperator.conditions import Condition
from airflow_provider_soperator.soperator.workloads import Host, Pod, last_scaled_by, pods_on_hosts, problems, source_of


def change(manager: str, day: int, field: str = "f:replicas") -> dict[str, Any]:
    return {"manager": manager, "time": f"2026-01-0{day}T00:00:00Z", "fieldsV1": {"f:spec": {field: {}}}}


@pytest.mark.parametrize(
    ("changes", "who"),
    [
        ([change("kubectl", 1), change("argocd", 2), change("airflow-provider-soperator", 3)], "argocd"),
        ([change("kubectl", 2), change("argocd", 1), change("helm", 3, "f:template")], "kubectl"),
        ([change("airflow-provider-soperator", 1)], ""),
        (None, ""),
    ],
)
def test_who_else_has_scaled_last_is_in_the_managed_fields(changes: Any, who: str) -> None:
    assert last_scaled_by({"metadata": {"managedFields": changes}}) == who


def waiting(reason: str) -> dict[str, Any]:
    status = {"name": "vllm", "state": {"waiting": {"reason": reason, "message": "of vllm:latest"}}}
    return {"metadata": {"name": "vllm-0"}, "status": {"containerStatuses": [status]}}


def test_what_keeps_replicas_from_being_ready_is_said_once() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "has timed out"}
    fine = {"type": "Available", "status": "False", "message": "does not have minimum availability"}
    pods = [waiting("ImagePullBackOff"), waiting("ImagePullBackOff"), waiting("ContainerCreating")]
    assert problems({"status": {"conditions": [refused, late, fine]}}, pods) == (
        "exceeded quota: gpus",
        "has timed out",
        "container vllm waits (ImagePullBackOff: of vllm:latest)",
    )


def test_a_pod_has_the_machine_that_it_is_on() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-22T02:00:00Z"}
    node = {
        "metadata": {"name": "computeinstance-1", "creationTimestamp": "2026-11-22T01:00:00Z"},
        "status": {"conditions": [ready]},
    }
    running = {"status": {"phase": "Running", "conditions": [ready]}}
    pods = [
        {"metadata": {"name": "worker-0"}, "spec": {"nodeName": "computeinstance-1"}, **running},
        {"metadata": {"name": "worker-1", "deletionTimestamp": "x"}, "spec": {"nodeName": "computeinstance-2"}},
        waiting("ImagePullBackOff"),
    ]
    found = pods_on_hosts(pods, [node])
    one = datetime(2026, 11, 22, 1, tzinfo=timezone.utc)
    host = Host("computeinstance-1", one, (Condition("Ready", "True", since=one.replace(hour=2)),))
    assert found["worker-0"] == Pod("Running", True, host, since=one.replace(hour=2))
    assert found["worker-1"] == Pod(host=Host("computeinstance-2", is_gone=True), is_leaving=True)
    assert found["vllm-0"] == Pod(problems=("container vllm waits (ImagePullBackOff: of vllm:latest)",))


@pytest.mark.parametrize(
    ("manager", "label", "resets_soon"),
    [
        ("kustomize-controller", "kustomize.toolkit.fluxcd.io/name", True),
        # A HelmRelease is written again with its next upgrade only.
        ("helm-controller", "helm.toolkit.fluxcd.io/name", False),
    ],
)
def test_how_soon_flux_resets_replicas(manager: str, label: str, resets_soon: bool) -> None:
    managed = [{"manager": manager, "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    found = source_of({"metadata": {"labels": {label: "vllm"}, "managedFields": managed}})
    assert found
    assert found.sets_replicas is resets_soon
