"""A NodeSet as its object, its power state and its Pods describe it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_soperator.soperator.conditions import Condition, Object, conditions_of
from airflow_provider_soperator.soperator.keepers import Keeper, keeper_of

#: Which cluster a NodeSet belongs to; from 5.0 on its spec says it.
_CLUSTER_ANNOTATION = "slurm.nebius.ai/parental-cluster-ref"
#: Has the NodeSet's name on its Pods.
NODESET_LABEL = "slurm.nebius.ai/nodeset"
#: What the NodeSet is called in its phase and conditions while its cluster is in maintenance.
_TERMINATING = "Terminating"


@dataclass(frozen=True)
class PodSeen:
    """The Pod of a Slurm node, which has the same name."""

    name: str
    is_ready: bool = False
    is_leaving: bool = False
    #: The Node that it is on, whose name is the machine's; empty while it is on none.
    machine: str = ""
    #: What keeps it from running, in Kubernetes' words.
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeSetSeen:
    """A NodeSet.

    Of an ephemeral one ``replicas`` is how many node names there are, and ``active`` has the ordinals that are to run.

    >>> said = {"metadata": {"name": "worker"}, "spec": {"replicas": 3, "ephemeralNodes": True}}
    >>> seen = NodeSetSeen.read(said, {"spec": {"activeNodes": [2, 0, 7]}}, [])
    >>> seen.nodes, seen.active_nodes
    (('worker-0', 'worker-1', 'worker-2'), ('worker-0', 'worker-2'))
    """

    name: str
    #: The SlurmCluster's name; empty if it does not say.
    cluster: str = ""
    replicas: int = 1
    is_ephemeral: bool = False
    #: None while an ephemeral NodeSet has no power state yet.
    active: tuple[int, ...] | None = None
    #: ``Pending``, ``Provisioning``, ``Ready`` or ``Terminating``; ``Configuring`` and ``Degraded`` exist by name.
    phase: str = ""
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    #: By the names of their Slurm nodes.
    pods: Mapping[str, PodSeen] = field(default_factory=dict)
    is_being_deleted: bool = False
    #: Who sets it back if others change it.
    keeper: Keeper | None = None
    #: What it is changed under: a change of another version is refused.
    version: str = ""

    @classmethod
    def read(cls, said: Object, power_state: Object | None, pods: Iterable[PodSeen]) -> NodeSetSeen:
        metadata, spec, status = said["metadata"], said.get("spec") or {}, said.get("status") or {}
        replicas = spec.get("replicas")
        return cls(
            name=str(metadata["name"]),
            cluster=cluster_of(said),
            replicas=1 if replicas is None else int(replicas),
            is_ephemeral=bool(spec.get("ephemeralNodes")),
            active=_active(power_state) if spec.get("ephemeralNodes") and power_state else None,
            phase=str(status.get("phase") or ""),
            conditions=conditions_of(said),
            pods={pod.name: pod for pod in pods},
            is_being_deleted="deletionTimestamp" in metadata,
            keeper=keeper_of(said),
            version=str(metadata.get("resourceVersion") or ""),
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        """All names that Slurm has of it."""
        return self.names(range(self.replicas))

    @property
    def active_nodes(self) -> tuple[str, ...]:
        """Those that are to run."""
        if not self.is_ephemeral:
            return self.nodes
        # The power manager does not look whether there is such a node.
        return self.names(ordinal for ordinal in sorted(self.active or ()) if ordinal < self.replicas)

    def names(self, ordinals: Iterable[int]) -> tuple[str, ...]:
        return tuple(f"{self.name}-{ordinal}" for ordinal in ordinals)

    @property
    def is_in_maintenance(self) -> bool:
        """Its Pods are gone because its cluster is in maintenance: that is what Terminating means."""
        terminated = self.conditions.get("StatefulSetTerminated")
        return self.phase == _TERMINATING or bool(terminated and terminated.is_true)


def cluster_of(nodeset: Object) -> str:
    annotations = nodeset["metadata"].get("annotations") or {}
    return str((nodeset.get("spec") or {}).get("clusterName") or annotations.get(_CLUSTER_ANNOTATION) or "")


def _active(power_state: Object) -> tuple[int, ...]:
    return tuple(map(int, (power_state.get("spec") or {}).get("activeNodes") or ()))
