"""Soperator's own controllers: NodeSets and their power states become Pods, and say how they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sandbox.cloud.conditions import condition, with_conditions
from sandbox.cloud.landscape import GPU_RESOURCE, NODESET_NAME_LABEL, labels
from sandbox.kube.store import ObjectStore
from sandbox.settings import CLUSTER, EPHEMERAL_SET, MAX_STATIC, MAX_WORKERS, NAMESPACE, Settings

NODESET_LABEL = "slurm.nebius.ai/nodeset"
WORKER_LABEL = "slurm.nebius.ai/worker"


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

    def __init__(self, store: ObjectStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self.pinned: dict[str, Pinned] = {}

    def replicas(self) -> dict[str, int]:
        """The number of node names that slurm.conf should have, by NodeSet."""
        return {s["metadata"]["name"]: _replicas(s) for s in self._nodesets()}

    def sync(self) -> None:
        for nodeset in self._nodesets():
            name = nodeset["metadata"]["name"]
            wanted = self._wanted(nodeset)
            pods = {pod["metadata"]["name"]: pod for pod in self._pods(name)}
            for pod_name in pods.keys() - wanted:
                self._store.delete("pods", pod_name, NAMESPACE)
            for pod_name in sorted(wanted - pods.keys()):
                self._store.create("pods", self._pod(nodeset, pod_name), NAMESPACE)
            self._report(nodeset, len(wanted))

    def _nodesets(self) -> list[dict[str, Any]]:
        return self._store.list("nodesets", NAMESPACE)

    def _pods(self, nodeset: str) -> list[dict[str, Any]]:
        return self._store.list("pods", NAMESPACE, labels=f"{NODESET_LABEL}={nodeset}")

    def _wanted(self, nodeset: dict[str, Any]) -> set[str]:
        name, spec = nodeset["metadata"]["name"], nodeset["spec"]
        if in_maintenance(self._store):
            return set()
        ordinals = set(range(_replicas(nodeset)))
        if spec.get("ephemeralNodes"):
            state = self._power_state(nodeset)
            ordinals &= set(state["spec"].get("activeNodes") or [])
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
                    "metadata": {"name": name, "labels": {NODESET_LABEL: name}},
                    "spec": {"nodeSetRef": name, "activeNodes": list(range(initial))},
                },
                NAMESPACE,
            )
        active = len(state["spec"].get("activeNodes") or [])
        # True as soon as it was seen, whatever the Pods do: so it is with Soperator's.
        seen = condition("Ready", True, "ActiveNodesReconciled", f"{active} active nodes reconciled")
        status = with_conditions({**state.get("status", {}), "activeCount": active}, seen)
        if status != state.get("status"):
            self._store.patch("nodesetpowerstates", name, {"status": status}, NAMESPACE, part="status")
        return state

    def _pod(self, nodeset: dict[str, Any], pod_name: str) -> dict[str, Any]:
        name, metadata = nodeset["metadata"]["name"], nodeset["metadata"]
        gpus = nodeset["spec"]["slurmd"].get("resources", {}).get(GPU_RESOURCE)
        limits = {GPU_RESOURCE: gpus} if gpus else {}
        return {
            "metadata": {
                "name": pod_name,
                "labels": {**labels("nodeset"), WORKER_LABEL: "true", NODESET_LABEL: name},
                "ownerReferences": [
                    {
                        "apiVersion": nodeset["apiVersion"],
                        "kind": "NodeSet",
                        "name": name,
                        "uid": metadata["uid"],
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "hostname": pod_name,
                "initContainers": [{"name": "worker-init", "image": "sandbox"}],
                "containers": [
                    {"name": "slurmd", "image": "sandbox", "resources": {"limits": limits}},
                    {"name": "munge", "image": "sandbox"},
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
                "labelSelector": f"{NODESET_LABEL}={name}",
            },
            condition("ConfigUpdated", None, "SetUpCondition", "The object is not ready yet."),
            condition("PodsReady", ready, "NodeSetReady" if ready else "NodeSetNotReady", message),
            condition("StatefulSetTerminated", True, "Maintenance", "Workers are disabled")
            if stopped
            else condition("StatefulSetTerminated", False, "WorkersEnabled", "Workers are enabled"),
        )
        if name in self.pinned:
            status = self.pinned[name].over(status)
        if status != old:
            self._store.patch("nodesets", name, {"status": status}, NAMESPACE, part="status")


class SlurmClusterController:
    """Reports which parts of the cluster are available, by the daemons that run."""

    PARTS: ClassVar = {
        "ControllersAvailable": "slurmctld",
        "LoginAvailable": "sshd",
        "AccountingAvailable": "slurmdbd",
    }
    #: Those that it reports; a fault may have added others.
    REPORTED = ("CommonAvailable", "SConfigControllerAvailable", *PARTS)

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.pinned: Pinned | None = None

    def sync(self, running: set[str]) -> None:
        found = self._store.list("slurmclusters", NAMESPACE, fields=f"metadata.name={CLUSTER}")
        if not found:
            return
        old = found[0].get("status", {})
        reported = [entry for entry in old.get("conditions") or [] if entry["type"] in self.REPORTED]
        parts = {part: daemon in running for part, daemon in self.PARTS.items()}
        stopped = in_maintenance(self._store)
        # A cluster in maintenance calls itself available: so it is with Soperator's.
        available = stopped or all(parts.values())
        status = with_conditions(
            {
                **old,
                "conditions": reported,
                "phase": "Available" if available else "Not available",
                "readyLogin": int(parts["LoginAvailable"]),
            },
            condition("CommonAvailable", True, "Available", "Common resources are available"),
            condition("SConfigControllerAvailable", True, "Available", "SConfigController is available"),
            *(
                condition(part, False, "Maintenance", f"{self.PARTS[part]} is in maintenance")
                if stopped
                else condition(
                    part,
                    up,
                    "Available" if up else "NotAvailable",
                    f"{self.PARTS[part]} {'runs' if up else 'is down'}",
                )
                for part, up in parts.items()
            ),
        )
        if self.pinned:
            status = self.pinned.over(status)
        if status != old:
            self._store.patch("slurmclusters", CLUSTER, {"status": status}, NAMESPACE, part="status")


def in_maintenance(store: ObjectStore) -> bool:
    """The SlurmCluster asks for everything to be stopped."""
    found = store.list("slurmclusters", NAMESPACE, fields=f"metadata.name={CLUSTER}")
    return bool(found) and found[0]["spec"].get("maintenance") in _STOPPED


def _replicas(nodeset: dict[str, Any]) -> int:
    """As many as are asked for, up to what the sandbox has ports for."""
    most = MAX_WORKERS if nodeset["metadata"]["name"] == EPHEMERAL_SET else MAX_STATIC
    return min(most, int(nodeset["spec"].get("replicas", 1)))


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
