"""What a new sandbox's cloud contains: the node groups on the block, and the objects a Soperator installation has."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from sandbox.cloud.fleet import Autoscaling, Fixed, NodeGroup
from sandbox.cloud.slurm_config import CLUSTER_ANNOTATION
from sandbox.cloud.slurm_overrides import GPU_RESOURCE
from sandbox.nebius.catalogue import INFERENCE_PROJECT, PROJECT
from sandbox.settings import CLUSTER, EPHEMERAL_SET, LOOPBACK, MAX_STATIC, NAMESPACE, RELEASES, STATIC_SET, Settings

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
GPU_TYPE = "nvidia_h100_80gb_hbm3"
REGISTRY = "cr.nebius.cloud/soperator"
#: A preset of 16 vCPUs and 64 GiB; slurmd gets most of it.
CPU_NODE = {
    "features": ["cpu_d3", "platform-cpu"],
    "static": "CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=2",
}
CPU_RESOURCES = {"cpu": "15", "memory": "60Gi"}

#: The field of a part of the SlurmCluster that is about a container, where it has another name.
_FIELDS = {"accounting": "slurmdbd", "slurmrestd": "rest"}
#: The Pods that a SlurmCluster has: the daemon behind each of their containers.
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


def create_objects(store: ObjectStore, settings: Settings) -> None:
    """What there is beside Soperator from the start."""
    for namespace in (NAMESPACE, INFERENCE_NAMESPACE):
        store.create("namespaces", {"metadata": {"name": namespace}})
    store.create("deployments", _inference_deployment(settings), INFERENCE_NAMESPACE)


def create_inference_objects(store: ObjectStore, settings: Settings) -> None:
    """What there is in the second cluster from the start: the same service, and nothing else."""
    store.create("namespaces", {"metadata": {"name": INFERENCE_NAMESPACE}})
    store.create("deployments", _inference_deployment(settings), INFERENCE_NAMESPACE)


def labels(component: str, cluster: str = CLUSTER) -> dict[str, str]:
    """The labels that Soperator gives all it makes."""
    return {
        "app.kubernetes.io/name": "slurmcluster",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "slurm-operator",
        "app.kubernetes.io/managed-by": "slurm-operator",
    }


def slurm_cluster(settings: Settings, release: str = "") -> dict[str, Any]:
    """The SlurmCluster of an installation, as the chart and the recipe give it; of another release if one is named."""
    filters = {"k8sNodeFilterName": "system"}
    tail = "MaxTime=INFINITE State=UP OverSubscribe=YES"

    def container(name: str) -> dict[str, Any]:
        return {"image": image_of(settings, name, release)}

    def partition(name: str, words: str) -> dict[str, Any]:
        return {"name": name, "isAll": True, "config": f"{words} {tail}"}

    return {
        "metadata": {"name": CLUSTER},
        "spec": {
            "crVersion": release or RELEASES[settings.soperator],
            "maintenance": "none",
            "useDefaultAppArmorProfile": False,
            "k8sNodeFilters": [{"name": "system", "nodeSelector": {NODESET_NAME_LABEL: "system"}}],
            "volumeSources": [
                {"name": "controller-spool", "persistentVolumeClaim": {"claimName": "controller-spool-pvc"}},
                {"name": "jail", "persistentVolumeClaim": {"claimName": "jail-pvc"}},
            ],
            "populateJail": {**container("populate_jail"), "overwrite": False, **filters},
            "secrets": {"sshdKeysName": f"{CLUSTER}-sshd-keys"},
            "mpiConfig": {"pmixEnv": "OMPI_MCA_btl_tcp_if_include=eth0"},
            "slurmConfig": {
                "completeWait": 5,
                "defCpuPerGPU": 4,
                "defMemPerNode": 0,
                "maxJobCount": 20000,
                "messageTimeout": 60,
                "minJobAge": 28800 if settings.soperator == "4.1" else 1800,
                "taskPluginParam": "",
                "topologyParam": "SwitchAsNodeRank",
                "topologyPlugin": "topology/tree",
            },
            **({"customSlurmConfig": "\n".join(settings.slurm_conf)} if settings.slurm_conf else {}),
            "partitionConfiguration": {
                "configType": "structured",
                "partitions": [
                    # The recipe has PreemptMode=OFF here, too; jobs of a sandbox can be preempted.
                    partition("main", "Default=YES PriorityTier=10"),
                    partition("hidden", "Default=NO PriorityTier=10 PreemptMode=OFF Hidden=YES"),
                ],
            },
            "sConfigController": {"node": {**filters, "size": 1}},
            "slurmNodes": {
                "controller": {
                    **filters,
                    "serviceAccountName": f"{CLUSTER}-slurm-controller",
                    "slurmctld": {**container("controller_slurmctld"), "port": 6817},
                    "munge": container("munge"),
                    "volumes": {
                        "jail": {"volumeSourceName": "jail"},
                        "spool": {"volumeSourceName": "controller-spool"},
                    },
                },
                "login": {
                    **filters,
                    "size": 1,
                    "sshd": container("login_sshd"),
                    "munge": container("munge"),
                    "sshRootPublicKeys": [],
                    "sshdServiceType": "LoadBalancer",
                    "volumes": {"jail": {"volumeSourceName": "jail"}},
                },
                "accounting": {
                    **filters,
                    "enabled": True,
                    "slurmdbd": container("controller_slurmdbd"),
                    "munge": container("munge"),
                    "slurmConfig": {
                        "accountingStorageTRES": "CPU,Mem,Node,VMem,Gres/gpu",
                        "jobAcctGatherType": f"jobacct_gather/{'cgroup' if settings.soperator == '4.1' else 'none'}",
                        "jobAcctGatherFrequency": 0,
                        # The chart has 0 for all: a queue whose order depends on nothing but age.
                        "priorityWeightAge": 1000,
                        "priorityWeightFairshare": 10000,
                        "priorityWeightQOS": 10000,
                    },
                },
                "rest": {**filters, "enabled": True, "size": 1, "rest": container("slurmrestd")},
                "exporter": {**filters, "enabled": True},
            },
        },
    }


def image_of(settings: Settings, name: str, release: str = "") -> str:
    return f"{REGISTRY}/{name}:{tag_of(settings, release)}"


def tag_of(settings: Settings, release: str = "") -> str:
    return f"{release or RELEASES[settings.soperator]}-slurm{settings.slurm}"


def is_ours(thing: Mapping[str, Any]) -> bool:
    """Whether the operator has made it."""
    return (thing["metadata"].get("labels") or {}).get("app.kubernetes.io/managed-by") == "slurm-operator"


def services(settings: Settings, cluster: Mapping[str, Any], pods: Collection[str]) -> list[dict[str, Any]]:
    """What leads clients to the daemons: as on a cluster, but for the ports, of which each has one of its own."""
    name = cluster["metadata"]["name"]

    def service(component: str, port: int, type_: str, target: str) -> dict[str, Any]:
        made: dict[str, Any] = {
            "metadata": {"name": f"{name}-{component}-svc", "labels": labels(component, name)},
            "spec": {
                "type": type_,
                "clusterIP": LOOPBACK,
                "selector": labels(component, name),
                "ports": [{"name": target, "port": port, "targetPort": port, "protocol": "TCP"}],
            },
        }
        if type_ == "LoadBalancer":
            made["status"] = {"loadBalancer": {"ingress": [{"ip": LOOPBACK}]}}
        return made

    ports = settings.ports
    login = cluster["spec"]["slurmNodes"]["login"].get("sshdServiceType", "LoadBalancer")
    made = [
        service("login", ports.ssh, login, "ssh"),
        service("rest", ports.slurmrestd, "ClusterIP", "rest-api"),
        service("controller", ports.slurmctld, "ClusterIP", "slurmctld"),
        service("accounting", ports.slurmdbd, "ClusterIP", "slurmdbd"),
    ]
    return [one for one in made if f"{one['metadata']['labels']['app.kubernetes.io/component']}-0" in pods]


def jwt_secret(cluster: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    name = cluster["metadata"]["name"]
    return {
        "metadata": {"name": f"{name}-rest-jwt-key", "labels": labels("rest", name)},
        "data": {"rest_jwt.key": b64encode(key).decode()},
    }


def nodesets_of(settings: Settings) -> list[dict[str, Any]]:
    """The NodeSets of an installation, as the recipe gives them for H100 machines and for those without GPUs."""

    def image(name: str) -> dict[str, Any]:
        return {"repository": f"{REGISTRY}/{name}", "tag": tag_of(settings)}

    def nodeset(name: str, replicas: int, gpus: int, ephemeral: bool) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "replicas": replicas,
            "maxUnavailable": "20%",
            "ephemeralNodes": ephemeral,
            "gpu": {"enabled": True, "nvidia": {"gdrCopyEnabled": True}} if gpus else {"enabled": False},
            "nodeConfig": _gpu_node(gpus) if gpus else CPU_NODE,
            "slurmd": {
                "image": image("worker_slurmd"),
                "port": 6818,
                "resources": _gpu_resources(gpus) if gpus else CPU_RESOURCES,
                "volumes": {"jail": {"persistentVolumeClaim": {"claimName": "jail-pvc"}}, "spool": {"emptyDir": {}}},
            },
            "munge": {"image": image("munge"), "resources": {"cpu": "100m", "memory": "0.5Gi"}},
            "nodeSelector": {NODESET_NAME_LABEL: name},
        }
        if ephemeral:
            spec["initialNumberEphemeralNodes"] = settings.initial
        annotations: dict[str, Any] = {}
        if settings.soperator == "4.1":
            annotations = {"annotations": {CLUSTER_ANNOTATION: CLUSTER}}
        else:
            spec |= {"clusterName": CLUSTER, "updateStrategy": "rollingUpdate"}
        return {"metadata": {"name": name, "labels": labels("nodeset"), **annotations}, "spec": spec}

    return [
        nodeset(EPHEMERAL_SET, settings.workers, settings.gpus, ephemeral=True),
        nodeset(STATIC_SET, settings.static, 0, ephemeral=False),
    ]


def _gpu_node(gpus: int) -> dict[str, Any]:
    """Of 16 CPUs for each GPU, on two sockets from eight GPUs on: so are the presets of H100 machines."""
    sockets = 2 if gpus >= 8 and gpus % 2 == 0 else 1
    cores = 8 * gpus // sockets
    shape = f"Boards=1 SocketsPerBoard={sockets} CoresPerSocket={cores} ThreadsPerCore=2"
    on_socket = [(number * sockets // gpus) * cores for number in range(gpus)]
    return {
        "features": ["gpu_h100_sxm", "platform-gpu"],
        "static": f"CPUs={16 * gpus} {shape} Gres=gpu:{GPU_TYPE}:{gpus}",
        "gresConfig": [
            f"AutoDetect=off Name=gpu Type={GPU_TYPE} File=/dev/nvidia{number} Cores={first}-{first + cores - 1}"
            " Flags=nvidia_gpu_env"
            for number, first in enumerate(on_socket)
        ],
    }


def _gpu_resources(gpus: int) -> dict[str, Any]:
    return {"cpu": f"{16 * gpus - 1}", "memory": f"{1550 * gpus // 8}Gi", GPU_RESOURCE: str(gpus)}


def system_pod(cluster: Mapping[str, Any], name: str, containers: list[str]) -> dict[str, Any]:
    """A Pod of the cluster's own daemons, on a Node that its filter chooses."""
    component = name.rpartition("-")[0]
    spec, part = cluster["spec"], cluster["spec"]["slurmNodes"][component]
    filters = {one["name"]: one.get("nodeSelector") for one in spec["k8sNodeFilters"]}
    selector = filters.get(part["k8sNodeFilterName"]) or {NODESET_NAME_LABEL: "system"}
    images = {one: (part.get(_FIELDS.get(one, one)) or {}).get("image", f"{REGISTRY}/{one}") for one in containers}
    return {
        "metadata": {"name": name, "labels": labels(component, cluster["metadata"]["name"])},
        "spec": {
            "containers": [{"name": container, "image": image} for container, image in images.items()],
            "nodeSelector": selector,
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
