"""The Kubernetes double as the two Python clients use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes_asyncio import client as aio_client
from kubernetes_asyncio import config as aio_config
from kubernetes_asyncio import watch as aio_watch

from tests.patience import PATIENCE
from tests.sandbox.kube_world import NAMESPACE, NODE_SET_PARTS, KubeWorld, eventually, kube_world

R = TypeVar("R")
NODE_SETS: dict[str, Any] = {
    "group": "slurm.nebius.ai",
    "version": "v1alpha1",
    "namespace": NAMESPACE,
    "plural": "nodesets",
}
WORKER: dict[str, Any] = {**NODE_SETS, "name": "worker"}
NEW: dict[str, Any] = {
    "apiVersion": "slurm.nebius.ai/v1alpha1",
    "kind": "NodeSet",
    "metadata": {"name": "new"},
    "spec": NODE_SET_PARTS,
}


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, tmp_path_factory.getbasetemp() / "kube-certificates") as made:
        yield made


@pytest.fixture
def api(world: KubeWorld) -> Iterator[Any]:
    with config.new_client_from_config(str(world.kubeconfig)) as made:
        yield made


def in_asyncio(world: KubeWorld, scenario: Callable[[Any], Awaitable[R]]) -> R:
    async def main() -> R:
        settings = aio_client.Configuration()
        await aio_config.load_kube_config(str(world.kubeconfig), client_configuration=settings)
        async with aio_client.ApiClient(settings) as made:
            return await scenario(made)

    return asyncio.run(main())


def test_custom_objects(world: KubeWorld, api: Any) -> None:
    custom = client.CustomObjectsApi(api)
    listed = custom.list_namespaced_custom_object(**NODE_SETS)
    assert (listed["kind"], [item["metadata"]["name"] for item in listed["items"]]) == (
        "NodeSetList",
        ["worker"],
    )
    assert listed["items"][0]["kind"] == "NodeSet"
    assert custom.get_namespaced_custom_object(**WORKER) == world.get("nodeset", "worker")
    custom.create_namespaced_custom_object(**NODE_SETS, body=NEW)
    assert world.get("nodeset", "new")["spec"] == {"replicas": 1, **NODE_SET_PARTS}
    everywhere = {key: NODE_SETS[key] for key in ("group", "version", "plural")}
    assert len(custom.list_cluster_custom_object(**everywhere)["items"]) == 2
    assert custom.delete_namespaced_custom_object(**{**NODE_SETS, "name": "new"})["status"] == "Success"
    assert len(custom.list_cluster_custom_object(**everywhere)["items"]) == 1


def test_patch_and_status(world: KubeWorld, api: Any) -> None:
    custom = client.CustomObjectsApi(api)
    patched = custom.patch_namespaced_custom_object(**WORKER, body={"spec": {"replicas": 8}, "status": {"phase": "X"}})
    assert (patched["spec"]["replicas"], patched["status"]["phase"], patched["metadata"]["generation"]) == (
        8,
        "Ready",
        2,
    )
    body = {"spec": {"replicas": 1}, "status": {"phase": "Degraded"}}
    patched = custom.patch_namespaced_custom_object_status(**WORKER, body=body)
    assert (patched["spec"]["replicas"], patched["status"]["phase"], patched["metadata"]["generation"]) == (
        8,
        "Degraded",
        2,
    )


def test_replace(world: KubeWorld, api: Any) -> None:
    custom = client.CustomObjectsApi(api)
    old = custom.get_namespaced_custom_object(**WORKER)
    old["spec"]["replicas"] = 5
    new = custom.replace_namespaced_custom_object(**WORKER, body=old)
    assert new["spec"]["replicas"] == 5
    with pytest.raises(ApiException) as caught:
        custom.replace_namespaced_custom_object(**WORKER, body=old)
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    assert '"reason": "Conflict"' in caught.value.body
    del old["metadata"]["resourceVersion"]
    with pytest.raises(ApiException) as caught:
        custom.replace_namespaced_custom_object(**WORKER, body=old)
    assert caught.value.status == 422
    assert "must be specified for an update" in caught.value.body


def test_scale_of_custom_objects(world: KubeWorld, api: Any) -> None:
    custom = client.CustomObjectsApi(api)
    scale = custom.get_namespaced_custom_object_scale(**WORKER)
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 4})
    assert scale["status"] == {"replicas": 2, "selector": "slurm.nebius.ai/nodeset=worker"}
    patched = custom.patch_namespaced_custom_object_scale(**WORKER, body={"spec": {"replicas": 6}})
    assert patched["spec"] == {"replicas": 6}
    assert world.get("nodeset", "worker")["spec"]["replicas"] == 6
    with pytest.raises(ApiException) as caught:
        custom.replace_namespaced_custom_object_scale(**WORKER, body=scale)
    assert caught.value.status == 409
    for replicas, code in ((-1, 422), ("many", 422)):
        with pytest.raises(ApiException) as caught:
            custom.patch_namespaced_custom_object_scale(**WORKER, body={"spec": {"replicas": replicas}})
        assert caught.value.status == code
    assert world.get("nodeset", "worker")["spec"]["replicas"] == 6


def test_scale_of_deployments(world: KubeWorld, api: Any) -> None:
    apps = client.AppsV1Api(api)
    scale = apps.patch_namespaced_deployment_scale("vllm", NAMESPACE, {"spec": {"replicas": 7}})
    assert (scale.spec.replicas, scale.status.selector) == (7, "app=vllm")
    scale.spec.replicas = 3
    assert apps.replace_namespaced_deployment_scale("vllm", NAMESPACE, scale).spec.replicas == 3
    assert apps.read_namespaced_deployment("vllm", NAMESPACE).spec.replicas == 3


def test_builtin_kinds(world: KubeWorld, api: Any) -> None:
    core = client.CoreV1Api(api)
    nodes = core.list_node(label_selector="zone=a").items
    assert [(node.metadata.name, node.status.conditions[0].type) for node in nodes] == [("gpu-a", "Ready")]
    pods = core.list_pod_for_all_namespaces(field_selector="spec.nodeName=gpu-a,status.phase=Running").items
    assert {pod.metadata.name for pod in pods} == {"worker-0", "login-0"}
    pod = client.V1Pod(
        metadata=client.V1ObjectMeta(generate_name="made-"),
        spec=client.V1PodSpec(containers=[client.V1Container(name="main", image="x")]),
    )
    made = core.create_namespaced_pod(NAMESPACE, pod)
    assert (made.status.phase, made.metadata.name[:5]) == ("Pending", "made-")
    conditions = [{"type": "SlurmNodeDrain", "status": "True"}]
    patched = core.patch_node_status("gpu-a", {"status": {"conditions": conditions}})
    assert [condition.type for condition in patched.status.conditions] == ["Ready", "SlurmNodeDrain"]
    assert (
        core.read_namespaced_pod_log("worker-0", NAMESPACE, tail_lines=1, _preload_content=False).data == b"slurmd 3\n"
    )
    events = core.list_namespaced_event(NAMESPACE, field_selector="involvedObject.name=worker-0").items
    assert [event.reason for event in events] == ["BackOff"]
    core.delete_collection_namespaced_pod(NAMESPACE, label_selector="slurm.nebius.ai/nodeset=worker")
    assert [pod.metadata.name for pod in core.list_namespaced_pod(NAMESPACE).items] == [made.metadata.name]
    assert client.VersionApi(api).get_code().git_version.endswith("+sandbox")


def test_errors_have_a_status(api: Any) -> None:
    custom = client.CustomObjectsApi(api)
    refused: list[tuple[Callable[[], Any], int, str]] = [
        (lambda: custom.get_namespaced_custom_object(**{**WORKER, "name": "none"}), 404, "NotFound"),
        (lambda: custom.list_namespaced_custom_object(**{**NODE_SETS, "plural": "nones"}), 404, "NotFound"),
        (lambda: custom.list_namespaced_custom_object(**NODE_SETS, label_selector="((("), 400, "BadRequest"),
        (lambda: custom.create_namespaced_custom_object(**NODE_SETS, body={**NEW, "kind": "Pod"}), 400, "BadRequest"),
        (lambda: custom.create_namespaced_custom_object(**NODE_SETS, body={**NEW, "metadata": {}}), 422, "Invalid"),
    ]
    for call, code, reason in refused:
        with pytest.raises(ApiException) as caught:
            call()
        assert caught.value.status == code
        assert f'"reason": "{reason}"' in caught.value.body


def test_watch(world: KubeWorld, api: Any) -> None:
    core = client.CoreV1Api(api)
    listed = core.list_namespaced_pod(NAMESPACE)
    seen: list[tuple[str, str, str]] = []

    def follow() -> None:
        options = {"resource_version": listed.metadata.resource_version, "timeout_seconds": PATIENCE}
        for event in watch.Watch().stream(core.list_namespaced_pod, NAMESPACE, **options):
            seen.append((event["type"], event["object"].metadata.name, event["object"].status.phase))
            if event["type"] == "DELETED":
                return

    thread = threading.Thread(target=follow)
    thread.start()
    eventually(lambda: world.server_watches() > 0)
    world.call(world.store.patch, "pod", "worker-0", {"status": {"phase": "Failed"}}, NAMESPACE)
    world.call(world.store.delete, "pod", "worker-0", NAMESPACE)
    thread.join(PATIENCE)
    assert seen == [("MODIFIED", "worker-0", "Failed"), ("DELETED", "worker-0", "Failed")]
    # What has happened is told again to whoever starts from before.
    seen.clear()
    follow()
    assert len(seen) == 2


def test_watch_ends_when_its_time_is_over(api: Any) -> None:
    core = client.CoreV1Api(api)
    events = watch.Watch().stream(core.list_node, timeout_seconds=1)
    assert sorted(event["object"].metadata.name for event in events) == ["gpu-a", "gpu-b"]


def test_watch_from_too_long_ago(world: KubeWorld, api: Any) -> None:
    world.call(world.store.load, world.call(world.store.dump))
    core = client.CoreV1Api(api)
    raw = core.list_node(watch=True, resource_version="1", _preload_content=False)
    assert raw.status == 200
    assert b'"code": 410' in raw.read()


def test_asyncio_client(world: KubeWorld) -> None:
    async def scenario(api: Any) -> None:
        custom = aio_client.CustomObjectsApi(api)
        listed = await custom.list_namespaced_custom_object(**NODE_SETS)
        assert [item["metadata"]["name"] for item in listed["items"]] == ["worker"]
        old = await custom.get_namespaced_custom_object(**WORKER)
        merge: dict[str, Any] = {"_content_type": "application/merge-patch+json"}
        patched = await custom.patch_namespaced_custom_object(**WORKER, body={"spec": {"replicas": 8}}, **merge)
        assert patched["spec"]["replicas"] == 8
        with pytest.raises(aio_client.ApiException) as caught:
            await custom.replace_namespaced_custom_object(**WORKER, body=old)
        assert caught.value.status == 409
        scale = await custom.patch_namespaced_custom_object_scale(**WORKER, body={"spec": {"replicas": 2}}, **merge)
        assert scale["spec"] == {"replicas": 2}
        apps = aio_client.AppsV1Api(api)
        scaled = await apps.patch_namespaced_deployment_scale("vllm", NAMESPACE, {"spec": {"replicas": 7}}, **merge)
        assert scaled.spec.replicas == 7
        core = aio_client.CoreV1Api(api)
        nodes = await core.list_node(label_selector="zone notin (a)")
        assert [node.metadata.name for node in nodes.items] == ["gpu-b"]

    in_asyncio(world, scenario)


def test_asyncio_watch(world: KubeWorld) -> None:
    async def scenario(api: Any) -> list[tuple[str, str]]:
        core = aio_client.CoreV1Api(api)
        seen = []
        async with aio_watch.Watch().stream(core.list_node, timeout_seconds=PATIENCE) as events:
            async for event in events:
                seen.append((event["type"], event["object"].metadata.name))
                if len(seen) == 2:
                    await core.patch_node("gpu-b", {"metadata": {"labels": {"x": "y"}}})
                if event["type"] == "MODIFIED":
                    return seen
        return seen

    expected = [("ADDED", "gpu-a"), ("ADDED", "gpu-b"), ("MODIFIED", "gpu-b")]
    assert in_asyncio(world, scenario) == expected
