"""What objects for Soperator's operator can have of a description, and what they refer to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.provisioning.fields import SpecMistake, is_since
from airflow_provider_soperator.provisioning.hardware import static_of
from airflow_provider_soperator.provisioning.parts import Filesystem, NodeSet, ServiceNodes
from airflow_provider_soperator.values import is_template

if TYPE_CHECKING:
    from airflow_provider_soperator.provisioning.spec import ClusterSpec, Installation

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


def check_objects(spec: ClusterSpec, installation: Installation) -> None:
    """Raise ``SpecMistake`` for what objects cannot have."""
    said = spec.write()
    _refuse("the spec", said, _NOT_OURS)
    if spec.login and spec.login != ServiceNodes(size=spec.login.size):
        raise _not_ours("login, but for its size,")
    for name in ("jail", "controller_spool"):
        claim_of(name, getattr(spec, name), "")
    for submount in spec.submounts:
        claim_of(f"submount {submount.name}", submount.filesystem, "")
    database = spec.accounting_filesystem
    if database and (database.id or database != Filesystem(size_gib=database.size_gib)):
        raise _not_ours("accounting_filesystem, but for size_gib, the size of its database's volume,")
    for partition in spec.partitions:
        if partition.topology != "flat":
            raise _not_ours(f"the topology of partition {partition.name}")
    for one, words in zip(spec.nodesets, said["nodesets"], strict=True):
        where = f"node set {one.name}"
        _refuse(where, words, _NOT_OURS_OF_NODESETS)
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
    names = [name for one in spec.nodesets for name in one.slurm_names]
    known = {"SlurmCluster", "NodeSet", f"SlurmCluster/{spec.name}", *(f"NodeSet/{name}" for name in names)}
    for name in installation.overrides:
        if name not in known and not any(map(is_template, known)):
            raise SpecMistake(f"unknown object {name!r} in overrides: {name_remedy(name, sorted(known))}")


def _refuse(where: str, said: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if name in said:
            raise _not_ours(f"{where}: {name}")


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
