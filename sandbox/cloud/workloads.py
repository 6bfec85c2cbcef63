"""Kubernetes' own controllers as far as a sandbox needs them: Nodes from machines, Pods of Deployments, scheduling."""

from __future__ import annotations

import platform
from datetime import datetime
from typing import Any

from sandbox.cloud.conditions import condition, timestamp, with_conditions
from sandbox.cloud.events import Recorder
from sandbox.cloud.fleet import Fleet, Machine, MachineState, NodeGroup
from sandbox.cloud.pod_states import report_unschedulable
from sandbox.cloud.slurm_overrides import GPU_RESOURCE
from sandbox.cloud.soperator import WORKER_LABEL, is_ready
from sandbox.kube.evictions import covers
from sandbox.kube.objects import parse_timestamp
from sandbox.kube.store import ObjectStore

#: Seconds after which an eviction that was allowed, and led to nothing, no longer counts.
_DELETION_TIMEOUT = 120


class NodeController:
    """A Node for each machine of this Kubernetes cluster that runs; its Pods go with it when it goes."""

    def __init__(self, store: ObjectStore, fleet: Fleet, events: Recorder, cluster: str) -> None:
        self._store, self._fleet, self._events, self._cluster = store, fleet, events, cluster

    def sync(self) -> None:
        running = {
            machine.id: machine
            for machine in self._fleet.machines.values()
            if machine.state is MachineState.RUNNING and self._fleet.groups[machine.group].cluster == self._cluster
        }
        nodes = {node["metadata"]["name"]: node for node in self._store.list("nodes")}
        for name in nodes.keys() - running.keys():
            self._events.tell(nodes[name], "RemovingNode", f"Node {name} event: Removing Node {name} from Controller")
            for pod in self._store.list("pods", fields=f"spec.nodeName={name}"):
                self._events.tell(pod, "NodeNotReady", "Node is not ready", warning=True)
                # What ran there has ended with the machine.
                self._store.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0)
            self._store.delete("nodes", name)
        for name in sorted(running.keys() - nodes.keys()):
            machine = running[name]
            node = self._store.create("nodes", _node(machine, self._fleet.groups[machine.group]))
            self._events.tell(node, "RegisteredNode", f"Node {name} joined node group {machine.group}")


class DeploymentController:
    """As many Pods as each Deployment asks for."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def sync(self) -> None:
        for deployment in self._store.list("deployments"):
            self._sync(deployment)

    def _sync(self, deployment: dict[str, Any]) -> None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        namespace, wanted = metadata["namespace"], spec.get("replicas", 1)
        matching = spec["selector"]["matchLabels"]
        selector = ",".join(f"{key}={value}" for key, value in matching.items())
        pods = self._replicas(namespace, selector)
        # Those that wait for a Node go first: nothing is lost with them.
        pods.sort(key=lambda pod: not pod["spec"].get("nodeName"))
        for pod in pods[wanted:] if wanted else pods:
            self._store.delete("pods", pod["metadata"]["name"], namespace)
        for _ in range(wanted - len(pods)):
            self._store.create("pods", _replica(deployment), namespace)
        kept = self._replicas(namespace, selector)
        ready = sum(map(is_ready, kept))
        status = with_conditions(
            {
                **deployment.get("status", {}),
                "observedGeneration": metadata["generation"],
                "replicas": len(kept),
                "updatedReplicas": len(kept),
                "readyReplicas": ready,
                "availableReplicas": ready,
                "unavailableReplicas": len(kept) - ready,
            },
            condition("Available", ready >= wanted, "MinimumReplicas", f"{ready} of {wanted} replicas are available"),
        )
        if status != deployment.get("status"):
            self._store.patch("deployments", metadata["name"], {"status": status}, namespace, part="status")

    def _replicas(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Without those that are being deleted: they are replaced before they are gone."""
        pods = self._store.list("pods", namespace, labels=selector)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


class DisruptionController:
    """How many Pods of each budget may be evicted now, as pkg/controller/disruption of Kubernetes counts them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def sync(self) -> None:
        for budget in self._store.list("poddisruptionbudgets"):
            metadata = budget["metadata"]
            status = self._status(budget)
            if status != budget.get("status"):
                new = {**budget, "status": status}
                self._store.update("poddisruptionbudgets", new, metadata["namespace"], part="status")

    def _status(self, budget: dict[str, Any]) -> dict[str, Any]:
        metadata, spec = budget["metadata"], budget["spec"]
        pods = [pod for pod in self._store.list("pods", metadata["namespace"]) if covers(budget, pod)]
        staying = {pod["metadata"]["name"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}
        disrupted = {
            name: since
            for name, since in ((budget.get("status") or {}).get("disruptedPods") or {}).items()
            if name in staying and _age(since, self._store.now()) < _DELETION_TIMEOUT
        }
        healthy = sum(is_ready(pod) for name, pod in staying.items() if name not in disrupted)
        expected, desired = self._wanted(spec, pods, metadata["namespace"])
        return {
            "observedGeneration": metadata["generation"],
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": max(0, healthy - desired) if expected else 0,
            "disruptedPods": disrupted,
        }

    def _wanted(self, spec: dict[str, Any], pods: list[dict[str, Any]], namespace: str) -> tuple[int, int]:
        """The Pods that there should be, and those of them that have to be healthy."""
        least = spec.get("minAvailable")
        if isinstance(least, int):
            return len(pods), least
        owners = {owner["name"] for pod in pods for owner in pod["metadata"].get("ownerReferences") or []}
        deployments = self._store.list("deployments", namespace)
        scale = sum(one["spec"].get("replicas", 1) for one in deployments if one["metadata"]["name"] in owners)
        if least is not None:
            return scale, _share(least, scale)
        return scale, max(0, scale - _share(spec["maxUnavailable"], scale))


def _share(said: int | str, of: int) -> int:
    """A number, or a percentage, which is rounded up."""
    return said if isinstance(said, int) else -(-int(said.rstrip("%")) * of // 100)


def _age(since: str, now: datetime) -> float:
    then = parse_timestamp(since)
    return (now - then).total_seconds() if then else 0.0


class Scheduler:
    """Binds Pods to Nodes whose labels and GPUs fit, and tells the fleet what found no room."""

    def __init__(self, store: ObjectStore, fleet: Fleet, events: Recorder, cluster: str) -> None:
        self._store, self._fleet, self._events, self._cluster = store, fleet, events, cluster

    def sync(self) -> dict[str, int]:
        """Bind what can be bound; the rest is counted by the node group that could make room for it."""
        pods = self._store.list("pods")
        taken: dict[str, list[dict[str, Any]]] = {}
        for pod in pods:
            if node_name := pod["spec"].get("nodeName"):
                taken.setdefault(node_name, []).append(pod)
        pending: dict[str, int] = {}
        nodes = self._store.list("nodes")
        for pod in pods:
            if pod["spec"].get("nodeName"):
                continue
            node = next((node for node in nodes if _fits(pod, node, taken.get(node["metadata"]["name"], []))), None)
            if node:
                taken.setdefault(node["metadata"]["name"], []).append(pod)
                self._bind(pod, node)
            else:
                self._wait(pod, pending)
        return pending

    def _bind(self, pod: dict[str, Any], node: dict[str, Any]) -> None:
        metadata, where = pod["metadata"], node["metadata"]["name"]
        self._store.patch("pods", metadata["name"], {"spec": {"nodeName": where}}, metadata["namespace"])
        self._events.tell(
            pod, "Scheduled", f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {where}"
        )

    def _wait(self, pod: dict[str, Any], pending: dict[str, int]) -> None:
        selector = pod["spec"].get("nodeSelector", {})
        for group in self._fleet.groups.values():
            if group.cluster == self._cluster and selector.items() <= group.labels.items():
                pending[group.id] = pending.get(group.id, 0) + 1
                message = "0 nodes are available: no node has room for the Pod."
                if group.problem:
                    message += f" Node group {group.name} cannot grow: {group.problem}"
                self._events.tell(pod, "FailedScheduling", message, warning=True)
                report_unschedulable(self._store, pod, message)
                return


def busy_machines(store: ObjectStore) -> set[str]:
    """The machines that Pods run on, or are about to."""
    return {pod["spec"]["nodeName"] for pod in store.list("pods") if pod["spec"].get("nodeName")}


def _fits(pod: dict[str, Any], node: dict[str, Any], others: list[dict[str, Any]]) -> bool:
    if node["spec"].get("unschedulable"):
        return False
    if not pod["spec"].get("nodeSelector", {}).items() <= node["metadata"]["labels"].items():
        return False
    if _is_worker(pod):
        # A worker fills its machine, also one without GPUs.
        return not any(map(_is_worker, others))
    free = int(node["status"]["allocatable"].get(GPU_RESOURCE, 0)) - sum(map(_gpus, others))
    return _gpus(pod) <= free


def _is_worker(pod: dict[str, Any]) -> bool:
    return WORKER_LABEL in pod["metadata"].get("labels", {})


def _gpus(pod: dict[str, Any]) -> int:
    return sum(
        int(container.get("resources", {}).get("limits", {}).get(GPU_RESOURCE, 0))
        for container in pod["spec"]["containers"]
    )


def _node(machine: Machine, group: NodeGroup) -> dict[str, Any]:
    resources = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    if machine.gpus:
        resources[GPU_RESOURCE] = str(machine.gpus)
    node: dict[str, Any] = {
        "metadata": {
            "name": machine.id,
            "labels": {**group.labels, "kubernetes.io/hostname": machine.id},
        },
        "spec": {"providerID": f"nebius://{machine.id}"},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": machine.id,
                "containerRuntimeVersion": "sandbox",
                "kernelVersion": platform.release(),
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.32.0+sandbox",
                "machineID": machine.id,
                "operatingSystem": "linux",
                "osImage": "sandbox",
                "systemUUID": machine.id,
            },
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": machine.id},
            ],
        },
    }
    ready = condition("Ready", True, "KubeletReady", "the machine runs")
    node["status"] = with_conditions(dict(node["status"]), {**ready, "lastHeartbeatTime": timestamp()})
    return node


def _replica(deployment: dict[str, Any]) -> dict[str, Any]:
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    owner = {
        "apiVersion": deployment["apiVersion"],
        "kind": "Deployment",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {
        "metadata": {
            "generateName": f"{metadata['name']}-",
            "labels": template["metadata"]["labels"],
            "ownerReferences": [owner],
        },
        "spec": template["spec"],
    }
