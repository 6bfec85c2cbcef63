"""The objects of a cluster for Soperator's operator: what is said of it, and defaults where it is created."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from airflow_provider_soperator.soperator.clusters import CLUSTER_ANNOTATION
from airflow_provider_soperator.soperator.conditions import Object
from airflow_provider_soperator.soperator.kinds import NODE_SET, SLURM_CLUSTER, Resource
from airflow_provider_soperator.soperator.workloads import MANAGER

if TYPE_CHECKING:
    from airflow_provider_soperator.provisioning.spec import ClusterSpec, Installation

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
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def label(self) -> str:
        return f"{self.resource.kind}/{self.name}"

    @property
    def config_maps(self) -> set[str]:
        """The ConfigMaps that a node set mounts."""
        mounts = self.body["spec"].get("slurmd", {}).get("volumes", {}).get("customVolumeMounts") or ()
        return {str(((one.get("volumeSource") or {}).get("configMap") or {}).get("name", "")) for one in mounts}


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
    had = before.get(f"SlurmCluster/{spec.name}")
    cluster = _merged({} if had else _new_cluster(spec, installation), _said_of_cluster(spec, installation, had))
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


def _said_of_cluster(spec: ClusterSpec, installation: Installation, before: Object | None) -> Object:
    """The fields that the description says, and the images of its release."""

    def image(name: str, suffix: str = "") -> Object:
        return {"image": f"{installation.registry}/{name}:{_tag(spec, installation)}{suffix}"}

    munge = {"munge": image("munge")}
    had = ((before or {}).get("spec") or {}).get("slurmNodes", {}).get("accounting") or {}
    has_database = had.get("enabled") or (had.get("externalDB") or {}).get("enabled")
    submounts = [
        {"name": one.name, "mountPath": one.mount_path, "volumeSourceName": one.name} for one in spec.submounts
    ]
    return given(
        crVersion=spec.operator_version,
        maintenance=spec.maintenance,
        volumeSources=_volumes(spec, installation) if spec.submounts else None,
        populateJail=image("populate_jail", f"-cuda{installation.cuda_version}"),
        sConfigController={
            "container": {"image": f"{installation.registry}/sconfigcontroller:{spec.operator_version}"}
        },
        partitionConfiguration=_partitions(spec.partitions) if spec.partitions else None,
        slurmNodes={
            "accounting": {
                **munge,
                **given(enabled=spec.accounting),
                **(_database(spec) if spec.accounting and not has_database else {}),
                "slurmdbd": image("controller_slurmdbd"),
            },
            "controller": {**munge, "slurmctld": image("controller_slurmctld")},
            "login": {
                **munge,
                "sshd": image("login_sshd"),
                "sshRootPublicKeys": list(spec.login_keys),
                **given(
                    size=spec.login.size if spec.login else None,
                    sshdServiceType=_SERVICES.get(spec.public_login),
                    volumes={"jailSubMounts": submounts} if submounts else None,
                ),
            },
            "exporter": {**given(enabled=installation.exporter), "exporterContainer": image("soperator-exporter")},
            "rest": {**given(enabled=spec.rest), "rest": image("slurmrestd")},
        },
    )


def _partitions(said: Iterable[PartitionSpec]) -> Object:
    """Of the only type with which the operator writes lines of nodes into slurm.conf."""
    partitions = [
        {"name": one.name, "config": one.config, **({"nodeSetRefs": list(one.nodesets)} if one.nodesets else _ALL)}
        for one in said
    ]
    return {"configType": "structured", "partitions": partitions}


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


def _new_cluster(spec: ClusterSpec, installation: Installation) -> Object:
    """Defaults of a new cluster."""
    place = {"k8sNodeFilterName": "service"}
    munge, daemon = {"munge": {"resources": _MUNGE}}, {"resources": _DAEMON}
    jail = {"jail": {"volumeSourceName": "jail"}}
    # Without slurmrestd, which needs accounting, Soperator never has Slurm read what it has changed.
    has_accounting = spec.accounting is not False
    has_rest = has_accounting and spec.rest is not False
    made: Object = {
        "maintenance": "none",
        "k8sNodeFilters": [
            {"name": "service", "nodeSelector": {installation.node_label: installation.service_node_set}}
        ],
        "volumeSources": _volumes(spec, installation),
        "secrets": {},
        "populateJail": place,
        "partitionConfiguration": _partitions(_PARTITIONS),
        "sConfigController": {
            "serviceAccountName": f"{spec.name}-sconfigcontroller",
            "node": {**place, "size": 1},
            "container": {"resources": _SMALL},
            # The image's own user.
            "runAsUid": 1001,
            "runAsGid": 1001,
        },
        "slurmNodes": {
            "accounting": {
                **place,
                **munge,
                "enabled": has_accounting,
                "slurmdbd": daemon,
                **(_database(spec) if has_accounting else {}),
            },
            "controller": {
                **place,
                **munge,
                # Without it, the controller has no right to power nodes up and down.
                "serviceAccountName": f"{spec.name}-slurm-controller",
                "slurmctld": daemon,
                "volumes": {"spool": {"volumeSourceName": "controller-spool"}, **jail},
            },
            "login": {
                **place,
                **munge,
                "size": 1,
                "sshd": daemon,
                "sshdServiceType": "LoadBalancer",
                "volumes": jail,
            },
            "exporter": {**place, "enabled": has_rest, "size": 1, "exporterContainer": {"resources": _SMALL}},
            "rest": {**place, "enabled": has_rest, "size": 1, "rest": daemon},
        },
    }
    if installation.scripts:
        programs = {"prolog": "prolog.sh", "epilog": "epilog.sh"}
        if is_since(spec.operator_version, 5, 0):
            programs["taskProlog"] = "task_prolog.sh"
        made["slurmConfig"] = {name: f"/opt/slurm_scripts/{program}" for name, program in programs.items()}
        made["healthCheckConfig"] = {
            "healthCheckInterval": 120,
            "healthCheckProgram": "/opt/slurm_scripts/hc_program.sh",
            "healthCheckNodeState": [{"state": "ANY"}, {"state": "CYCLE"}],
        }
    return made


def _nodeset(
    one: NodeSet, name: str, rack: int, spec: ClusterSpec, installation: Installation, before: Object | None
) -> Object:
    preset, version, tag = preset_of(one.preset), spec.operator_version, _tag(spec, installation)
    assert preset is not None, "the description was checked"
    # A node set of one rack has its part of the nodes.
    size = one.slurm_nodes[name]
    initial = min(size, max(0, int(one.initial or 0) - rack * RACK))
    there: Object = (before or {}).get("spec") or {}
    mounts = given(jailSubMounts=list(_submounts(one, spec)) or None)
    slurmd: Object = {"image": {"repository": f"{installation.registry}/worker_slurmd", "tag": tag}, "volumes": mounts}
    features = dict.fromkeys((_feature(one), *one.features)) if one.features else ()
    node = given(features=list(features) or None, autoResume=one.auto_resume)
    body = given(
        clusterName=spec.name if is_since(version, 5, 0) else None,
        replicas=size,
        ephemeralNodes=bool(one.ephemeral),
        initialNumberEphemeralNodes=None if one.initial is None else initial,
        gpu={"enabled": bool(preset.gpus)},
        nodeConfig=node,
        nodeSelector={installation.node_label: name},
        topology={"fabric": one.fabric} if one.fabric else None,
        priorityClass=installation.priority_class,
        slurmd=slurmd,
        munge={"image": {"repository": f"{installation.registry}/munge", "tag": tag}},
    )
    if not is_of(str(there.get("nodeConfig", {}).get("static", "")), one.preset):
        node["static"] = static_for(one, installation)
        slurmd["resources"] = _resources(preset)
    scripts = scripts_of(spec, installation)
    if before is None:
        body = _merged(_new_nodeset(one, preset, spec, installation, scripts), body)
    elif scripts:
        # The ConfigMap has another name in 5.0, and a Pod without its ConfigMap does not start.
        had = there.get("slurmd", {}).get("volumes", {}).get("customVolumeMounts") or []
        renamed = [_with_scripts(mount, scripts) for mount in had]
        if renamed != had:
            mounts["customVolumeMounts"] = renamed
    annotations = None if is_since(version, 5, 0) else {CLUSTER_ANNOTATION: spec.name}
    return {"metadata": given(name=name, annotations=annotations), "spec": body}


def _feature(one: NodeSet) -> str:
    return one.platform.replace("-", "_")


def _with_scripts(mount: Object, scripts: str) -> Object:
    source = mount.get("volumeSource") or {}
    had = (source.get("configMap") or {}).get("name", "")
    if had == scripts or not (had == SCRIPTS or had.endswith(f"-{SCRIPTS}")):
        return mount
    return _merged(mount, {"volumeSource": {"configMap": {"name": scripts}}})  # type: ignore[no-any-return]


def _resources(preset: Preset) -> Object:
    """slurmd gets most of the machine."""
    return {
        "cpu": str(preset.cpus - _KEPT_CPUS if preset.cpus > _KEPT_CPUS else 1),
        "memory": f"{_memory(preset)}Gi",
        "ephemeral-storage": "50Gi",
        **({"nvidia.com/gpu": str(preset.gpus)} if preset.gpus else {}),
    }


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


def _new_nodeset(
    one: NodeSet, preset: Preset, spec: ClusterSpec, installation: Installation, scripts: str | None
) -> Object:
    """Defaults of a new node set."""
    volumes: Object = {
        "spool": {"emptyDir": {"sizeLimit": "50Gi"}},
        "jail": {"persistentVolumeClaim": {"claimName": claim_of("jail", spec.jail, installation.jail_claim)}},
        "sharedMemorySize": f"{max(1, _memory(preset) * 2 // 3)}Gi",
    }
    if scripts:
        source = {"configMap": {"name": scripts, "defaultMode": 0o755}}
        volumes["customVolumeMounts"] = [
            {"name": SCRIPTS, "mountPath": "/opt/slurm_scripts/", "volumeSource": source},
            {"name": f"{SCRIPTS}-jail", "mountPath": "/mnt/jail.upper/opt/slurm_scripts/", "volumeSource": source},
        ]
    made: Object = {
        "nodeConfig": {"features": [_feature(one)]},
        "slurmd": {"volumes": volumes},
        "munge": {"resources": _MUNGE},
    }
    if preset.gpus:
        # gres.conf has AutoDetect=nvidia as soon as any node set has GPUs, so the node set adds nothing to it.
        made["gpu"] = {"nvidia": {"gdrCopyEnabled": True}}
        made["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        capabilities = {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,graphics,utility,video"}
        made["slurmd"]["customEnv"] = [capabilities]
    return made
