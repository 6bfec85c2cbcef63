"""A cluster as objects for Soperator's operator, in a Kubernetes cluster that already has the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.provisioning.fields import SpecMistake, preset_of
from airflow_provider_soperator.provisioning.parts import NodeSet
from airflow_provider_soperator.provisioning.spec import ClusterSpec, Installation

Object = dict[str, Any]

#: The annotation that links a node set to its cluster; a field from 5.0 on.
_PARENT = "slurm.nebius.ai/parental-cluster-ref"
#: vCPUs, and the share of memory, that are left to Kubernetes and to containers beside slurmd.
_KEPT_CPUS, _KEPT_MEMORY = 2, 0.25
_MUNGE: Object = {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "5Gi"}
_DAEMON: Object = {"cpu": "1", "memory": "4Gi", "ephemeral-storage": "20Gi"}


def objects(spec: ClusterSpec, installation: Installation) -> tuple[Object, list[Object]]:
    """The SlurmCluster and its NodeSets."""
    names = [one.name for one in spec.nodesets]
    known = {"SlurmCluster", "NodeSet", f"SlurmCluster/{spec.name}", *(f"NodeSet/{name}" for name in names)}
    for said in installation.overrides:
        if said not in known:
            raise SpecMistake(f"unknown object {said!r} in overrides: {name_remedy(said, sorted(known))}")
    cluster = _slurm_cluster(spec, installation)
    nodesets = [_nodeset(one, spec, installation) for one in spec.nodesets]
    return _with(cluster, "SlurmCluster", installation), [_with(one, "NodeSet", installation) for one in nodesets]


def _has_cluster_names(version: str) -> bool:
    """True if node sets of this release name their cluster in a field.

    >>> _has_cluster_names("4.1.13"), _has_cluster_names("5.0.0-rc.1")
    (False, True)
    """
    return int(version.partition(".")[0]) >= 5


def _slurm_of(version: str) -> str:
    """The Slurm that a release of Soperator comes with.

    >>> _slurm_of("4.1.7"), _slurm_of("5.0.0")
    ('25.11.3', '26.05.3-nebius-2')
    """
    if _has_cluster_names(version):
        return "26.05.3-nebius-2"
    return "25.11.2" if version == "3.0.0" else "25.11.3"


def _partitions(spec: ClusterSpec) -> Object:
    """The partitionConfiguration of the SlurmCluster."""
    if not spec.partitions:
        return {"configType": "default"}
    said = []
    for one in spec.partitions:
        nodesets: Object = {"nodeSetRefs": list(one.nodesets)} if one.nodesets else {"isAll": True}
        said.append({"name": one.name, "config": one.config, **nodesets})
    return {"configType": "structured", "partitions": said}


def _merged(base: Any, over: Any) -> Any:
    """Merge mappings; replace everything else.

    >>> _merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    """
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    return {**base, **{name: _merged(base[name], value) if name in base else value for name, value in over.items()}}


def _with(made: Object, kind: str, installation: Installation) -> Object:
    for said in (kind, f"{kind}/{made['metadata']['name']}"):
        made = _merged(made, installation.overrides.get(said, {}))
    return made


def _slurm_cluster(spec: ClusterSpec, installation: Installation) -> Object:
    def image(name: str, suffix: str = "") -> str:
        return f"{installation.registry}/{name}:{_tag(spec, installation)}{suffix}"

    def container(name: str, wanted: Object) -> Object:
        return {"image": image(name), "imagePullPolicy": "IfNotPresent", "resources": wanted}

    place = {"k8sNodeFilterName": "service"}
    munge = {"munge": container("munge", _MUNGE)}
    jail = {"jail": {"volumeSourceName": "jail"}}
    return {
        "metadata": {"name": spec.name},
        "spec": {
            "crVersion": spec.operator_version,
            "maintenance": spec.maintenance or "none",
            "k8sNodeFilters": [
                {"name": "service", "nodeSelector": {installation.node_label: installation.service_node_set}}
            ],
            "volumeSources": [
                {"name": "jail", "persistentVolumeClaim": {"claimName": installation.jail_claim}},
                {"name": "controller-spool", "persistentVolumeClaim": {"claimName": installation.spool_claim}},
            ],
            "secrets": {},
            "populateJail": {"image": image("populate_jail", f"-cuda{installation.cuda_version}"), **place},
            "partitionConfiguration": _partitions(spec),
            "slurmNodes": {
                "accounting": {"enabled": bool(spec.accounting), **place},
                "controller": {
                    **place,
                    **munge,
                    # Without it, the controller has no right to power nodes up and down.
                    "serviceAccountName": f"{spec.name}-slurm-controller",
                    "slurmctld": container("controller_slurmctld", _DAEMON),
                    "volumes": {"spool": {"volumeSourceName": "controller-spool"}, **jail},
                },
                "login": {
                    **place,
                    **munge,
                    "size": int(spec.login.size or 1) if spec.login else 1,
                    "sshd": container("login_sshd", _DAEMON),
                    "sshRootPublicKeys": list(spec.login_keys),
                    "sshdServiceType": "NodePort" if spec.public_login is False else "LoadBalancer",
                    "volumes": jail,
                },
                "exporter": {"enabled": False, **place},
                "rest": {
                    "enabled": bool(spec.rest),
                    **place,
                    **({"rest": container("slurmrestd", _DAEMON)} if spec.rest else {}),
                },
            },
        },
    }


def _tag(spec: ClusterSpec, installation: Installation) -> str:
    return f"{spec.operator_version}-slurm{installation.slurm_version or _slurm_of(spec.operator_version)}"


def _nodeset(one: NodeSet, spec: ClusterSpec, installation: Installation) -> Object:
    preset, version, tag = preset_of(one.preset), spec.operator_version, _tag(spec, installation)
    assert preset is not None, "the description was checked"
    # slurmd gets most of the machine.
    resources = {
        "cpu": str(preset.cpus - _KEPT_CPUS),
        "memory": f"{int(preset.memory_gb * (1 - _KEPT_MEMORY))}Gi",
        "ephemeral-storage": "50Gi",
        **({"nvidia.com/gpu": str(preset.gpus)} if preset.gpus else {}),
    }
    body: Object = {
        "replicas": one.size,
        "ephemeralNodes": bool(one.ephemeral),
        "gpu": {"enabled": bool(preset.gpus), "nvidia": {"gdrCopyEnabled": bool(preset.gpus)}},
        "nodeConfig": {**({"features": list(one.features)} if one.features else {}), **_auto_resume(one, version)},
        "nodeSelector": {installation.node_label: one.name},
        "slurmd": {
            "image": {"repository": f"{installation.registry}/worker_slurmd", "tag": tag},
            "resources": resources,
            "volumes": {
                "spool": {"emptyDir": {"sizeLimit": "50Gi"}},
                "jail": {"persistentVolumeClaim": {"claimName": installation.jail_claim}},
            },
        },
        "munge": {"image": {"repository": f"{installation.registry}/munge", "tag": tag}, "resources": _MUNGE},
    }
    if preset.gpus:
        body["nodeConfig"]["gresConfig"] = ["AutoDetect=nvidia"]
        body["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if one.initial is not None:
        body["initialNumberEphemeralNodes"] = one.initial
    metadata: Object = {"name": one.name}
    if _has_cluster_names(version):
        body["clusterName"] = spec.name
    else:
        metadata["annotations"] = {_PARENT: spec.name}
    return {"metadata": metadata, "spec": body}


def _auto_resume(one: NodeSet, version: str) -> Object:
    if _has_cluster_names(version):
        return {} if one.auto_resume is None else {"autoResume": one.auto_resume}
    if one.auto_resume is False:
        raise SpecMistake(f"node set {one.name}: auto_resume needs Soperator 5.0, and this is {version}; omit it")
    return {}
