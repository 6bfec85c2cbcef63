"""Replicas of a workload that others put back, beyond what the sandbox's KEDA does."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from airflow_provider_soperator.capacity.autoscalers import Keda
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget
from airflow_provider_soperator.capacity.targets.kubernetes_session import KubernetesScaleSession, Workload
from airflow_provider_soperator.soperator.workloads import PUT_BACK
from tests.unit.capacity.world import Log


class PutBack:
    """A Deployment that a controller has put back to one replica, and that KEDA may scale to three."""

    async def read(self) -> dict[str, Any]:
        change = {"manager": "flux", "time": "2026-11-23", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        return {"metadata": {"annotations": {PUT_BACK: "1 by flux"}, "managedFields": [change]}, "status": {}}

    async def scale(self) -> dict[str, Any]:
        return {"spec": {"replicas": 1}, "status": {"replicas": 1}}

    async def autoscaler(self) -> Keda:
        return Keda({"metadata": {"name": "vllm"}, "spec": {"maxReplicaCount": 3}})

    async def pods(self, scale: Any) -> list[Any]:
        return []


def test_what_keda_may_take_counts_also_where_others_put_the_replicas_back() -> None:
    target = KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8)
    seen = asyncio.run(KubernetesScaleSession(target, cast(Workload, PutBack()), Log()).look())
    assert "flux put it back to 1 replicas" in seen.problems[0]
    # With a goal below that a shift would never be over.
    assert (seen.allowed, seen.possible(0)) == (3, 3)
