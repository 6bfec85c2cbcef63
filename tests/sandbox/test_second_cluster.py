"""Two Kubernetes clusters on one block: each has its own objects, Nodes and autoscalers; neither sees the other's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import pytest
from kubernetes.client.exceptions import ApiException

from sandbox.cloud.block import CapacityBlock
from sandbox.cloud.cluster import KubernetesCluster
from sandbox.cloud.fleet import Fixed, Fleet, NodeGroup, Timing
from sandbox.cloud.keda import PAUSED, PAUSED_REPLICAS
from sandbox.cloud.pod_states import PlainKubelet
from tests.sandbox.kube_world import VIEWER_TOKEN, KubeWorld, kube_world


class Site:
    """A fleet of 8-GPU machines under two clusters, each with a service that wants to run on them."""

    def __init__(self, limit: int = 32) -> None:
        self.clock = 0.0
        self.block = CapacityBlock("block", limit, now=lambda: self.clock)
        self.fleet = Fleet(self.block, Timing(boot=1, removal=1), now=lambda: self.clock)
        self.clusters = {name: KubernetesCluster(name, self.fleet) for name in ("here", "there")}
        self._kubelets = [PlainKubelet(cluster.store) for cluster in self.clusters.values()]
        for name, cluster in self.clusters.items():
            self.fleet.add_group(NodeGroup(name, name, name, 8, Fixed(0), {"role": "inference"}))
            cluster.store.create("deployment", _service(), "default")

    def after(self, seconds: float = 0.0) -> None:
        """One step of everything, after a while; each change needs some of them to travel through."""
        self.clock += seconds
        for _ in range(3):
            pending = {}
            for cluster in self.clusters.values():
                pending |= cluster.sync()
            for kubelet in self._kubelets:
                kubelet.sync()
            busy = set().union(*(cluster.busy_machines() for cluster in self.clusters.values()))
            self.fleet.step(pending, busy)

    def scale(self, cluster: str, replicas: int) -> None:
        self.clusters[cluster].store.patch("deployment", "vllm", {"spec": {"replicas": replicas}})

    def pods(self, cluster: str) -> list[dict[str, Any]]:
        return self.clusters[cluster].store.list("pods")

    def deployment(self, cluster: str = "there") -> dict[str, Any]:
        return self.clusters[cluster].store.get("deployment", "vllm")

    def scaled_object(self, desired: int, **annotations: str) -> None:
        trigger = {"type": "cron", "metadata": {"desiredReplicas": str(desired)}}
        spec = {"scaleTargetRef": {"name": "vllm"}, "maxReplicaCount": 3, "triggers": [trigger]}
        thing = {"metadata": {"name": "vllm", "annotations": annotations}, "spec": spec}
        self.clusters["there"].store.create("scaledobject", thing, "default")

    def annotate(self, **annotations: str | None) -> None:
        self.clusters["there"].store.patch("scaledobject", "vllm", {"metadata": {"annotations": annotations}})


def _service() -> dict[str, Any]:
    labels = {"app": "vllm"}
    container = {"name": "vllm", "image": "vllm", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "nodeSelector": {"role": "inference"}},
    }
    return {
        "metadata": {"name": "vllm"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


@pytest.fixture
def site() -> Site:
    return Site()


# Machines


def test_the_machines_of_a_group_are_nodes_of_its_cluster_only(site: Site) -> None:
    site.fleet.resize("there", Fixed(2))
    site.after()
    site.after(1)
    assert len(site.clusters["there"].store.list("nodes")) == 2
    assert site.clusters["here"].store.list("nodes") == []
    site.scale("here", 1)
    site.scale("there", 1)
    site.after()
    [waits], [runs] = site.pods("here"), site.pods("there")
    assert "nodeName" not in waits["spec"]
    assert runs["status"]["phase"] == "Running"
    assert site.deployment("there")["status"]["readyReplicas"] == 1


def test_a_pod_without_room_says_so_in_its_status(site: Site) -> None:
    site.scale("there", 1)
    site.after()
    [pod] = site.pods("there")
    [scheduled] = pod["status"]["conditions"]
    assert (scheduled["type"], scheduled["status"], scheduled["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert "0 nodes are available" in scheduled["message"]
    version = pod["metadata"]["resourceVersion"]
    site.after(1)
    assert site.pods("there")[0]["metadata"]["resourceVersion"] == version


def test_a_pod_that_is_being_deleted_is_replaced_and_keeps_its_machine(site: Site) -> None:
    site.fleet.resize("there", Fixed(1))
    site.scale("there", 1)
    site.after()
    site.after(1)
    store = site.clusters["there"].store
    [pod] = site.pods("there")
    store.patch("pods", pod["metadata"]["name"], {"metadata": {"finalizers": ["example.com/slow"]}})
    store.delete("pods", pod["metadata"]["name"])
    site.after()
    assert len(site.pods("there")) == 2
    assert site.deployment()["status"]["replicas"] == 1
    assert [other["spec"].get("nodeName") for other in site.pods("there")].count(None) == 1
    store.patch("pods", pod["metadata"]["name"], {"metadata": {"finalizers": None}})
    site.after()
    assert site.deployment()["status"]["readyReplicas"] == 1


# KEDA


def test_keda_sets_what_its_trigger_asks_for_within_its_bounds(site: Site) -> None:
    site.scaled_object(desired=2)
    site.after()
    assert site.deployment()["spec"]["replicas"] == 2
    site.scale("there", 0)
    site.after()
    assert site.deployment()["spec"]["replicas"] == 2
    site.clusters["there"].store.patch("scaledobject", "vllm", {"spec": {"maxReplicaCount": 1}})
    site.after()
    assert site.deployment()["spec"]["replicas"] == 1
    assert site.deployment("here")["spec"]["replicas"] == 0


def test_keda_that_is_paused_at_a_number_sets_that(site: Site) -> None:
    site.scaled_object(desired=2, **{PAUSED_REPLICAS: "1"})
    site.after()
    assert site.deployment()["spec"]["replicas"] == 1
    site.scale("there", 3)
    site.after()
    assert site.deployment()["spec"]["replicas"] == 1
    site.annotate(**{PAUSED_REPLICAS: None})
    site.after()
    assert site.deployment()["spec"]["replicas"] == 2


def test_keda_that_is_paused_sets_nothing(site: Site) -> None:
    site.scaled_object(desired=2, **{PAUSED: "true"})
    site.scale("there", 1)
    site.after()
    assert site.deployment()["spec"]["replicas"] == 1


def test_keda_says_what_it_cannot_find(site: Site) -> None:
    site.scaled_object(desired=2)
    store = site.clusters["there"].store
    store.delete("deployment", "vllm")
    site.after()
    conditions = {one["type"]: one["status"] for one in store.get("scaledobject", "vllm")["status"]["conditions"]}
    assert conditions == {"Ready": "False", "Paused": "False"}


# Who may do what


def test_a_viewer_reads_and_changes_nothing(tmp_path: Path) -> None:
    with kube_world(tmp_path / "world", tmp_path / "certificates") as world, viewer(world) as api:
        core, apps = kubernetes.client.CoreV1Api(api), kubernetes.client.AppsV1Api(api)
        assert core.read_namespaced_pod("worker-0", "soperator").metadata.name == "worker-0"
        with pytest.raises(ApiException) as refused:
            apps.patch_namespaced_deployment_scale("vllm", "soperator", {"spec": {"replicas": 5}})
        assert refused.value.status == 403
        said = json.loads(refused.value.body)["message"]
        where = 'in API group "apps" in the namespace "soperator"'
        assert said.endswith(f'User "viewer" cannot patch resource "deployments/scale" {where}')
        assert world.get("deployment", "vllm")["spec"]["replicas"] == 2


def viewer(world: KubeWorld) -> Any:
    path = world.write_kubeconfig(world.directory / "viewer", token=VIEWER_TOKEN)
    return kubernetes.config.new_client_from_config(str(path))
