"""Replicas of a workload that others put back, beyond what the sandbox's KEDA does."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from airflow_provider_soperator.capacity.holdings import World
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget
from airflow_provider_soperator.capacity.targets.autoscalers import Autoscaler, Hpa, Keda
from airflow_provider_soperator.capacity.targets.kubernetes_session import KubernetesScaleSession, ScaleNotes, Workload
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.soperator.workloads import MANAGER, PUT_BACK
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


class Group:
    """A LeaderWorkerSet of one replica, whose leader is ready: its workers begin only then."""

    def __init__(self, **status: int) -> None:
        self.status = status

    async def read(self) -> dict[str, Any]:
        spec = {"leaderWorkerTemplate": {"size": 2}}
        return {"metadata": {"generation": 1}, "spec": spec, "status": {"replicas": 1, **self.status}}

    async def scale(self) -> dict[str, Any]:
        return {"spec": {"replicas": 1}, "status": {"replicas": 1, "selector": "worker-index=0"}}

    async def autoscaler(self) -> None:
        return None

    async def pods(self, scale: Any) -> list[Any]:
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return [{"metadata": {"name": "llm-0"}, "spec": {"nodeName": "machine-0"}, "status": status}]


def test_a_group_is_not_ready_with_its_leader() -> None:
    target = KubernetesScaleTarget(name="inference", resource="llm", gpus_per_unit=16)

    def ready(**status: int) -> int:
        session = KubernetesScaleSession(target, cast(Workload, Group(**status)), Log())
        return asyncio.run(session.look()).ready

    assert (ready(), ready(readyReplicas=1)) == (0, 1)


class Autoscaled(Group):
    """A workload with two replicas at work, and an autoscaler that may make four of them."""

    def __init__(self, autoscaler: Autoscaler) -> None:
        super().__init__(readyReplicas=2)
        self.its = autoscaler

    async def scale(self) -> dict[str, Any]:
        return {"spec": {"replicas": 2}, "status": {"replicas": 2, "selector": "worker-index=0"}}

    async def autoscaler(self) -> Autoscaler:  # type: ignore[override]
        return self.its

    async def pods(self, scale: Any) -> list[Any]:
        return 2 * await super().pods(scale)


def scaled_by_keda(our_pause: str = "", **annotations: str) -> Keda:
    said = {f"autoscaling.keda.sh/{name.replace('_', '-')}": value for name, value in annotations.items()}
    said |= {f"{MANAGER}/paused-replicas": our_pause} if our_pause else {}
    return Keda({"metadata": {"name": "vllm", "annotations": said}, "spec": {"maxReplicaCount": 4}})


def scaled_by_hpa(noted: dict[str, str], **spec: int) -> Hpa:
    return Hpa({"metadata": {"name": "vllm", "annotations": noted}, "spec": {"maxReplicas": 4, **spec}}, may_pin=True)


@pytest.mark.parametrize(
    ("autoscaler", "ready"),
    [
        (scaled_by_keda(), 4),
        (scaled_by_keda(paused="true"), 2),
        (scaled_by_keda(paused_replicas="4"), 2),
        (scaled_by_hpa({}), 4),
        (scaled_by_hpa({f"{MANAGER}/bounds": "1-8"}, minReplicas=4), 2),
    ],
)
def test_replicas_that_an_autoscaler_may_add_lack_only_work(autoscaler: Autoscaler, ready: int) -> None:
    target = KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8)
    session = KubernetesScaleSession(target, cast(Workload, Autoscaled(autoscaler)), Log())
    seen = asyncio.run(session.look())
    assert (seen.held, seen.ready, seen.there) == (2, ready, 2)
    world = World(CapacityBlock(id="block", limit=32, usage=16), {"inference": seen}, {"inference": 8})
    assert world.receivers({"inference": 4}) == ([] if ready == 4 else ["inference"])


@pytest.mark.parametrize(("replicas", "is_released"), [(3, False), (4, True), (6, False)])
@pytest.mark.parametrize("kind", ["keda", "hpa"])
def test_an_autoscaler_rules_again_only_with_just_as_many_replicas_as_it_may_make(
    kind: str, replicas: int, is_released: bool
) -> None:
    changes: list[Any] = []

    class Pinned(Autoscaled):
        async def scale(self) -> dict[str, Any]:
            return {"spec": {"replicas": replicas}, "status": {"replicas": replicas}}

        async def change(self, patch: Any, its: Autoscaler) -> None:
            changes.append(patch)

    pinned = {"minReplicas": replicas, "maxReplicas": replicas}
    its: Autoscaler = scaled_by_hpa({f"{MANAGER}/bounds": "1-4"}, **pinned)
    if kind == "keda":
        its = scaled_by_keda(our_pause=str(replicas), paused_replicas=str(replicas))
    target = KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8)
    session = KubernetesScaleSession(target, cast(Workload, Pinned(its)), Log())
    asyncio.run(session.finish())
    assert bool(changes) is is_released
    said = "is pinned at 6, until a shift ends with what it may make"
    assert any(said in note for note in asyncio.run(session.notes(replicas))) is (replicas > 4)


class Scaled(PutBack):
    """A Deployment without an autoscaler."""

    def __init__(self) -> None:
        self.replicas = 0

    async def scale(self) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": self.replicas}}

    async def autoscaler(self) -> None:  # type: ignore[override]
        return None

    async def set_replicas(self, scale: Any, wanted: int) -> None:
        self.replicas = wanted


def test_a_workload_that_is_left_to_others_is_so_over_a_new_connection() -> None:
    target, workload, notes = (
        KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8),
        Scaled(),
        ScaleNotes(),
    )
    for others in (None, 1, None):
        workload.replicas = workload.replicas if others is None else others
        asyncio.run(KubernetesScaleSession(target, cast(Workload, workload), Log(), notes).grow(3))
    assert (workload.replicas, "flux has scaled" in notes.kept) == (1, True)


@pytest.mark.parametrize(
    ("autoscaler", "mark"),
    [
        (scaled_by_keda(our_pause="0"), "paused-replicas"),
        (scaled_by_keda(our_pause="0", paused_replicas="1"), "paused-replicas"),
        (scaled_by_keda(our_pause="1", paused_replicas="1"), ""),
        (scaled_by_hpa({f"{MANAGER}/bounds": "2-8"}, minReplicas=2), "bounds"),
        (scaled_by_hpa({f"{MANAGER}/bounds": "2-8"}, minReplicas=4), ""),
    ],
)
def test_a_mark_goes_with_the_pause_that_others_have_undone(autoscaler: Autoscaler, mark: str) -> None:
    changes: list[Any] = []

    class Noting(Autoscaled):
        async def change(self, patch: Any, its: Autoscaler) -> None:
            changes.append(patch)

    target = KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8)
    asyncio.run(KubernetesScaleSession(target, cast(Workload, Noting(autoscaler)), Log()).finish())
    assert changes == ([{"metadata": {"annotations": {f"{MANAGER}/{mark}": None}}}] if mark else [])
