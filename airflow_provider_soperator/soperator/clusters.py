"""A SlurmCluster and its NodeSets, read from their objects, power states and Pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from airflow_provider_soperator.soperator.conditions import Condition, Object, conditions_of, last_changed
from airflow_provider_soperator.soperator.workloads import Keeper, Pod, last_scaled_by, writers_of

AVAILABLE = "Available"
#: Values of ``spec.maintenance`` with which everything runs.
AT_WORK = ("", "none", "skipPopulateJail")
#: The parts of a cluster, with words for them, in the order in which Soperator checks them. After the first part that
#: is not available, it does not update the conditions of the rest.
PARTS = {
    "CommonAvailable": "the common resources",
    "ControllersAvailable": "the Slurm controller",
    "LoginAvailable": "the login nodes",
    "AccountingAvailable": "accounting",
    "SConfigControllerAvailable": "the sconfigcontroller",
}
_FLUX = "helm.toolkit.fluxcd.io"
_HELM = "meta.helm.sh/release-name"
_FLUX_REMEDY = (
    "also set it in the recipe's slurm_nodeset_workers (size), or in nodesets.overrideValues.nodesets, with all "
    "NodeSets in full, of the ConfigMap soperator-fluxcd-values (key values.yaml) in flux-system"
)
_HELM_REMEDY = "also set it in the values of the release"
#: The cluster of a NodeSet; from 5.0 on it is in the spec.
CLUSTER_ANNOTATION = "slurm.nebius.ai/parental-cluster-ref"
#: Label of Pods with the name of their NodeSet.
NODESET_LABEL = "slurm.nebius.ai/nodeset"
#: The phase of a NodeSet while its cluster is in maintenance.
_TERMINATING = "Terminating"


@dataclass(frozen=True, kw_only=True)
class ClusterSeen:
    """A SlurmCluster."""

    name: str
    #: ``Pending``, ``Not available``, ``Available`` or, in old versions, ``Reconciling``; empty before the first look.
    phase: str = ""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    #: ``spec.maintenance``, if it takes anything down.
    maintenance: str = ""
    version: str = ""
    has_accounting: bool = False
    is_being_deleted: bool = False
    #: Time of the last change of the spec; None if unchanged since its creation.
    changed: datetime | None = None

    @classmethod
    def read(cls, said: Object) -> ClusterSeen:
        metadata, spec, status = said["metadata"], said.get("spec") or {}, said.get("status") or {}
        nodes, maintenance = spec.get("slurmNodes") or {}, str(spec.get("maintenance") or "")
        return cls(
            name=str(metadata["name"]),
            phase=str(status.get("phase") or ""),
            conditions=conditions_of(said),
            maintenance="" if maintenance in AT_WORK else maintenance,
            version=str(spec.get("crVersion") or ""),
            has_accounting=bool((nodes.get("accounting") or {}).get("enabled")),
            is_being_deleted="deletionTimestamp" in metadata,
            changed=last_changed(said),
        )

    @property
    def missing(self) -> tuple[Condition, ...]:
        """The required parts that are not available."""
        wanted = [part for part in PARTS if part != "AccountingAvailable" or self.has_accounting]
        known = [self.conditions[part] for part in wanted if part in self.conditions]
        return tuple(one for one in known if not one.is_true)

    @property
    def is_in_maintenance(self) -> bool:
        """True if its parts are down for maintenance, or not up again. Its phase may be Available meanwhile."""
        return bool(self.maintenance) or any(one.reason == "Maintenance" for one in self.missing)

    @property
    def is_available(self) -> bool:
        return self.phase == AVAILABLE and not self.missing and not self.is_in_maintenance

    @property
    def is_away(self) -> bool:
        """True if it was available and is down, but not for maintenance. Parts that never were up are Unknown."""
        is_set_up = all(part in self.conditions and self.conditions[part].status != "Unknown" for part in PARTS)
        return is_set_up and not self.is_available and not self.is_in_maintenance

    @property
    def away_since(self) -> datetime | None:
        """Time at which the first part went down; None if unknown."""
        return min((one.since for one in self.missing if one.since), default=None)


def keeper_of(thing: Object) -> Keeper | None:
    """Owner of an object by its labels and annotations, or else by the managers that have written its spec."""
    metadata = thing["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    # A manager that scales it owns the replicas; the others keep the rest of the spec.
    managers = {name.lower() for name, *_ in writers_of(thing)}
    flux, release = labels.get(f"{_FLUX}/name"), annotations.get(_HELM)
    if flux or "helm-controller" in managers:
        name = f"the HelmRelease {labels.get(f'{_FLUX}/namespace', 'flux-system')}/{flux}"
        return Keeper(name if flux else "a HelmRelease of Flux", _FLUX_REMEDY, is_helm=True)
    if release or "helm" in managers:
        return Keeper(f"the Helm release {release}" if release else "a Helm release", _HELM_REMEDY, is_helm=True)
    if any("terraform" in manager for manager in managers):
        return Keeper("Terraform", "also change it in the Terraform configuration")
    return None


@dataclass(frozen=True, kw_only=True)
class NodeSetSeen:
    """A NodeSet.

    For an ephemeral NodeSet, ``replicas`` is the number of node names, and ``active`` has the ordinals that should run.

    >>> said = {"metadata": {"name": "worker"}, "spec": {"replicas": 3, "ephemeralNodes": True}}
    >>> seen = NodeSetSeen.read(said, {"spec": {"activeNodes": [2, 0, 7]}}, {})
    >>> seen.nodes, seen.active_nodes
    (('worker-0', 'worker-1', 'worker-2'), ('worker-0', 'worker-2'))
    """

    name: str
    replicas: int = 1
    is_ephemeral: bool = False
    #: None if it has no power state, or none yet. One that was ephemeral before has kept it.
    active: tuple[int, ...] | None = None
    #: ``Pending``, ``Provisioning``, ``Ready`` or ``Terminating``; ``Configuring`` and ``Degraded`` are never used.
    phase: str = ""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    #: Pods by the names of their Slurm nodes.
    pods: Mapping[str, Pod] = field(default_factory=dict)
    is_being_deleted: bool = False
    #: The owner that resets changes by others.
    keeper: Keeper | None = None
    #: The field manager that has set the number of nodes; empty if it is not known.
    scaled_by: str = ""
    #: The resource version; a change with another version is rejected.
    version: str = ""

    @classmethod
    def read(cls, said: Object, power_state: Object | None, pods: Mapping[str, Pod]) -> NodeSetSeen:
        metadata, spec, status = said["metadata"], said.get("spec") or {}, said.get("status") or {}
        is_ephemeral, replicas = bool(spec.get("ephemeralNodes")), spec.get("replicas")
        running = (power_state.get("spec") or {}).get("activeNodes") or () if power_state else None
        return cls(
            name=str(metadata["name"]),
            replicas=1 if replicas is None else int(replicas),
            is_ephemeral=is_ephemeral,
            active=None if running is None else tuple(map(int, running)),
            phase=str(status.get("phase") or ""),
            conditions=conditions_of(said),
            pods=pods,
            is_being_deleted="deletionTimestamp" in metadata,
            keeper=keeper_of(said),
            scaled_by=last_scaled_by(said, but=""),
            version=str(metadata.get("resourceVersion") or ""),
        )

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return self.names(range(self.replicas))

    @cached_property
    def active_nodes(self) -> tuple[str, ...]:
        """Names of the nodes that should run."""
        if not self.is_ephemeral:
            return self.nodes
        # The power manager does not check that such a node exists.
        return self.names(ordinal for ordinal in sorted(self.active or ()) if ordinal < self.replicas)

    def names(self, ordinals: Iterable[int]) -> tuple[str, ...]:
        return tuple(f"{self.name}-{ordinal}" for ordinal in ordinals)

    @property
    def is_in_maintenance(self) -> bool:
        """True if its Pods are gone for maintenance of the cluster: this is the meaning of Terminating."""
        terminated = self.conditions.get("StatefulSetTerminated")
        return self.phase == _TERMINATING or bool(terminated and terminated.is_true)


def cluster_of(nodeset: Object) -> str:
    annotations = nodeset["metadata"].get("annotations") or {}
    return str((nodeset.get("spec") or {}).get("clusterName") or annotations.get(CLUSTER_ANNOTATION) or "")


@dataclass(frozen=True)
class ClusterSnapshot:
    """A SlurmCluster and its NodeSets."""

    cluster: ClusterSeen
    nodesets: tuple[NodeSetSeen, ...] = ()

    def describe(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster.name,
            "version": self.cluster.version,
            "nodesets": {
                one.name: {"replicas": one.replicas, "ephemeral": one.is_ephemeral, "nodes": list(one.active_nodes)}
                for one in self.nodesets
            },
        }
