"""The rules by which a cluster is ready, as far as its objects, its Pods and its Slurm prove it; for Soperator 3 to 5.

What the objects say of themselves is not enough, in any version up to 5.0:

- A SlurmCluster in maintenance has the phase Available, with all its parts down.
- Its conditions are computed one after the other, up to the first part that is not available; those behind it are old.
- ``observedGeneration`` is never set. After a change of the spec only a condition that has changed later proves that
  Soperator has looked since, and if nothing is to change, none will: then some time has to pass.
- Up to 4.1 an ephemeral NodeSet is Provisioning unless all its node names are on, and its power state is always Ready.
  So of NodeSets the Pods are looked at, and Slurm's nodes where it can be asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import in_lines, is_coming_up, is_going_off, is_off, is_usable
from airflow_provider_soperator.slurm.node_orders import NodeStep, held
from airflow_provider_soperator.slurm.states import NodeBase, NodeFlag
from airflow_provider_soperator.soperator.clusters import AVAILABLE, ClusterSeen, ClusterSnapshot, NodeSetSeen, PodSeen
from airflow_provider_soperator.soperator.conditions import newest

#: How long after a change a status that has not moved may be the one from before it. Soperator is told of changes at
#: once, and looks at one cluster in a moment.
SETTLES = timedelta(seconds=30)
#: The parts of a cluster as people call them.
_PARTS = {
    "CommonAvailable": "what its parts have in common",
    "ControllersAvailable": "the Slurm controller",
    "LoginAvailable": "the login nodes",
    "AccountingAvailable": "accounting",
    "SConfigControllerAvailable": "the controller of Slurm's configuration",
}


@dataclass(frozen=True)
class Readiness:
    """Parts that are not ready yet, in lines for people."""

    #: What may come by itself, or by what others have under way.
    waiting: tuple[str, ...] = ()
    #: What stays as it is until it is mended.
    broken: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        return not self.waiting and not self.broken

    def __str__(self) -> str:
        return "; ".join((*self.broken, *self.waiting)) or "ready"


READY = Readiness()


def of_all(
    seen: ClusterSnapshot,
    now: datetime,
    *,
    nodesets: Collection[str] = (),
    slurm: Mapping[str, Node] | None = None,
    may_come: bool = False,
) -> Readiness:
    """A cluster with its NodeSets, all or those named; with ``slurm`` jobs can start on each node that is to run.

    ``may_come``: a NodeSet that is not there may be under way, also to a cluster that is available.
    """
    cluster = of_cluster(seen.cluster, now)
    if seen.cluster.is_in_maintenance:
        return cluster
    found = {one.name: one for one in seen.nodesets}
    parts = [of_nodeset(one, slurm) for one in seen.nodesets if not nodesets or one.name in nodesets]
    missing = [name for name in nodesets if name not in found]
    return _joined([cluster, *parts, *(_missing(name, seen, may_come) for name in missing), _any(seen)])


def of_cluster(cluster: ClusterSeen, now: datetime) -> Readiness:
    """The cluster but for its NodeSets."""
    name = f"SlurmCluster {cluster.name}"
    if cluster.is_being_deleted:
        return Readiness(broken=(f"{name} is being deleted",))
    if cluster.maintenance:
        return Readiness((f"{name} is in maintenance until its spec.maintenance, {cluster.maintenance}, is none",))
    if cluster.is_in_maintenance:
        return Readiness((f"{name} comes back from maintenance",))
    return Readiness(tuple(f"{name} {what}" for what in _unready(cluster, now)))


def _unready(cluster: ClusterSeen, now: datetime) -> Iterator[str]:
    if cluster.missing:
        first = cluster.missing[0]
        if first.is_false:
            yield f"is not available: {_PARTS[first.type]} ({first.message or first.reason})"
        else:
            yield f"is being set up: nothing is known of {_PARTS[first.type]} yet"
    elif cluster.phase != AVAILABLE:
        yield f"is {cluster.phase or 'not known to Soperator yet'}"
    elif _may_be_old(cluster, now):
        yield f"was changed at {cluster.changed:%H:%M:%S} UTC, and Soperator may not have seen that yet"
    refs = cluster.conditions.get("NodeSetRefsResolved")
    if refs and refs.is_false:
        # NodeSets may come after the cluster that is to have them.
        yield f"has partitions with NodeSets that it does not have ({refs.message or refs.reason})"


def _may_be_old(cluster: ClusterSeen, now: datetime) -> bool:
    if cluster.changed is None or now - cluster.changed >= SETTLES:
        return False
    moved = newest(one.since for one in cluster.conditions.values())
    # Kubernetes counts in seconds: what moved in the same one may have moved before.
    return moved is None or moved <= cluster.changed


def of_nodeset(nodeset: NodeSetSeen, slurm: Mapping[str, Node] | None = None) -> Readiness:
    """Every node that is to run has a Pod that is ready, and if ``slurm`` has all nodes, jobs can start on it."""
    name = f"NodeSet {nodeset.name}"
    if nodeset.is_being_deleted:
        return Readiness(broken=(f"{name} is being deleted",))
    if nodeset.is_in_maintenance:
        return Readiness((f"{name} has no Pods while its cluster is in maintenance",))
    if nodeset.is_ephemeral and nodeset.active is None:
        return Readiness((f"{name} has no power state yet",))
    return of_nodes(nodeset.active_nodes, nodeset.pods, slurm)


def of_nodes(names: Iterable[str], pods: Mapping[str, PodSeen], slurm: Mapping[str, Node] | None) -> Readiness:
    """Readiness of nodes that are to run."""
    steps = {name: _node(name, pods.get(name), slurm) for name in names}
    return Readiness(
        in_lines({name: step.waits for name, step in steps.items() if step.waits}),
        in_lines({name: step.lost for name, step in steps.items() if step.lost}),
    )


def _node(name: str, pod: PodSeen | None, slurm: Mapping[str, Node] | None) -> NodeStep:
    if pod is None:
        return NodeStep(waits="has no Pod yet")
    if pod.is_leaving:
        return NodeStep(waits="has a Pod that is being deleted")
    if not pod.is_ready:
        why = f" ({'; '.join(pod.problems)})" if pod.problems else ""
        return NodeStep(waits=f"has a Pod that is not ready{why}")
    if slurm is None:
        return NodeStep()
    return _in_slurm(slurm[name]) if name in slurm else NodeStep(waits="is not known to Slurm yet")


def _in_slurm(node: Node) -> NodeStep:
    if is_usable(node):
        return NodeStep()
    if is_coming_up(node):
        return NodeStep(waits="boots")
    if is_off(node) or is_going_off(node):
        return NodeStep(waits="is off to Slurm, or about to be, and its Pod runs")
    if node.state.has(NodeFlag.DRAIN):
        return held(node, "is drained")
    if node.state.base is NodeBase.DOWN and not node.reason:
        # As it is until its slurmd has registered for the first time.
        return NodeStep(waits=f"is {node.state}")
    if node.state.base is NodeBase.DOWN or node.state.has(NodeFlag.FAIL, NodeFlag.INVALID_REG):
        return held(node, f"is {node.state}")
    return NodeStep(waits=f"is {node.state}")


def _missing(name: str, seen: ClusterSnapshot, may_come: bool) -> Readiness:
    line = f"there is no NodeSet {name}"
    if seen.nodesets and seen.cluster.is_available and not may_come:
        # All of a cluster are made together.
        return Readiness(broken=(f"{line}, but {', '.join(one.name for one in seen.nodesets)}",))
    return Readiness((f"{line} yet",))


def _any(seen: ClusterSnapshot) -> Readiness:
    return READY if seen.nodesets else Readiness((f"SlurmCluster {seen.cluster.name} has no NodeSets yet",))


def _joined(parts: Iterable[Readiness]) -> Readiness:
    found = list(parts)
    return Readiness(
        tuple(dict.fromkeys(line for one in found for line in one.waiting)),
        tuple(dict.fromkeys(line for one in found for line in one.broken)),
    )
