"""Soperator's own controllers: NodeSets and their power states become Pods, and say how they are."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandbox.cloud.conditions import condition, with_conditions
from sandbox.cloud.landscape import NODESET_NAME_LABEL, labels
from sandbox.cloud.slurm_config import CLUSTER_ANNOTATION, cluster_of, replicas_of
from sandbox.cloud.slurm_overrides import GPU_RESOURCE
from sandbox.kube.store import ObjectStore
from sandbox.settings import NAMESPACE, Settings
from sandbox.slurmd_ports import SlurmdPorts

NODESET_LABEL = "slurm.nebius.ai/nodeset"
WORKER_LABEL = "slurm.nebius.ai/worker"
REVISION_LABEL = "controller-revision-hash"


#: Of a NodeSet; the first three never change.
_CONDITIONS = ("ConfigUpdated", "ConfigDynamicUpdated", "StatefulSetUpdated", "PodsReady", "StatefulSetTerminated")
NOT_READY_YET = "The object is not ready yet."
#: Those in which the workers, and all else, are stopped.
_STOPPED = ("downscale", "downscaleAndDeletePopulateJail", "downscaleAndOverwritePopulateJail")


@dataclass(frozen=True)
class Pinned:
    """What the status of an object says whatever is the case, by a fault."""

    phase: str
    conditions: tuple[dict[str, Any], ...] = ()

    def over(self, status: dict[str, Any]) -> dict[str, Any]:
        return with_conditions({**status, "phase": self.phase}, *self.conditions)


class NodeSetController:
    """Keeps a Pod for each node of a NodeSet that should be on."""

    def __init__(
        self,
        store: ObjectStore,
        settings: Settings,
        ports: SlurmdPorts,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._settings = settings
        self._ports = ports
        self._now = now
        #: What the Pods of each NodeSet should be like, and since when.
        self._templates: dict[str, tuple[Any, float]] = {}
        self.pinned: dict[str, Pinned] = {}

    def replicas(self) -> dict[str, int]:
        """The number of node names that slurm.conf should have, by NodeSet."""
        return {nodeset["metadata"]["name"]: replicas_of(nodeset) for nodeset in self.nodesets()}

    def sync(self) -> None:
        cluster = the_cluster(self._store)
        for nodeset in self.nodesets():
            name = nodeset["metadata"]["name"]
            if not self._belongs(nodeset, cluster):
                continue
            if not (nodeset.get("status") or {}).get("conditions"):
                self._begin(nodeset)
            if cluster is None or not has_common(cluster):
                # It waits for the cluster's secrets.
                continue
            wanted = self._wanted(nodeset)
            pods = {pod["metadata"]["name"]: pod for pod in self._pods(name)}
            for pod_name in pods.keys() - wanted:
                self._store.delete("pods", pod_name, NAMESPACE)
            self._roll(nodeset, [pod for name, pod in pods.items() if name in wanted], len(wanted - pods.keys()))
            for pod_name in sorted(wanted - pods.keys()):
                self._store.create("pods", self._pod(nodeset, pod_name), NAMESPACE)
            self._report(nodeset, len(wanted))

    def _roll(self, nodeset: dict[str, Any], pods: list[dict[str, Any]], missing: int) -> None:
        """Some time after a change, bring the Pods up to date: no more at once than may be unavailable."""
        name, wanted = nodeset["metadata"]["name"], (_images(nodeset), revision_of(nodeset))
        before = self._templates.get(name)
        if before is None or before[0] != wanted:
            # What was the case before this process began is not waited for.
            self._templates[name] = (wanted, self._now() if before else float("-inf"))
        if self._now() - self._templates[name][1] < self._settings.rollout_lag:
            return
        outdated = [pod for pod in pods if _is_outdated(pod, nodeset)]
        away = missing + sum(not is_ready(pod) and pod not in outdated for pod in pods)
        # The highest ordinals go first.
        outdated.sort(key=lambda pod: int(pod["metadata"]["name"].rpartition("-")[2]), reverse=True)
        for pod in outdated[: max(0, _most_unavailable(nodeset) - away)]:
            pod_name = pod["metadata"]["name"]
            if pod["metadata"]["labels"].get(REVISION_LABEL) != revision_of(nodeset):
                self._store.delete("pods", pod_name, NAMESPACE)
                continue
            # Another image alone takes the place of the old one in the Pod, which is not ready until it runs.
            updated = condition("Ready", False, "StartInPlaceUpdate")
            self._store.patch("pods", pod_name, _with_images(pod, _images(nodeset)), NAMESPACE)
            status = {"status": with_conditions(pod.get("status") or {}, updated)}
            self._store.patch("pods", pod_name, status, NAMESPACE, part="status")

    def of_cluster(self, cluster: dict[str, Any]) -> list[dict[str, Any]]:
        """Those that are nodes of a cluster."""
        return [nodeset for nodeset in self.nodesets() if cluster_of(nodeset) == cluster["metadata"]["name"]]

    def _belongs(self, nodeset: dict[str, Any], cluster: dict[str, Any] | None) -> bool:
        """A NodeSet that names no cluster, or one that is not there, is left as it is: it never gets a condition."""
        name, named = nodeset["metadata"]["name"], cluster_of(nodeset)
        if cluster is None:
            return False
        if self._settings.soperator != "4.1":
            if named and "clusterName" not in nodeset["spec"]:
                # From the annotation of earlier releases.
                migrated = {"spec": {"clusterName": named}, "metadata": {"annotations": {CLUSTER_ANNOTATION: None}}}
                self._store.patch("nodesets", name, migrated, NAMESPACE)
        elif not named and len(self._store.list("slurmclusters", NAMESPACE)) == 1:
            # A webhook does so on a cluster, at once.
            named = cluster["metadata"]["name"]
            self._store.patch("nodesets", name, {"metadata": {"annotations": {CLUSTER_ANNOTATION: named}}}, NAMESPACE)
        return bool(named == cluster["metadata"]["name"])

    def _begin(self, nodeset: dict[str, Any]) -> None:
        unknown = (condition(type_, None, "SetUpCondition", NOT_READY_YET) for type_ in _CONDITIONS)
        status = with_conditions({"phase": "Pending", "replicas": 0}, *unknown)
        self._store.patch("nodesets", nodeset["metadata"]["name"], {"status": status}, NAMESPACE, part="status")
        nodeset["status"] = status

    def nodesets(self) -> list[dict[str, Any]]:
        """Each with as many replicas as it asks for, up to what the sandbox has ports for."""
        found = self._store.list("nodesets", NAMESPACE)
        self._ports.forget_all_but({nodeset["metadata"]["name"] for nodeset in found})
        capped = []
        for nodeset in found:
            replicas = self._ports.most(nodeset["metadata"]["name"], replicas_of(nodeset))
            capped.append({**nodeset, "spec": {**nodeset["spec"], "replicas": replicas}})
        return capped

    def _pods(self, nodeset: str) -> list[dict[str, Any]]:
        return self._store.list("pods", NAMESPACE, labels=f"{NODESET_LABEL}={nodeset}")

    def _wanted(self, nodeset: dict[str, Any]) -> set[str]:
        name, spec = nodeset["metadata"]["name"], nodeset["spec"]
        if in_maintenance(self._store):
            return set()
        ordinals = set(range(replicas_of(nodeset)))
        if spec.get("ephemeralNodes"):
            active = set(self._power_state(nodeset)["spec"].get("activeNodes") or [])
            # No ordinals are taken away when there are fewer names: their Pods stay, and Slurm knows nothing of them.
            there = {int(pod["metadata"]["name"].rpartition("-")[2]) for pod in self._pods(name)}
            ordinals = active & (ordinals | there)
        return {f"{name}-{ordinal}" for ordinal in ordinals}

    def _power_state(self, nodeset: dict[str, Any]) -> dict[str, Any]:
        """The NodeSet's power state, created with its first nodes on if there is none."""
        name = nodeset["metadata"]["name"]
        found = self._store.list("nodesetpowerstates", NAMESPACE, fields=f"metadata.name={name}")
        if found:
            state = found[0]
        else:
            initial = nodeset["spec"].get("initialNumberEphemeralNodes", 1)
            state = self._store.create(
                "nodesetpowerstates",
                {
                    "metadata": {"name": name, "labels": {NODESET_LABEL: name}, **_owned_by(nodeset)},
                    "spec": {"nodeSetRef": name, "activeNodes": list(range(initial))},
                },
                NAMESPACE,
            )
        active = len(state["spec"].get("activeNodes") or [])
        status = {**state.get("status", {}), "activeCount": active}
        if not status.get("conditions"):
            # True as soon as it was seen, whatever the Pods do, and with the number of that moment for ever.
            seen = condition("Ready", True, "ActiveNodesReconciled", f"{active} active nodes reconciled")
            status = with_conditions(status, seen)
        if status != state.get("status"):
            self._store.patch("nodesetpowerstates", name, {"status": status}, NAMESPACE, part="status")
        return state

    def _pod(self, nodeset: dict[str, Any], pod_name: str) -> dict[str, Any]:
        name = nodeset["metadata"]["name"]
        gpus = nodeset["spec"]["slurmd"].get("resources", {}).get(GPU_RESOURCE)
        limits = {GPU_RESOURCE: gpus} if gpus else {}
        return {
            "metadata": {
                "name": pod_name,
                "labels": {
                    **labels("nodeset", cluster_of(nodeset)),
                    WORKER_LABEL: "true",
                    NODESET_LABEL: name,
                    REVISION_LABEL: revision_of(nodeset),
                },
                **_owned_by(nodeset),
            },
            "spec": {
                "hostname": pod_name,
                "initContainers": [{"name": "worker-init", "image": image_of(nodeset, "slurmd")}],
                "containers": [
                    {"name": "slurmd", "image": image_of(nodeset, "slurmd"), "resources": {"limits": limits}},
                    {"name": "munge", "image": image_of(nodeset, "munge")},
                ],
                "nodeSelector": nodeset["spec"].get("nodeSelector", {NODESET_NAME_LABEL: name}),
            },
        }

    def _report(self, nodeset: dict[str, Any], wanted: int) -> None:
        name, old = nodeset["metadata"]["name"], nodeset.get("status", {})
        available = sum(is_ready(pod) for pod in self._pods(name))
        # Up to 4.1 an ephemeral NodeSet is held against all its node names, so it is Ready only with all of them on.
        expected = nodeset["spec"].get("replicas", 1) if self._settings.soperator == "4.1" else wanted
        ready = available == expected
        if self._settings.soperator == "4.1":
            message = "NodeSet is ready" if ready else "NodeSet is not ready"
        else:
            message = (
                f"All {expected} worker pods are available"
                if ready
                else (f"{available} of {expected} worker pods are available")
            )
        stopped = in_maintenance(self._store)
        status = with_conditions(
            {
                **old,
                "phase": "Terminating" if stopped else "Ready" if ready else "Provisioning",
                "replicas": available,
            },
            condition("PodsReady", ready, "NodeSetReady" if ready else "NodeSetNotReady", message),
            condition("StatefulSetTerminated", True, "Maintenance", "Workers are disabled")
            if stopped
            else condition("StatefulSetTerminated", False, "WorkersEnabled", "Workers are enabled"),
        )
        if name in self.pinned:
            status = self.pinned[name].over(status)
        if status != old:
            self._store.patch("nodesets", name, {"status": status}, NAMESPACE, part="status")


def _owned_by(nodeset: dict[str, Any]) -> dict[str, Any]:
    owner = {"apiVersion": nodeset["apiVersion"], "kind": "NodeSet", "controller": True}
    return {"ownerReferences": [{**owner, "name": nodeset["metadata"]["name"], "uid": nodeset["metadata"]["uid"]}]}


def the_cluster(store: ObjectStore) -> dict[str, Any] | None:
    """The SlurmCluster that is the sandbox's Slurm: the first one that was made, as there is room for one."""
    found = store.list("slurmclusters", NAMESPACE)
    return min(found, key=lambda one: str(one["metadata"].get("creationTimestamp")), default=None)


def in_maintenance(store: ObjectStore) -> bool:
    """The SlurmCluster asks for everything to be stopped."""
    cluster = the_cluster(store)
    return cluster is not None and is_stopped(cluster)


def is_stopped(cluster: dict[str, Any]) -> bool:
    return cluster["spec"].get("maintenance") in _STOPPED


def has_common(cluster: dict[str, Any]) -> bool:
    """What all parts of a cluster need is there: its secrets and configuration."""
    conditions = (cluster.get("status") or {}).get("conditions") or []
    return any(one["type"] == "CommonAvailable" and one["status"] != "Unknown" for one in conditions)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def image_of(nodeset: dict[str, Any], container: str) -> str:
    """What the operator makes of repository and tag."""
    image = nodeset["spec"][container]["image"]
    return f"{image['repository']}:{image['tag']}" if image.get("tag") else str(image["repository"])


def revision_of(nodeset: dict[str, Any]) -> str:
    """A name for all that a Pod is made of, but for its images: only another Pod can have that otherwise."""
    spec = nodeset["spec"]
    parts = [
        *(
            {key: value for key, value in spec[container].items() if key != "image"}
            for container in ("slurmd", "munge")
        ),
        *(
            spec.get(key)
            for key in ("tolerations", "affinity", "nodeSelector", "customInitContainers", "priorityClass")
        ),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def _images(nodeset: dict[str, Any]) -> dict[str, str]:
    return {container: image_of(nodeset, container) for container in ("slurmd", "munge")}


def _is_outdated(pod: dict[str, Any], nodeset: dict[str, Any]) -> bool:
    images = {container["name"]: container["image"] for container in pod["spec"]["containers"]}
    return images != _images(nodeset) or pod["metadata"]["labels"].get(REVISION_LABEL) != revision_of(nodeset)


def _with_images(pod: dict[str, Any], images: dict[str, str]) -> dict[str, Any]:
    containers = [{**one, "image": images[one["name"]]} for one in pod["spec"]["containers"]]
    return {"spec": {"containers": containers}}


def _most_unavailable(nodeset: dict[str, Any]) -> int:
    """At least one: a share is rounded down."""
    said = nodeset["spec"].get("maxUnavailable", "20%")
    share = int(said) if str(said).isdigit() else int(said.rstrip("%")) * replicas_of(nodeset) // 100
    return max(1, share)
