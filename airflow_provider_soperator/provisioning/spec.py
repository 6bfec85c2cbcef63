"""Description of a whole cluster, the source from which it is made, and the connections to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.provisioning import fields
from airflow_provider_soperator.provisioning.fields import (
    SpecMistake,
    Switch,
    check_key,
    check_name,
    check_one_of,
    check_parts,
    is_since,
    take_texts,
)
from airflow_provider_soperator.provisioning.parts import Filesystem, NodeSet, PartitionSpec, ServiceNodes, Submount
from airflow_provider_soperator.soperator.clusters import AT_WORK
from airflow_provider_soperator.values import NAMESPACE, is_template

#: The mode of maintenance that restores the jail to its image, and deletes everything else in it.
OVERWRITING = "downscaleAndOverwritePopulateJail"
MAINTENANCE = ("none", "downscale", "downscaleAndDeletePopulateJail", OVERWRITING, "skipPopulateJail")
ACTIVE_CHECKS = ("dev", "testing", "prod_quick", "prod_acceptance", "essential")
#: A release of Soperator, as in its image tags.
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[\w.-]+)?")
#: The releases from which on a node set has a field.
_SINCE = {"initial": (4, 0), "auto_resume": (5, 0)}
#: Variables of the recipe that are not for ``extra``: by these fields in their place the jail and jobs are guarded.
_GUARDED = {"maintenance": "maintenance", "slurm_nodesets_partitions": "partitions"}
#: Prefixes of Nebius ids.
_IDS = {"tenant": "tenant-", "project": "project-", "subnet": "vpcsubnet-"}


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """A Soperator cluster.

        ClusterSpec(
            name="research",
            operator_version="4.1.7",
            nodesets=(NodeSet("worker", 2, platform="gpu-h100-sxm", preset="8gpu-128vcpu-1600gb"),),
            login_keys=("ssh-ed25519 AAAAC3…",),
        )

    Unset fields keep the recipe's defaults, or the cluster's present values. Each value may be a template. ``extra``
    has further variables of the recipe, by their names there.
    """

    name: str
    operator_version: str
    nodesets: tuple[NodeSet, ...]
    login_keys: tuple[str, ...]
    region: str | None = None
    tenant: str | None = None
    project: str | None = None
    subnet: str | None = None
    k8s_version: str | None = None
    production: Switch | None = None
    controller: ServiceNodes | None = None
    login: ServiceNodes | None = None
    system: ServiceNodes | None = None
    accounting_nodes: ServiceNodes | None = None
    nfs: ServiceNodes | None = None
    #: All partitions: others that the cluster has go. Each has all node sets unless it names some.
    partitions: tuple[PartitionSpec, ...] = ()
    jail: Filesystem | None = None
    submounts: tuple[Submount, ...] = ()
    controller_spool: Filesystem | None = None
    accounting_filesystem: Filesystem | None = None
    #: Give the login nodes a public address.
    public_login: Switch | None = None
    accounting: Switch | None = None
    rest: Switch | None = None
    maintenance: str | None = None
    active_checks_scope: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        take_texts(self, "login_keys")
        check_name("cluster", self.name, 32)
        check_parts(self)
        if not is_template(self.operator_version) and not _VERSION.fullmatch(str(self.operator_version)):
            said = self.operator_version
            raise SpecMistake(f"operator_version must be a release of Soperator, such as 4.1.7, got {said!r}")
        for key in self.login_keys:
            check_key(key)
        if not self.login_keys:
            raise SpecMistake("login_keys is empty, so no user could log in: add a public key")
        for name, beginning in _IDS.items():
            said = getattr(self, name)
            if said and not is_template(said) and not said.startswith(beginning):
                raise SpecMistake(f"{name} must be an id that begins with {beginning}, got {said!r}")
        for name, ours in _GUARDED.items():
            if name in self.extra:
                raise SpecMistake(f"extra has {name}: set {ours} of the spec, by which the jail and jobs are guarded")
        check_one_of("maintenance", self.maintenance, MAINTENANCE)
        check_one_of("active_checks_scope", self.active_checks_scope, ACTIVE_CHECKS)
        if self.rest is True and self.accounting in (None, False):
            raise SpecMistake(
                "rest needs accounting, without which slurmrestd is not started: also set accounting=True"
            )
        self._check_nodesets()
        self._check_partitions()

    def _check_nodesets(self) -> None:
        for one in self.nodesets if not is_template(self.operator_version) else ():
            for name, since in _SINCE.items():
                if getattr(one, name) is not None and not is_since(self.operator_version, *since):
                    release = ".".join(map(str, since))
                    raise SpecMistake(
                        f"node set {one.name}: {name} needs Soperator {release}, and this is {self.operator_version}; "
                        "omit it"
                    )
        if not self.nodesets:
            raise SpecMistake("nodesets is empty: a cluster needs at least one node set")
        for what, names in (
            ("node sets", [one.name for one in self.nodesets]),
            ("partitions", [one.name for one in self.partitions]),
            ("submounts", [one.name for one in self.submounts]),
            ("submounts' paths", [one.mount_path for one in self.submounts]),
        ):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise SpecMistake(f"{what} must be unique, got {twice[0]} twice")

    def _check_partitions(self) -> None:
        known = [name for one in self.nodesets for name in one.slurm_names]
        if any(map(is_template, known)):
            return
        for partition in self.partitions:
            for name in partition.nodesets:
                if not is_template(name) and name not in known:
                    raise SpecMistake(
                        f"partition {partition.name}: there is no node set {name}: {name_remedy(name, known)}"
                    )

    @property
    def is_taken_down(self) -> bool:
        """True if it is in maintenance, with everything down."""
        return self.maintenance not in (None, *AT_WORK)

    @property
    def overwrites_jail(self) -> bool:
        """True if all that users have put into the jail is deleted."""
        return self.maintenance == OVERWRITING

    @property
    def partition_names(self) -> frozenset[str]:
        """Its partitions, with those that the recipe makes of node sets which say so."""
        own = (name for one in self.nodesets if one.extra.get("create_partition") for name in one.slurm_names)
        return frozenset((*(one.name for one in self.partitions), *own))

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*self.own_warnings, *(warning for one in self.nodesets for warning in one.warnings))

    @property
    def own_warnings(self) -> tuple[str, ...]:
        """Warnings that are not about machines."""
        hidden = (
            "no partition is hidden, and Soperator's checks run in the partition hidden: add "
            'PartitionSpec("hidden", config="Hidden=YES State=UP")'
        )
        unread = (
            "without accounting there is no slurmrestd, by which Soperator has Slurm read its changed files: new "
            "nodes may be unknown to Slurm until `scontrol reconfigure`"
        )
        lacks_hidden = self.partitions and all("hidden=yes" not in one.config.lower() for one in self.partitions)
        told = {hidden: lacks_hidden, unread: self.accounting is False}
        return tuple(warning for warning, holds in told.items() if holds)

    def write(self) -> dict[str, Any]:
        return fields.write(self)  # type: ignore[no-any-return]

    @classmethod
    def read(cls, said: Any) -> ClusterSpec:
        """A description from plain data, such as a YAML file; ``SpecMistake`` names the place of an error."""
        return fields.read(cls, said, "spec")


@dataclass(frozen=True)
class Recipe:
    """The published Terraform recipe, or your own recipe with the same variables.

        Recipe("/opt/recipes/nebius-solutions-library/soperator", subfolder="installations/research")
        Recipe("https://github.com/nebius/nebius-solutions-library.git", subfolder="soperator/installations/example",
               ref="soperator-v4.1.7-1")

    ``home`` has a folder for each cluster, which outlives tasks. ``workspace`` is the cluster's Terraform workspace,
    by default the cluster's name ("default" always exists). ``env`` has environment variables for the recipe, beside
    Nebius' credentials.
    """

    source: str
    subfolder: str = ""
    ref: str | None = None
    home: str | None = None
    workspace: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    #: A backend for the state instead of the recipe's, such as ``{"s3": {"bucket": "..."}}``.
    backend: Mapping[str, Any] | None = None
    #: The binary; by default Terraform or OpenTofu on PATH.
    terraform: str | None = None
    parallelism: int | None = None
    #: Programs that the recipe names and, with these variables, never calls: Airflow workers may be without them.
    unused_programs: Sequence[str] = ()
    #: Maximum wait for the lock of the state.
    lock_timeout: timedelta = timedelta(minutes=10)
    #: The recipe's name of the SlurmCluster, and its namespace.
    cluster: str = "soperator"
    namespace: str = NAMESPACE


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Properties of the Kubernetes cluster, to which the objects refer.

    ``overrides`` is merged into the objects, by kind ("SlurmCluster", "NodeSet") or by kind and name
    ("NodeSet/worker"), and takes precedence.
    """

    #: The registry of the images, and the Slurm version of their tags if it is not the default of the release.
    registry: str = "cr.eu-north1.nebius.cloud/soperator"
    slurm_version: str | None = None
    cuda_version: str = "12.9.0"
    jail_claim: str = "jail-pvc"
    spool_claim: str = "controller-spool-pvc"
    #: The label of machines whose value is the name of a node set, or "system".
    node_label: str = "slurm.nebius.ai/nodeset-name"
    service_node_set: str = "system"
    #: The ConfigMap with prolog, epilog and health checks; from 5.0 on the cluster's name is put in front of this
    #: name. None mounts none, and Slurm then has none of them.
    scripts: str | None = "slurm-scripts"
    #: The PriorityClass of the nodes' Pods, which must exist.
    priority_class: str | None = None
    #: Run Soperator's exporter, which needs ``rest`` and the kind PodMonitor; by default on in a new cluster with both
    #: accounting and ``rest``.
    exporter: bool | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KubernetesObjects:
    """Objects for Soperator's operator, applied to a Kubernetes cluster that already has the operator.

    ``force`` takes over fields that others manage, such as Helm.
    """

    kubernetes_conn_id: str = "kubernetes_default"
    namespace: str = NAMESPACE
    installation: Installation = field(default_factory=Installation)
    force: bool = False

    def __post_init__(self) -> None:
        check_parts(self)


@dataclass(frozen=True, kw_only=True)
class Connections:
    """The ids of Airflow connections to the cluster.

    With ``airflow_conn_id``, a connection of type ``http`` to Airflow's own API server, they are written. Without it
    they have to exist before anything is planned. Of a new login node only the address is known: give other extra
    fields of the connections, such as ``key_file`` and ``host_key``, in ``ssh_extra``, ``kubernetes_extra`` and
    ``slurm_extra``.
    """

    slurm: str | None = None
    kubernetes: str | None = None
    ssh: str | None = None
    airflow_conn_id: str | None = None
    ssh_login: str = "root"
    ssh_extra: Mapping[str, Any] = field(default_factory=dict)
    kubernetes_extra: Mapping[str, Any] = field(default_factory=dict)
    slurm_extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.airflow_conn_id and not self.ids:
            raise SpecMistake(
                "airflow_conn_id is for writing connections, but none is given: set slurm, kubernetes or ssh"
            )
        if self.airflow_conn_id and self.slurm and not (self.kubernetes or self.ssh):
            raise SpecMistake(
                f"the connection {self.slurm} to Slurm needs another one as transport: also set ssh or kubernetes"
            )

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.slurm, self.ssh, self.kubernetes)))


Source = Recipe | KubernetesObjects
