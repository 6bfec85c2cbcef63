"""What the objects of a workload tell of its replicas, where the sandbox's API has nothing to tell."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_soperator.soperator.workloads import last_scaled_by, problems


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
