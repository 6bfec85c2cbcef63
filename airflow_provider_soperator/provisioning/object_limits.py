"""What objects for Soperator's operator can have of a description, what they refer to, and Nebius' machines."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.provisioning.fields import SpecMistake, is_since, preset_of
from airflow_provider_soperator.provisioning.parts import Filesystem, NodeSet, ServiceNodes
from airflow_provider_soperator.provisioning.spec import ClusterSpec, Installation
from airflow_provider_soperator.values import is_template

#: The ConfigMap of Soperator's charts.
SCRIPTS = "slurm-scripts"
#: Fields of a description that are about machines and clouds: they exist before the objects.
_NOT_OURS = (
    "region", "tenant", "project", "subnet", "k8s_version", "production", "controller", "system", "accounting_nodes",
    "nfs", "active_checks_scope", "extra",
)  # fmt: skip
_NOT_OURS_OF_NODESETS = (
    "gpu_cluster", "autoscaling", "min_size", "blocks", "reservation", "preemptible", "boot_disk", "drain_timeout",
    "max_pods", "extra",
)  # fmt: skip


@dataclass(frozen=True)
class _Platform:
    presets: tuple[str, ...]
    #: vCPUs up to which a machine has one socket; others have two.
    one_socket: int
    threads: int = 2
    #: A part of the name that the driver gives the GPU: with that, ``AutoDetect=nvidia`` finds them.
    gpu: str = ""


def _cpu_presets(*cpus: int) -> tuple[str, ...]:
    return tuple(f"{count}vcpu-{count * 4}gb" for count in cpus)


_H = ("1gpu-16vcpu-200gb", "8gpu-128vcpu-1600gb")
_B200 = ("1gpu-20vcpu-224gb", "8gpu-160vcpu-1792gb")
#: The platforms and presets of the published recipe.
_PLATFORMS = {
    "cpu-e2": _Platform(_cpu_presets(2, 4, 8, 16, 32, 48, 64, 80), 32),
    "cpu-d3": _Platform(_cpu_presets(2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256), 128),
    "cpu-g1": _Platform(_cpu_presets(2, 4, 8, 16, 32, 56, 112), 56, threads=1),
    "gpu-h100-sxm": _Platform(_H, 16, gpu="nvidia_h100_80gb_hbm3"),
    "gpu-h200-sxm": _Platform(_H, 16, gpu="nvidia_h200"),
    "gpu-b200-sxm": _Platform(_B200, 20, gpu="nvidia_b200"),
    "gpu-b200-sxm-a": _Platform(_B200, 20, gpu="nvidia_b200"),
    "gpu-b300-sxm": _Platform(("1gpu-24vcpu-346gb", "8gpu-192vcpu-2768gb"), 24, gpu="nvidia_b300"),
    "gpu-gb300": _Platform(("4gpu-112vcpu-800gb",), 56, threads=1, gpu="nvidia_gb300"),
}


def check_objects(spec: ClusterSpec, installation: Installation) -> None:
    """Raise ``SpecMistake`` for what objects cannot have."""
    said = spec.write()
    for name in _NOT_OURS:
        if name in said:
            raise _not_ours(f"the spec: {name}")
    if spec.login and spec.login != ServiceNodes(size=spec.login.size):
        raise _not_ours("login, but for its size,")
    submounts = {f"submount {one.name}": one.filesystem for one in spec.submounts}
    for name, claim in {"jail": spec.jail, "controller_spool": spec.controller_spool, **submounts}.items():
        claim_of(name, claim, "")
    database = spec.accounting_filesystem
    if database and (database.id or database != Filesystem(size_gib=database.size_gib)):
        raise _not_ours("accounting_filesystem, but for size_gib, the size of its database's volume,")
    for partition in spec.partitions:
        if partition.topology != "flat":
            raise _not_ours(f"the topology of partition {partition.name}")
    for one, words in zip(spec.nodesets, said["nodesets"], strict=True):
        where = f"node set {one.name}"
        for name in _NOT_OURS_OF_NODESETS:
            if name in words:
                raise _not_ours(f"{where}: {name}")
        if one.local_nvme and one.local_nvme.limit_gib is not None:
            raise _not_ours(f"{where}: limit_gib of local_nvme")
        if one.fabric and not is_template(spec.operator_version) and not is_since(spec.operator_version, 5, 0):
            raise SpecMistake(
                f"{where}: fabric is the machines' own before Soperator 5.0, and this is {spec.operator_version}; "
                "omit it"
            )
        if not is_template(one.platform) and not is_template(one.preset) and not static_for(one, installation):
            raise SpecMistake(
                f"{where}: the CPUs and GPUs of {one.platform} with {one.preset} are not known; give them as in "
                f'slurm.conf, as Installation(overrides={{"NodeSet/{one.name}": {{"spec": {{"nodeConfig": {{"static": '
                '"CPUs=… Boards=1 SocketsPerBoard=… CoresPerSocket=… ThreadsPerCore=… Gres=gpu:8"}}}})'
            )
    names = [f"NodeSet/{name}" for one in spec.nodesets for name in one.slurm_names]
    known = {"SlurmCluster", "NodeSet", f"SlurmCluster/{spec.name}", *names}
    for name, fields in installation.overrides.items():
        if "maintenance" in (fields.get("spec") or {}):
            raise SpecMistake(f"overrides of {name} have maintenance: set it in the spec, by which the jail is guarded")
        if name not in known and not any(map(is_template, known)):
            raise SpecMistake(f"unknown object {name!r} in overrides: {name_remedy(name, sorted(known))}")


def _not_ours(what: str) -> SpecMistake:
    return SpecMistake(
        f"{what} cannot be had by KubernetesObjects, as machines, networks and volumes exist before them: omit it, or "
        "use a Recipe"
    )


def claim_of(what: str, said: Filesystem | None, default: str) -> str:
    """The volume claim for a file system: for objects, its id is the name of the claim."""
    if said is None:
        return default
    if said.id is None or said != Filesystem(id=said.id):
        raise SpecMistake(
            f"{what}: objects cannot make a file system: create its PersistentVolumeClaim, and give the claim's name "
            "as id, with nothing else"
        )
    return said.id


def scripts_of(spec: ClusterSpec, installation: Installation) -> str | None:
    """The ConfigMap with the prolog, the epilog and the health checks, which Soperator's charts make."""
    if installation.scripts == SCRIPTS and is_since(spec.operator_version, 5, 0):
        return f"{spec.name}-{SCRIPTS}"
    return installation.scripts


def static_for(one: NodeSet, installation: Installation) -> str:
    """The hardware of a node in slurm.conf, where it is known or given."""
    for label in (*(f"NodeSet/{name}" for name in one.slurm_names), "NodeSet"):
        said = installation.overrides.get(label, {}).get("spec", {}).get("nodeConfig", {}).get("static")
        if said:
            return str(said)
    return static_of(one.platform, one.preset)


def static_of(platform: str, preset: str) -> str:
    """The options of ``NodeName`` for a machine; empty if the preset is not known.

    >>> static_of("gpu-h100-sxm", "1gpu-16vcpu-200gb")
    'CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=2 Gres=gpu:nvidia_h100_80gb_hbm3:1'
    """
    known, size = _PLATFORMS.get(platform), preset_of(preset)
    if known is None or size is None or preset not in known.presets:
        return ""
    sockets = 1 if size.cpus <= known.one_socket else 2
    cores = f"SocketsPerBoard={sockets} CoresPerSocket={size.cpus // sockets // known.threads}"
    gres = f" Gres=gpu:{known.gpu}:{size.gpus}" if size.gpus else ""
    return f"CPUs={size.cpus} Boards=1 {cores} ThreadsPerCore={known.threads}{gres}"


def is_of(static: str, preset: str) -> bool:
    """True if options of ``NodeName`` have the CPUs and GPUs of a preset, whatever else they have."""
    size, cpus = preset_of(preset), re.search(r"\bCPUs=(\d+)", static)
    gpus = re.search(r"\bGres=gpu:(?:\w+:)?(\d+)", static)
    said = (int(cpus[1]) if cpus else 1, int(gpus[1]) if gpus else 0)
    return size is not None and said == (size.cpus, size.gpus)
