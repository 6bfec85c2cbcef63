"""What a new sandbox's cloud contains: the node groups on the block, and the objects a Soperator installation has."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from sandbox.cloud import active_checks
from sandbox.cloud.fleet import Autoscaling, Fixed, NodeGroup
from sandbox.kube.managers import Manager
from sandbox.nebius.catalogue import INFERENCE_PROJECT, PROJECT
from sandbox.settings import CLUSTER, EPHEMERAL_SET, LOOPBACK, MAX_STATIC, NAMESPACE, STATIC_SET, Settings

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
        project = INFERENCE_PROJECT if cluster == INFERENCE_CLUSTER else PROJECT
        return NodeGroup(group_id, name, cluster, gpus, size, labels, project)

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


def create_objects(store: ObjectStore, settings: Settings, jwt_key: bytes) -> None:
    """The objects of a new installation; what the controllers make of them comes by itself."""
    for namespace in (NAMESPACE, INFERENCE_NAMESPACE):
        store.create("namespaces", {"metadata": {"name": namespace}})
    store.create("slurmclusters", _slurm_cluster(), NAMESPACE, manager=_helm("slurm.nebius.ai/v1"))
    for nodeset in _nodesets(settings):
        store.create("nodesets", nodeset, NAMESPACE, manager=_helm("slurm.nebius.ai/v1alpha1"))
    for check in active_checks.shipped(settings.soperator):
        store.create("activechecks", check, NAMESPACE, manager=_helm("slurm.nebius.ai/v1alpha1"))
    for name, containers in SYSTEM_PODS.items():
        store.create("pods", _system_pod(name, list(containers)), NAMESPACE)
    for service in _services(settings):
        store.create("services", service, NAMESPACE)
    store.create("secrets", _jwt_secret(jwt_key), NAMESPACE)
    store.create("deployments", _inference_deployment(settings), INFERENCE_NAMESPACE)


def _helm(api_version: str) -> Manager:
    """Who has installed Soperator's objects, and so manages their fields."""
    return Manager("helm", "Update", api_version)


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
    filters = {"k8sNodeFilterName": "system"}
    container: dict[str, Any] = {"image": "sandbox"}

    def partition(name: str, words: str) -> dict[str, Any]:
        return {"name": name, "isAll": True, "config": f"{words} MaxTime=INFINITE State=UP PriorityTier=10"}

    return {
        "metadata": {"name": CLUSTER},
        "spec": {
            "crVersion": "4.1.7",
            "maintenance": "none",
            "k8sNodeFilters": [{"name": "system", "nodeSelector": {NODESET_NAME_LABEL: "system"}}],
            "populateJail": {"image": "sandbox", **filters},
            "secrets": {"sshdKeysName": f"{CLUSTER}-sshd-keys"},
            "partitionConfiguration": {
                "configType": "structured",
                "partitions": [partition("main", "Default=YES"), partition("hidden", "Hidden=YES")],
            },
            "slurmNodes": {
                "controller": {
                    **filters,
                    "serviceAccountName": "slurm-controller",
                    "slurmctld": container,
                    "munge": container,
                    "volumes": {"jail": {"volumeSourceName": "jail"}, "spool": {"volumeSourceName": "spool"}},
                },
                "login": {
                    **filters,
                    "size": 1,
                    "sshd": container,
                    "munge": container,
                    "sshRootPublicKeys": [],
                    "sshdServiceType": "LoadBalancer",
                    "volumes": {"jail": {"volumeSourceName": "jail"}},
                },
                "accounting": {**filters, "enabled": True},
                "rest": {**filters, "enabled": True},
                "exporter": {**filters, "enabled": True},
            },
        },
    }


def _services(settings: Settings) -> list[dict[str, Any]]:
    """What leads clients to the daemons: as on a cluster, but for the ports, of which each has one of its own."""

    def service(component: str, port: int, type_: str, target: str) -> dict[str, Any]:
        made: dict[str, Any] = {
            "metadata": {"name": f"{CLUSTER}-{component}-svc", "labels": labels(component)},
            "spec": {
                "type": type_,
                "clusterIP": LOOPBACK,
                "selector": labels(component),
                "ports": [{"name": target, "port": port, "targetPort": port, "protocol": "TCP"}],
            },
        }
        if type_ == "LoadBalancer":
            made["status"] = {"loadBalancer": {"ingress": [{"ip": LOOPBACK}]}}
        return made

    ports = settings.ports
    return [
        service("login", ports.ssh, "LoadBalancer", "ssh"),
        service("rest", ports.slurmrestd, "ClusterIP", "rest-api"),
        service("controller", ports.slurmctld, "ClusterIP", "slurmctld"),
        service("accounting", ports.slurmdbd, "ClusterIP", "slurmdbd"),
    ]


def _jwt_secret(key: bytes) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{CLUSTER}-rest-jwt-key", "labels": labels("rest")},
        "data": {"rest_jwt.key": b64encode(key).decode()},
    }


def _nodesets(settings: Settings) -> list[dict[str, Any]]:
    def nodeset(name: str, replicas: int, gpus: int, ephemeral: bool) -> dict[str, Any]:
        image = {"repository": "sandbox"}
        spec: dict[str, Any] = {
            "replicas": replicas,
            "maxUnavailable": "20%",
            "ephemeralNodes": ephemeral,
            "gpu": {"enabled": gpus > 0},
            "slurmd": {
                "image": image,
                "port": 6818,
                "resources": {GPU_RESOURCE: str(gpus)} if gpus else {},
                "volumes": {"jail": {"persistentVolumeClaim": {"claimName": "jail-pvc"}}, "spool": {"emptyDir": {}}},
            },
            "munge": {"image": image, "resources": {}},
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
