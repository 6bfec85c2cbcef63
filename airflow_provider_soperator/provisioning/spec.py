"""Description of a whole cluster, as it is to be, and of the way by which it is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow_provider_soperator.provisioning import fields
from airflow_provider_soperator.provisioning.fields import (
    SpecMistake,
    Switch,
    check_key,
    check_name,
    check_version,
    near,
)
from airflow_provider_soperator.provisioning.parts import Filesystem, NodeSet, PartitionSpec, ServiceNodes, Submount
from airflow_provider_soperator.soperator.clusters import AT_WORK
from airflow_provider_soperator.values import is_template

MAINTENANCE = (
    "none", "downscale", "downscaleAndDeletePopulateJail", "downscaleAndOverwritePopulateJail", "skipPopulateJail",
)  # fmt: skip
ACTIVE_CHECKS = ("dev", "testing", "prod_quick", "prod_acceptance", "essential")
#: What ids of Nebius begin with.
_IDS = {"tenant": "tenant-", "project": "project-", "subnet": "vpcsubnet-"}
#: What the recipe calls the SlurmCluster and its namespace, whatever the cluster is called.
SOPERATOR = "soperator"


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """A Soperator cluster.

        ClusterSpec(
            name="research",
            operator_version="4.1.7",
            nodesets=(NodeSet("worker", 2, platform="gpu-h100-sxm", preset="8gpu-128vcpu-1600gb"),),
            login_keys=("ssh-ed25519 AAAAC3…",),
        )

    What is not said is left to the recipe, or to the cluster as it is. Each value may be a template. ``extra`` has
    further variables of the recipe, by the names that they have there.
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
    #: Of all node sets, each with all of them, unless they are named.
    partitions: tuple[PartitionSpec, ...] = ()
    jail: Filesystem | None = None
    submounts: tuple[Submount, ...] = ()
    controller_spool: Filesystem | None = None
    accounting_filesystem: Filesystem | None = None
    #: Whether the login nodes have an address that can be reached from anywhere.
    public_login: Switch | None = None
    accounting: Switch | None = None
    rest: Switch | None = None
    maintenance: str | None = None
    active_checks_scope: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("cluster", self.name, 32)
        check_version(self.operator_version)
        for key in self.login_keys:
            check_key(key)
        if not self.login_keys:
            raise SpecMistake("login_keys is empty: nobody could log in; put a public key there")
        for name, beginning in _IDS.items():
            said = getattr(self, name)
            if said and not is_template(said) and not said.startswith(beginning):
                raise SpecMistake(f"{name} is {said!r}, but its id begins with {beginning}")
        for name, known in (("maintenance", MAINTENANCE), ("active_checks_scope", ACTIVE_CHECKS)):
            said = getattr(self, name)
            if said is not None and not is_template(said) and said not in known:
                raise SpecMistake(f"{name} is {said!r}{near(said, known)}")
        if self.rest is True and self.accounting in (None, False):
            raise SpecMistake(
                "rest is on and accounting is not: slurmrestd is not started without it; set accounting=True as well"
            )
        self._check_nodesets()
        self._check_partitions()

    def _check_nodesets(self) -> None:
        if not self.nodesets:
            raise SpecMistake("nodesets is empty: a cluster has at least one set of workers")
        for what, names in (
            ("node sets", [one.name for one in self.nodesets]),
            ("partitions", [one.name for one in self.partitions]),
            ("submounts", [one.name for one in self.submounts]),
            ("submounts' paths", [one.mount_path for one in self.submounts]),
        ):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise SpecMistake(f"two {what} are called {twice[0]}: give each a name of its own")

    def _check_partitions(self) -> None:
        known = [name for one in self.nodesets for name in one.slurm_names]
        if any(map(is_template, known)):
            return
        for partition in self.partitions:
            for name in partition.nodesets:
                if not is_template(name) and name not in known:
                    raise SpecMistake(f"partition {partition.name}: there is no node set {name}{near(name, known)}")

    @property
    def is_taken_down(self) -> bool:
        """True if it is in maintenance, with nothing running."""
        return self.maintenance not in (None, *AT_WORK)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of combinations that are allowed, and mostly not meant."""
        return tuple(warning for one in self.nodesets for warning in one.warnings)

    def write(self) -> dict[str, Any]:
        """As plain data, without what was left unsaid."""
        return fields.write(self)  # type: ignore[no-any-return]

    @classmethod
    def read(cls, said: Any) -> ClusterSpec:
        """From plain data, such as a YAML file; ``SpecMistake`` says what is wrong, and where."""
        return fields.read(cls, said, "spec")


@dataclass(frozen=True)
class Recipe:
    """The published Terraform recipe, or one of your own with the same variables.

        Recipe("/opt/recipes/nebius-solutions-library/soperator", subfolder="installations/research")
        Recipe("https://github.com/nebius/nebius-solutions-library.git", subfolder="soperator/installations/example",
               ref="soperator-v4.1.7-1")

    ``home`` is where each cluster has a folder of its own that outlives tasks, ``workspace`` Terraform's workspace of
    the cluster, which has its name unless another is given ("default" is the one that is always there), ``env`` what
    the recipe wants of the environment beside Nebius' credentials.
    """

    source: str
    subfolder: str = ""
    ref: str | None = None
    home: str | None = None
    workspace: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    #: A backend for the state in place of the recipe's, such as ``{"s3": {"bucket": "..."}}``.
    backend: Mapping[str, Any] | None = None
    #: The program; Terraform or OpenTofu of the PATH if it is not set.
    terraform: str | None = None
    parallelism: int | None = None
    #: Longest wait for another's lock on the state.
    lock_timeout: timedelta = timedelta(minutes=10)
    #: What the recipe calls the SlurmCluster, and where it puts it.
    cluster: str = SOPERATOR
    namespace: str = SOPERATOR


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Names that the objects need of the Kubernetes cluster that they are made in.

    ``overrides`` has what else is to be in them, by kind ("SlurmCluster", "NodeSet") or by kind and name
    ("NodeSet/worker"); where both say something, it wins.
    """

    #: Where the images are, and the Slurm that they are tagged with, if it is not the one of Soperator's release.
    registry: str = "cr.eu-north1.nebius.cloud/soperator"
    slurm_version: str | None = None
    cuda_version: str = "12.9.0"
    jail_claim: str = "jail-pvc"
    spool_claim: str = "controller-spool-pvc"
    #: The label by which machines are found: its value is the name of a node set, or "system".
    node_label: str = "slurm.nebius.ai/nodeset-name"
    service_node_set: str = "system"
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KubernetesObjects:
    """The objects of Soperator's operator, applied to a Kubernetes cluster that has the operator already.

    ``force`` takes over fields that others rule over, such as Helm.
    """

    kubernetes_conn_id: str = "kubernetes_default"
    namespace: str = SOPERATOR
    installation: Installation = field(default_factory=Installation)
    force: bool = False


Source = Recipe | KubernetesObjects
