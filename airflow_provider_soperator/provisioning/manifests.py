"""The objects of a cluster for Soperator's operator: what is said of it, and defaults where it is created."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.provisioning.fields import Preset, given, is_since, preset_of
from airflow_provider_soperator.provisioning.object_limits import (
    SCRIPTS,
    check_objects,
    claim_of,
    is_of,
    scripts_of,
    static_for,
)
from airflow_provider_soperator.provisioning.parts import RACK, NodeSet, PartitionSpec
from airflow_provider_soperator.provisioning.spec import ClusterSpec, Installation
from airflow_provider_soperator.soperator.clusters import CLUSTER_ANNOTATION
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import NODE_SET, SLURM_CLUSTER, Resource
from airflow_provider_soperator.soperator.workloads import MANAGER

#: vCPUs, and the share of memory, that are left to Kubernetes and to containers beside slurmd.
_KEPT_CPUS, _KEPT_MEMORY = 2, 0.25
_MUNGE: Object = {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "5Gi"}
_DAEMON: Object = {"cpu": "1", "memory": "4Gi", "ephemeral-storage": "20Gi"}
_SMALL: Object = {"cpu": "250m", "memory": "512Mi", "ephemeral-storage": "1Gi"}
_MARIADB = "docker-registry1.mariadb.com/library/mariadb:11.4.3"
_OPTIONS = "PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP OverSubscribe=YES"
#: Soperator's checks run in the hidden partition.
_PARTITIONS = (
    PartitionSpec("main", config=f"Default=YES {_OPTIONS}"),
    PartitionSpec("hidden", config=f"Default=NO Hidden=YES {_OPTIONS}"),
)
_ALL = {"isAll": True}
_LOCAL = "local-nvme"
#: How login nodes are reached, by ``public_login``.
_SERVICES: dict[Any, str] = {True: "LoadBalancer", False: "NodePort"}


@dataclass(frozen=True)
class Manifest:
    """One object: its kind, its name, and the fields that are to be applied."""

    resource: Resource
    body: Object

    @property
    def label(self) -> str:
        return f"{self.resource.kind}/{self.body['metadata']['name']}"

    def mounts(self, config_map: str) -> bool:
        """True for a node set that mounts a ConfigMap."""
        mounts = self.body["spec"].get("slurmd", {}).get("volumes", {}).get("customVolumeMounts") or ()
        return any(((one.get("volumeSource") or {}).get("configMap") or {}).get("name") == config_map for one in mounts)


def partitions_of(cluster: Object) -> frozenset[str]:
    """The names of the partitions of a SlurmCluster, by its spec."""
    said = cluster.get("partitionConfiguration") or {}
    if said.get("configType") == "structured":
        return frozenset(one["name"] for one in said.get("partitions") or ())
    if said.get("configType") == "custom":
        return frozenset(re.findall(r"PartitionName=(?!DEFAULT\b)(\S+)", "\n".join(said.get("rawConfig") or ())))
    return frozenset(one.name for one in _PARTITIONS)


def objects_of(spec: ClusterSpec) -> dict[str, tuple[Resource, str]]:
    """The kinds and names of the objects, by both, the cluster first."""
    names = (name for one in spec.nodesets for name in one.slurm_names)
    found = (SLURM_CLUSTER, spec.name), *((NODE_SET, name) for name in names)
    return {f"{resource.kind}/{name}": (resource, name) for resource, name in found}


def manifests_of(spec: ClusterSpec, installation: Installation, before: Mapping[str, Object]) -> list[Manifest]:
    """The objects, by those that are there (by kind/name).

    Of an object that exists, fields that are not said stay: those of others are left out, and those that an earlier
    apply has set are repeated, because server-side apply would remove them.
    """
    check_objects(spec, installation)
    cluster = _cluster(spec, installation, before.get(f"SlurmCluster/{spec.name}"))
    made = [(SLURM_CLUSTER, {"metadata": {"name": spec.name}, "spec": cluster})]
    for one in spec.nodesets:
        for rack, name in enumerate(one.slurm_names):
            made.append((NODE_SET, _nodeset(one, name, rack, spec, installation, before.get(f"NodeSet/{name}"))))
    return [Manifest(resource, _settled(body, resource.kind, installation, before)) for resource, body in made]


def _settled(body: Object, kind: str, installation: Installation, before: Mapping[str, Object]) -> Object:
    label = f"{kind}/{body['metadata']['name']}"
    for said in (kind, label):
        body = _merged(body, installation.overrides.get(said, {}))
    if label not in before:
        return body
    there = before[label]
    fields: Object = {}
    for entry in there["metadata"].get("managedFields") or ():
        if entry.get("manager") == MANAGER and entry.get("operation") == "Apply" and "subresource" not in entry:
            fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
    return {**body, "spec": _merged(_owned(there["spec"], fields), body["spec"])}


def _owned(there: Mapping[str, Any], fields: Object) -> Object:
    """The part of an object whose fields are managed."""
    return {
        name: _owned(value, inner) if isinstance(value, Mapping) and inner else value
        for name, value in there.items()
        if (inner := fields.get(f"f:{name}")) is not None
    }


def _merged(base: Any, over: Any) -> Any:
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    return {**base, **{name: _merged(base[name], value) if name in base else value for name, value in over.items()}}


def _tag(spec: ClusterSpec, installation: Installation) -> str:
    """The tag of images: the release, and the Slurm that it comes with if no other is given."""
    version = spec.operator_version
    known = "26.05.3-nebius-2" if is_since(version, 5, 0) else "25.11.2" if version == "3.0.0" else "25.11.3"
    return f"{version}-slurm{installation.slurm_version or known}"


def _cluster(spec: ClusterSpec, installation: Installation, before: Object | None) -> Object:
    """The fields that the description says, and the images of its release; for a new cluster also all defaults."""
    is_new = before is None

    def first(value: Any) -> Any:
        return value if is_new else None

    def image(name: str, suffix: str = "") -> str:
        return f"{installation.registry}/{name}:{_tag(spec, installation)}{suffix}"

    had = ((before or {}).get("spec") or {}).get("slurmNodes", {}).get("accounting") or {}
    has_database = had.get("enabled") or (had.get("externalDB") or {}).get("enabled")
    # Without slurmrestd, which needs accounting, Soperator never has Slurm read what it has changed.
    accounting = first(True) if spec.accounting is None else spec.accounting
    rest = first(accounting) if spec.rest is None else spec.rest
    partitions = [
        {"name": one.name, "config": one.config, **({"nodeSetRefs": list(one.nodesets)} if one.nodesets else _ALL)}
        for one in spec.partitions or first(_PARTITIONS) or ()
    ]
    place = {"k8sNodeFilterName": first("service")}
    common = {**place, "munge": {"image": image("munge"), "resources": first(_MUNGE)}}
    jail = first({"volumeSourceName": "jail"})
    filters = {"name": "service", "nodeSelector": {installation.node_label: installation.service_node_set}}
    submounts = [
        {"name": one.name, "mountPath": one.mount_path, "volumeSourceName": one.name} for one in spec.submounts
    ]
    made: Object = {
        "crVersion": spec.operator_version,
        "maintenance": spec.maintenance or first("none"),
        "k8sNodeFilters": first([filters]),
        "volumeSources": _volumes(spec, installation) if is_new or spec.submounts else None,
        "secrets": first({}),
        "populateJail": {**place, "image": image("populate_jail", f"-cuda{installation.cuda_version}")},
        "sConfigController": {
            "container": {
                "image": f"{installation.registry}/sconfigcontroller:{spec.operator_version}",
                "resources": first(_SMALL),
            },
            "serviceAccountName": first(f"{spec.name}-sconfigcontroller"),
            "node": {**place, "size": first(1)},
            # The image's own user.
            "runAsUid": first(1001),
            "runAsGid": first(1001),
        },
        # Of the only type with which the operator writes lines of nodes into slurm.conf.
        "partitionConfiguration": {"configType": "structured", "partitions": partitions} if partitions else None,
        "slurmNodes": {
            "accounting": {
                **common,
                "enabled": accounting,
                "slurmdbd": {"image": image("controller_slurmdbd"), "resources": first(_DAEMON)},
                **(_database(spec) if accounting and not has_database else _volume(spec, had)),
            },
            "controller": {
                **common,
                # Without it, the controller has no right to power nodes up and down.
                "serviceAccountName": first(f"{spec.name}-slurm-controller"),
                "slurmctld": {"image": image("controller_slurmctld"), "resources": first(_DAEMON)},
                "volumes": {"spool": first({"volumeSourceName": "controller-spool"}), "jail": jail},
            },
            "login": {
                **common,
                "size": (spec.login and spec.login.size) or first(1),
                "sshd": {"image": image("login_sshd"), "resources": first(_DAEMON)},
                "sshRootPublicKeys": list(spec.login_keys),
                "sshdServiceType": _SERVICES.get(spec.public_login, first("LoadBalancer")),
                "volumes": {"jail": jail, "jailSubMounts": submounts or None},
            },
            "exporter": {
                **place,
                "enabled": first(rest) if installation.exporter is None else installation.exporter,
                "size": first(1),
                "exporterContainer": {"image": image("soperator-exporter"), "resources": first(_SMALL)},
            },
            "rest": {
                **place,
                "enabled": rest,
                "size": first(1),
                "rest": {"image": image("slurmrestd"), "resources": first(_DAEMON)},
            },
        },
    }
    if is_new and installation.scripts:
        programs = {"prolog": "prolog.sh", "epilog": "epilog.sh"}
        if is_since(spec.operator_version, 5, 0):
            programs["taskProlog"] = "task_prolog.sh"
        made["slurmConfig"] = {name: f"/opt/slurm_scripts/{program}" for name, program in programs.items()}
        made["healthCheckConfig"] = {
            "healthCheckInterval": 120,
            "healthCheckProgram": "/opt/slurm_scripts/hc_program.sh",
            "healthCheckNodeState": [{"state": "ANY"}, {"state": "CYCLE"}],
        }
    return given(**made)


def _volumes(spec: ClusterSpec, installation: Installation) -> list[Object]:
    claims = {
        "jail": claim_of("jail", spec.jail, installation.jail_claim),
        "controller-spool": claim_of("controller_spool", spec.controller_spool, installation.spool_claim),
        **{one.name: claim_of("submount", one.filesystem, "") for one in spec.submounts},
    }
    return [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in claims.items()]


def _database(spec: ClusterSpec) -> Object:
    """A database by the MariaDB operator, on a volume of the default StorageClass."""
    size = spec.accounting_filesystem.size_gib if spec.accounting_filesystem else 64
    mariadb = {"enabled": True, "image": _MARIADB, "replicas": 1, "storage": {"ephemeral": False, "size": f"{size}Gi"}}
    return {"mariadbOperator": {**mariadb, "resources": _DAEMON}}


def _volume(spec: ClusterSpec, had: Object) -> Object:
    """The size of the volume of a database that is there, if it is said."""
    if spec.accounting_filesystem is None or not (had.get("mariadbOperator") or {}).get("enabled"):
        return {}
    return {"mariadbOperator": {"storage": {"size": f"{spec.accounting_filesystem.size_gib}Gi"}}}


def _nodeset(
    one: NodeSet, name: str, rack: int, spec: ClusterSpec, installation: Installation, before: Object | None
) -> Object:
    """A node set; one of a rack has its part of the nodes."""
    preset, version, tag = preset_of(one.preset), spec.operator_version, _tag(spec, installation)
    assert preset is not None, "the description was checked"
    size, is_new, has_gpus = one.slurm_nodes[name], before is None, bool(preset.gpus)

    def first(value: Any) -> Any:
        return value if is_new else None

    there: Object = (before or {}).get("spec") or {}
    is_same = is_of(str(there.get("nodeConfig", {}).get("static", "")), one.preset)
    features = list(dict.fromkeys((one.platform.replace("-", "_"), *one.features)))
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    capabilities = {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,graphics,utility,video"}
    claim = claim_of("jail", spec.jail, installation.jail_claim)
    body: Object = {
        "clusterName": spec.name if is_since(version, 5, 0) else None,
        "replicas": size,
        "ephemeralNodes": bool(one.ephemeral),
        "initialNumberEphemeralNodes": one.initial and min(size, max(0, int(one.initial) - rack * RACK)),
        "gpu": {"enabled": has_gpus, "nvidia": first({"gdrCopyEnabled": True}) if has_gpus else None},
        "tolerations": first([toleration]) if has_gpus else None,
        "nodeConfig": {
            "features": features if one.features else first(features),
            "autoResume": one.auto_resume,
            # gres.conf has AutoDetect=nvidia as soon as any node set has GPUs, so the node set adds nothing to it.
            "static": None if is_same else static_for(one, installation),
        },
        "nodeSelector": {installation.node_label: name},
        "topology": {"fabric": one.fabric},
        "priorityClass": installation.priority_class,
        "slurmd": {
            "image": {"repository": f"{installation.registry}/worker_slurmd", "tag": tag},
            "resources": None if is_same else _resources(preset),
            "customEnv": first([capabilities]) if has_gpus else None,
            "volumes": {
                "spool": first({"emptyDir": {"sizeLimit": "50Gi"}}),
                "jail": first({"persistentVolumeClaim": {"claimName": claim}}),
                "sharedMemorySize": first(f"{max(1, _memory(preset) * 2 // 3)}Gi"),
                "jailSubMounts": list(_submounts(one, spec)) or None,
                "customVolumeMounts": _mounts(scripts_of(spec, installation), before),
            },
        },
        "munge": {"image": {"repository": f"{installation.registry}/munge", "tag": tag}, "resources": first(_MUNGE)},
    }
    annotations = None if is_since(version, 5, 0) else {CLUSTER_ANNOTATION: spec.name}
    return {"metadata": given(name=name, annotations=annotations), "spec": given(**body)}


def _mounts(scripts: str | None, before: Object | None) -> list[Object] | None:
    """The mounts of the scripts in a new node set, and with a new name, as in 5.0, those of one that exists.

    A Pod without its ConfigMap does not start.
    """
    if scripts is None:
        return None
    if before is None:
        source = {"configMap": {"name": scripts, "defaultMode": 0o755}}
        places = {SCRIPTS: "/opt/slurm_scripts/", f"{SCRIPTS}-jail": "/mnt/jail.upper/opt/slurm_scripts/"}
        return [{"name": name, "mountPath": path, "volumeSource": source} for name, path in places.items()]
    had = before["spec"].get("slurmd", {}).get("volumes", {}).get("customVolumeMounts") or []
    renamed = [_with_scripts(mount, scripts) for mount in had]
    return renamed if renamed != had else None


def with_scripts(spec: Object, scripts: str | None) -> Object:
    """What a node set that exists would be if nothing but the name of its scripts changed."""
    mounts = _mounts(scripts, {"spec": spec})
    return _merged(spec, {"slurmd": {"volumes": {"customVolumeMounts": mounts}}}) if mounts else spec


def _with_scripts(mount: Object, scripts: str) -> Object:
    source = mount.get("volumeSource") or {}
    had = (source.get("configMap") or {}).get("name", "")
    if had == scripts or not (had == SCRIPTS or had.endswith(f"-{SCRIPTS}")):
        return mount
    return _merged(mount, {"volumeSource": {"configMap": {"name": scripts}}})  # type: ignore[no-any-return]


def _resources(preset: Preset) -> Object:
    """slurmd gets most of the machine."""
    made = {"cpu": str(max(1, preset.cpus - _KEPT_CPUS)), "memory": f"{_memory(preset)}Gi", "ephemeral-storage": "50Gi"}
    return {**made, "nvidia.com/gpu": str(preset.gpus)} if preset.gpus else made


def _memory(preset: Preset) -> int:
    return int(preset.memory_gb * (1 - _KEPT_MEMORY))


def _submounts(one: NodeSet, spec: ClusterSpec) -> Iterator[Object]:
    for submount in spec.submounts:
        source: Object = {"persistentVolumeClaim": {"claimName": claim_of("submount", submount.filesystem, "")}}
        yield {"name": submount.name, "mountPath": submount.mount_path, "volumeSource": source}
    if one.local_nvme:
        path = one.local_nvme.mount_path
        source = {"hostPath": {"path": path, "type": "Directory"}}
        yield {"name": _LOCAL, "mountPath": path, "volumeSource": source}
