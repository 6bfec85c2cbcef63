"""What a new sandbox's cloud contains: the node groups on the block, and the objects a Soperator installation has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandbox.cloud.fleet import Autoscaling, Fixed, NodeGroup
from sandbox.settings import CLUSTER, EPHEMERAL_SET, MAX_STATIC, NAMESPACE, STATIC_SET, Settings

if TYPE_CHECKING:
    from sandbox.kube.store import ObjectStore

BLOCK_ID = "capacityblockgroup-e00sandbox"
SOPERATOR_CLUSTER = "mk8scluster-e00soperator"
INFERENCE_CLUSTER = "mk8scluster-e00inference"
TRAINING_GROUP = "mk8snodegroup-e00training"
CPU_GROUP = "mk8snodegroup-e00cpu"
SYSTEM_GROUP = "mk8snodegroup-e00system"
#: Inference beside Soperator in one Kubernetes cluster, and in a cluster of its own: the two layouts that there are.
INFERENCE_GROUP = "mk8snodegroup-e00inference"
REMOTE_INFERENCE_GROUP = "mk8snodegroup-e00remote"

INFERENCE_NAMESPACE = "inference"
NODESET_NAME_LABEL = "slurm.nebius.ai/nodeset-name"
GPU_RESOURCE = "nvidia.com/gpu"

#: The Pods that are there from the start: the daemon behind each of their containers.
SYSTEM_PODS: dict[str, dict[str, str]] = {
    "controller-0": {"slurmctld": "slurmctld", "munge": "munged"},
    "login-0": {"sshd": "sshd", "munge": "munged"},
    "accounting-0": {"accounting": "slurmdbd", "munge": "munged"},
    "rest-0": {"slurmrestd": "slurmrestd"},
}


def node_groups(settings: Settings) -> list[NodeGroup]:
    """Four groups in Soperator's cluster and one in another; the GPUs of all come from the one block."""
    gpus = settings.gpus

    def group(group_id: str, name: str, cluster: str, gpus: int, size: Fixed | Autoscaling, role: str) -> NodeGroup:
        labels = {NODESET_NAME_LABEL: role, "nebius.com/node-group-id": group_id}
        return NodeGroup(group_id, name, cluster, gpus, size, labels)

    return [
        group(
            TRAINING_GROUP,
            "worker-0",
            SOPERATOR_CLUSTER,
            gpus,
            Autoscaling(0, settings.workers),
            EPHEMERAL_SET,
        ),
        group(CPU_GROUP, "worker-cpu-0", SOPERATOR_CLUSTER, 0, Autoscaling(0, MAX_STATIC), STATIC_SET),
        group(SYSTEM_GROUP, "system-0", SOPERATOR_CLUSTER, 0, Fixed(1), "system"),
        group(INFERENCE_GROUP, "inference", SOPERATOR_CLUSTER, gpus, Fixed(0), "inference"),
        group(REMOTE_INFERENCE_GROUP, "inference", INFERENCE_CLUSTER, gpus, Fixed(0), "inference"),
    ]


def create_objects(store: ObjectStore, settings: Settings) -> None:
    """The objects of a new installation; what the controllers make of them comes by itself."""
    for namespace in (NAMESPACE, INFERENCE_NAMESPACE):
        store.create("namespaces", {"metadata": {"name": namespace}})
    store.create("slurmclusters", _slurm_cluster(), NAMESPACE)
    for nodeset in _nodesets(settings):
        store.create("nodesets", nodeset, NAMESPACE)
    for name, containers in SYSTEM_PODS.items():
        store.create("pods", _system_pod(name, list(containers)), NAMESPACE)
    store.create("deployments", _inference_deployment(settings), INFERENCE_NAMESPACE)


def create_inference_objects(store: ObjectStore, settings: Settings) -> None:
    """What there is in the second cluster from the start: the same service, and nothing else."""
    store.create("namespaces", {"metadata": {"name": INFERENCE_NAMESPACE}})
    store.create("deployments", _inference_deployment(settings), INFERENCE_NAMESPACE)


def labels(component: str) -> dict[str, str]:
    """The labels that Soperator gives all it makes."""
    return {
        "app.kubernetes.io/name": "slurmcluster",
        "app.kubernetes.io/instance": CLUSTER,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "slurm-operator",
        "app.kubernetes.io/managed-by": "slurm-operator",
    }


def _slurm_cluster() -> dict[str, Any]:
    return {
        "metadata": {"name": CLUSTER},
        "spec": {
            "crVersion": "sandbox",
            "maintenance": "none",
            "partitionConfiguration": {
                "configType": "structured",
                "partitions": [
                    {
                        "name": "main",
                        "isAll": True,
                        "config": "Default=YES MaxTime=INFINITE State=UP PriorityTier=10",
                    },
                    {
                        "name": "hidden",
                        "isAll": True,
                        "config": "Hidden=YES MaxTime=INFINITE State=UP PriorityTier=10",
                    },
                ],
            },
            "slurmNodes": {
                "controller": {"size": 1, "serviceAccountName": "slurm-controller"},
                "login": {"size": 1},
                "accounting": {"enabled": True},
                "rest": {"enabled": True},
            },
        },
    }


def _nodesets(settings: Settings) -> list[dict[str, Any]]:
    def nodeset(name: str, replicas: int, gpus: int, ephemeral: bool) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "replicas": replicas,
            "maxUnavailable": "20%",
            "ephemeralNodes": ephemeral,
            "gpu": {"enabled": gpus > 0},
            "slurmd": {"port": 6818, "resources": {GPU_RESOURCE: str(gpus)} if gpus else {}},
            "nodeSelector": {NODESET_NAME_LABEL: name},
        }
        if ephemeral:
            spec["initialNumberEphemeralNodes"] = settings.initial
        return {
            "metadata": {
                "name": name,
                "labels": labels("nodeset"),
                "annotations": {"slurm.nebius.ai/parental-cluster-ref": CLUSTER},
            },
            "spec": spec,
        }

    return [
        nodeset(EPHEMERAL_SET, settings.workers, settings.gpus, ephemeral=True),
        nodeset(STATIC_SET, settings.static, 0, ephemeral=False),
    ]


def _system_pod(name: str, containers: list[str]) -> dict[str, Any]:
    component = name.rpartition("-")[0]
    return {
        "metadata": {"name": name, "labels": labels(component)},
        "spec": {
            "containers": [{"name": container, "image": "sandbox"} for container in containers],
            "nodeSelector": {NODESET_NAME_LABEL: "system"},
        },
    }


def _inference_deployment(settings: Settings) -> dict[str, Any]:
    """A service that one replica of fills one machine; it starts with none."""
    selector = {"app": "vllm"}
    container = {
        "name": "vllm",
        "image": "sandbox",
        "resources": {"limits": {GPU_RESOURCE: str(settings.gpus)}},
    }
    return {
        "metadata": {"name": "vllm", "labels": selector},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": selector},
                "spec": {"containers": [container], "nodeSelector": {NODESET_NAME_LABEL: "inference"}},
            },
        },
    }
