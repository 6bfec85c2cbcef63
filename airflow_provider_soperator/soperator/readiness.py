"""Rules for the readiness of a cluster, from its objects, its Pods and its Slurm; for Soperator 3 to 5.

The status of the objects is not enough, in any version up to 5.0:

- A SlurmCluster in maintenance has the phase Available, with all its parts down.
- Its conditions are computed in order, up to the first part that is not available; those after it are outdated.
- ``observedGeneration`` is never set. After a change of the spec, only a condition that changes later proves that
  Soperator has seen it; if no condition has to change, none will: then some time has to pass.
- So after an apply what was asked for is compared itself: the release of the cluster and of its Pods, the number of
  nodes, and their GPUs in Slurm. Whoever applies it may do so minutes later (Flux), and Pods are replaced after that.
- Up to 4.1 an ephemeral NodeSet is Provisioning unless all its nodes are on, and its power state is always Ready. So
  the readiness of NodeSets is taken from their Pods, and from Slurm's nodes if a connection is given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import in_lines
from airflow_provider_soperator.slurm.node_orders import NodeMove, NodeStep, held, move_of
from airflow_provider_soperator.slurm.states import NodeBase, NodeFlag
from airflow_provider_soperator.soperator.clusters import AVAILABLE, PARTS, ClusterSeen, ClusterSnapshot, NodeSetSeen
from airflow_provider_soperator.soperator.conditions import newest
from airflow_provider_soperator.soperator.workloads import Pod

#: Time after a change in which the status may be outdated. Soperator is notified of changes at once, and checks one
#: cluster within moments.
SETTLES = timedelta(seconds=30)


@dataclass(frozen=True)
class Readiness:
    """Parts that are not ready, in lines for people."""

    #: Parts that may become ready by themselves.
    waiting: tuple[str, ...] = ()
    #: Parts that need a repair.
    broken: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        return not self.waiting and not self.broken

    def __str__(self) -> str:
        return "; ".join((*self.broken, *self.waiting)) or "ready"


@dataclass(frozen=True)
class Wanted:
    """What a cluster becomes by a change: its release, and by NodeSet the number of nodes, and of GPUs of each."""

    version: str = ""
    replicas: Mapping[str, int] = field(default_factory=dict)
    gpus: Mapping[str, int] = field(default_factory=dict)
    #: The change was made. If there was none to make, another number of nodes stays as it is.
    is_changed: bool = True


#: Any release, number and hardware will do.
ANY = Wanted()


def of_all(
    seen: ClusterSnapshot,
    now: datetime,
    *,
    nodesets: Collection[str] = (),
    slurm: Mapping[str, Node] | None = None,
    may_come: bool = False,
    wanted: Wanted = ANY,
) -> Readiness:
    """Readiness of a cluster with all or some NodeSets; with ``slurm``, each node that should run must accept jobs.

    ``may_come``: a missing NodeSet may still be created, even if the cluster is already available.
    """
    cluster = of_cluster(seen.cluster, now)
    if seen.cluster.is_in_maintenance:
        return cluster
    chosen = [one for one in seen.nodesets if not nodesets or one.name in nodesets]
    parts = [cluster, *_not_changed(seen.cluster, chosen, wanted)]
    parts += [of_nodeset(one, slurm, wanted) for one in chosen]
    known = [one.name for one in seen.nodesets]
    parts += [_missing(name, seen, may_come) for name in nodesets if name not in known]
    if not known:
        parts.append(Readiness((f"SlurmCluster {seen.cluster.name} has no NodeSets yet",)))
    return Readiness(
        tuple(dict.fromkeys(line for one in parts for line in one.waiting)),
        tuple(dict.fromkeys(line for one in parts for line in one.broken)),
    )


def _not_changed(cluster: ClusterSeen, nodesets: Iterable[NodeSetSeen], wanted: Wanted) -> Iterator[Readiness]:
    if wanted.version and cluster.version != wanted.version:
        was = cluster.version or "unknown"
        yield Readiness((f"SlurmCluster {cluster.name} is of release {was}, not of {wanted.version} yet",))
    for one in nodesets:
        size = wanted.replicas.get(one.name, one.replicas)
        line = f"NodeSet {one.name} has {one.replicas} nodes, not {size}"
        if size != one.replicas and wanted.is_changed:
            yield Readiness((f"{line} yet",))
        elif size != one.replicas:
            how = f"as {one.scaled_by or 'another client'} has set it, and no change is planned"
            remedy = f"set size in the spec, or scale the NodeSet to {size} by what it was scaled by"
            yield Readiness(broken=(f"{line}, {how}: {remedy}",))


def of_cluster(cluster: ClusterSeen, now: datetime) -> Readiness:
    """Readiness of the cluster without its NodeSets."""
    name = f"SlurmCluster {cluster.name}"
    if cluster.is_being_deleted:
        return Readiness(broken=(f"{name} is being deleted",))
    if cluster.maintenance:
        return Readiness((f"{name} is in maintenance: spec.maintenance is {cluster.maintenance}",))
    if cluster.is_in_maintenance:
        return Readiness((f"{name} is starting after maintenance",))
    return Readiness(tuple(f"{name} {what}" for what in _unready(cluster, now)))


def _unready(cluster: ClusterSeen, now: datetime) -> Iterator[str]:
    if cluster.missing:
        first = cluster.missing[0]
        if first.is_false:
            yield f"is not available: {PARTS[first.type]} ({first.message or first.reason})"
        else:
            yield f"is being set up: the state of {PARTS[first.type]} is not known yet"
    elif cluster.phase != AVAILABLE:
        yield f"is {cluster.phase or 'not known to Soperator yet'}"
    elif _may_be_old(cluster, now):
        yield f"was changed at {cluster.changed:%H:%M:%S} UTC, which Soperator may not have seen yet"
    refs = cluster.conditions.get("NodeSetRefsResolved")
    if refs and refs.is_false:
        # NodeSets may be created after their cluster.
        yield f"has partitions with NodeSets that it does not have ({refs.message or refs.reason})"


def _may_be_old(cluster: ClusterSeen, now: datetime) -> bool:
    if cluster.changed is None or now - cluster.changed >= SETTLES:
        return False
    moved = newest(one.since for one in cluster.conditions.values())
    # Kubernetes counts in seconds: what moved in the same one may have moved before.
    return moved is None or moved <= cluster.changed


def of_nodeset(nodeset: NodeSetSeen, slurm: Mapping[str, Node] | None = None, wanted: Wanted = ANY) -> Readiness:
    """Readiness of a NodeSet: each node that should run has a ready Pod, and with ``slurm`` accepts jobs."""
    name = f"NodeSet {nodeset.name}"
    if nodeset.is_being_deleted:
        return Readiness(broken=(f"{name} is being deleted",))
    if nodeset.is_in_maintenance:
        return Readiness((f"{name} has no Pods while its cluster is in maintenance",))
    if nodeset.is_ephemeral and nodeset.active is None:
        return Readiness((f"{name} has no power state yet",))
    found = of_nodes(nodeset.active_nodes, nodeset.pods, slurm, wanted)
    return Readiness(in_lines(found.waiting), in_lines(found.lost))


def of_nodes(
    names: Iterable[str], pods: Mapping[str, Pod], slurm: Mapping[str, Node] | None, wanted: Wanted = ANY
) -> NodeMove:
    """What each node waits for, or why it cannot become ready."""
    return move_of({name: _node(name, pods.get(name), slurm, wanted) for name in names})


def _node(name: str, pod: Pod | None, slurm: Mapping[str, Node] | None, wanted: Wanted) -> NodeStep:
    if pod is None:
        return NodeStep(waits="has no Pod yet")
    if pod.is_leaving:
        return NodeStep(waits="has a Pod that is being deleted")
    if wanted.version and pod.release not in ("", wanted.version):
        return NodeStep(waits=f"has a Pod of release {pod.release}, not of {wanted.version} yet")
    if not pod.is_ready:
        why = f" ({'; '.join(pod.problems)})" if pod.problems else ""
        return NodeStep(waits=f"has a Pod that is not ready{why}")
    if slurm is None:
        return NodeStep()
    if name not in slurm:
        return NodeStep(waits="is not known to Slurm yet")
    if slurm[name].gpus < (gpus := wanted.gpus.get(name.rpartition("-")[0], 0)):
        return NodeStep(waits=f"has {slurm[name].gpus} of {gpus} GPUs in Slurm")
    return _in_slurm(slurm[name])


def _in_slurm(node: Node) -> NodeStep:
    if node.is_usable:
        return NodeStep()
    if node.is_coming_up:
        return NodeStep(waits="boots")
    if node.is_off or node.is_going_off:
        return NodeStep(waits="is off or powering down in Slurm, but its Pod runs")
    if node.state.has(NodeFlag.DRAIN):
        return held(node, "is drained")
    if node.state.base is NodeBase.DOWN and not node.reason:
        # This is its state until slurmd has registered for the first time.
        return NodeStep(waits=f"is {node.state}")
    if node.state.base is NodeBase.DOWN or node.state.has(NodeFlag.FAIL, NodeFlag.INVALID_REG):
        return held(node, f"is {node.state}")
    return NodeStep(waits=f"is {node.state}")


def _missing(name: str, seen: ClusterSnapshot, may_come: bool) -> Readiness:
    line = f"there is no NodeSet {name}"
    if seen.nodesets and seen.cluster.is_available and not may_come:
        # The NodeSets of a cluster are created together.
        return Readiness(broken=(f"{line}: {name_remedy(name, (one.name for one in seen.nodesets))}",))
    return Readiness((f"{line} yet",))
