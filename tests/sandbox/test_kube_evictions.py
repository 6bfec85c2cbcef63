"""Evictions, budgets and grace periods of Pods, as the source of Kubernetes has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from sandbox.cloud.pod_states import PlainKubelet
from sandbox.cloud.workloads import DeploymentController, DisruptionController
from sandbox.kube.store import ObjectStore
from tests.sandbox.kube_world import KubeWorld, kube_world

NOW = datetime(2026, 11, 21, 20, tzinfo=timezone.utc)


class Clock:
    def __init__(self) -> None:
        self.now = NOW


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> ObjectStore:
    return ObjectStore(now=lambda: clock.now)


def serve(store: ObjectStore, replicas: int, grace: int | None = None) -> None:
    template: dict[str, Any] = {
        "metadata": {"labels": {"app": "llm"}},
        "spec": {"containers": [{"name": "llm", "image": "llm"}], "nodeName": "gpu-a"},
    }
    if grace is not None:
        template["spec"]["terminationGracePeriodSeconds"] = grace
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "llm"}}, "template": template}
    store.create("deployment", {"metadata": {"name": "llm"}, "spec": spec})
    DeploymentController(store).sync()
    PlainKubelet(store).sync()


def budget(store: ObjectStore, **spec: Any) -> dict[str, Any]:
    """A budget of the service, as its controller has counted it."""
    store.create("pdb", {"metadata": {"name": "llm"}, "spec": {"selector": {"matchLabels": {"app": "llm"}}, **spec}})
    return counted(store)


def counted(store: ObjectStore) -> dict[str, Any]:
    DisruptionController(store).sync()
    status: dict[str, Any] = store.get("pdb", "llm")["status"]
    return status


@pytest.mark.parametrize(
    ("spec", "allowed", "desired"),
    [
        ({"minAvailable": 1}, 2, 1),
        ({"minAvailable": 5}, 0, 5),
        ({"minAvailable": "50%"}, 1, 2),
        ({"maxUnavailable": 1}, 1, 2),
        ({"maxUnavailable": 0}, 0, 3),
        ({"maxUnavailable": "50%"}, 2, 1),
    ],
    ids=str,
)
def test_a_budget_allows_what_is_healthy_beyond_what_it_needs(
    store: ObjectStore, spec: dict[str, Any], allowed: int, desired: int
) -> None:
    serve(store, 3)
    status = budget(store, **spec)
    assert (status["disruptionsAllowed"], status["desiredHealthy"], status["currentHealthy"]) == (allowed, desired, 3)


def test_a_pod_has_its_grace_period_to_end(store: ObjectStore, clock: Clock) -> None:
    serve(store, 1, grace=30)
    [pod] = store.list("pods")
    store.delete("pods", pod["metadata"]["name"])
    [left] = store.list("pods")
    assert left["metadata"]["deletionTimestamp"] == "2026-11-21T20:00:30Z"
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30
    clock.now += timedelta(seconds=29)
    # A status that is written meanwhile does not end it.
    store.patch("pods", pod["metadata"]["name"], {"status": {"message": "ends"}}, part="status")
    PlainKubelet(store).sync()
    assert len(store.list("pods")) == 1
    clock.now += timedelta(seconds=1)
    PlainKubelet(store).sync()
    assert store.list("pods") == []


def test_one_that_names_no_period_or_has_no_node_ends_at_once(store: ObjectStore) -> None:
    serve(store, 1)
    store.create("pod", {"metadata": {"name": "waits"}, "spec": {"containers": [], "terminationGracePeriodSeconds": 9}})
    for pod in store.list("pods"):
        store.delete("pods", pod["metadata"]["name"])
    assert store.list("pods") == []


def test_no_period_ends_one_that_runs(store: ObjectStore) -> None:
    serve(store, 1, grace=30)
    [pod] = store.list("pods")
    store.delete("pods", pod["metadata"]["name"])
    store.delete("pods", pod["metadata"]["name"], grace=0)
    assert store.list("pods") == []


# Over the API


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, tmp_path_factory.getbasetemp() / "kube-certificates") as made:
        yield made


def evict(world: KubeWorld, pod: dict[str, Any], **options: Any) -> Any:
    name = pod["metadata"]["name"]
    body = {"metadata": {"name": name}, "deleteOptions": options}
    with config.new_client_from_config(str(world.kubeconfig)) as api:
        # The client's own type for the answer is an Eviction, but what comes is a Status.
        said = client.CoreV1Api(api).create_namespaced_pod_eviction(name, "default", body, _preload_content=False)
        return json.loads(said.data)


def pods(world: KubeWorld) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.call(world.store.list, "pods", "default")
    return found


def uncounted(world: KubeWorld, name: str) -> None:
    spec = {"selector": {"matchLabels": {"app": "llm"}}, "minAvailable": 0}
    world.call(world.store.create, "pdb", {"metadata": {"name": name}, "spec": spec}, "default")


def test_evictions_are_counted_and_the_one_too_many_is_refused(world: KubeWorld) -> None:
    world.call(serve, world.store, 3)
    world.call(budget, world.store, maxUnavailable=1)
    first, second, _ = pods(world)
    assert evict(world, first)["status"] == "Success"
    with pytest.raises(ApiException) as refused:
        evict(world, second)
    assert refused.value.status == 429
    assert "Cannot evict pod as it would violate the pod's disruption budget." in refused.value.body
    assert "The disruption budget llm needs 2 healthy pods and has 3 currently" in refused.value.body
    assert world.call(counted, world.store)["currentHealthy"] == 2


def test_a_budget_that_was_not_counted_yet_refuses_for_now(world: KubeWorld) -> None:
    world.call(serve, world.store, 1)
    uncounted(world, "llm")
    with pytest.raises(ApiException, match="is still being processed by the server") as refused:
        evict(world, pods(world)[0])
    assert refused.value.status == 429


def test_two_budgets_are_a_failure_in_the_answer(world: KubeWorld) -> None:
    world.call(serve, world.store, 1)
    uncounted(world, "llm")
    uncounted(world, "again")
    answer = evict(world, pods(world)[0])
    assert (answer["status"], answer["code"]) == ("Failure", 500)
    assert "more than one PodDisruptionBudget" in answer["message"]


def test_another_pod_of_the_same_name_is_not_evicted(world: KubeWorld) -> None:
    world.call(serve, world.store, 1)
    with pytest.raises(ApiException) as refused:
        evict(world, pods(world)[0], preconditions={"uid": "another"})
    assert refused.value.status == 409
