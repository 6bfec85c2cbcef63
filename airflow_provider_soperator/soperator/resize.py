"""Commands and waits that resize a NodeSet, decided from the present state in Kubernetes and Slurm.

Nothing is remembered between two steps, so another process can continue at any time. The nodes with the highest
ordinals go; Soperator offers no choice. It does not check for jobs, so the nodes are drained first; also those of an
ephemeral NodeSet that are off, because a job could power one up at the last moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import DrainReason, is_ours
from airflow_provider_soperator.slurm.node_orders import NodeMove, drained
from airflow_provider_soperator.slurm.requests import Undrain
from airflow_provider_soperator.slurm.states import NodeBase, NodeFlag
from airflow_provider_soperator.soperator.clusters import NodeSetSeen
from airflow_provider_soperator.soperator.readiness import of_nodes

MODES = ("asap", "force")


@dataclass(frozen=True, kw_only=True)
class Resize:
    """Desired number of nodes of a NodeSet. Its fields are plain JSON types."""

    nodeset: str
    replicas: int
    #: ``asap``: nodes go once their jobs have ended. ``force``: the jobs are requeued at once.
    mode: str = "asap"
    #: Whose drains these are, and whose are undone.
    owner: str
    why: str = ""

    @property
    def reason(self) -> DrainReason:
        return DrainReason(self.owner, self.why or f"resizing NodeSet {self.nodeset} to {self.replicas} nodes")

    def drained_for_it(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """The nodes that this resize, or another one, has drained; those that the owner keeps off stay so."""
        mine = (str(self.reason), str(DrainReason(self.owner, f"resizing NodeSet {self.nodeset} to ")))
        ours = [node for node in nodes if is_ours(node, self.owner)]
        kept = {node.name for node in ours if (node.is_off or node.is_going_off) and not node.reason.startswith(mine)}
        return tuple(node.name for node in ours if node.name not in kept)

    def leaving(self, nodeset: NodeSetSeen) -> tuple[str, ...]:
        """The nodes that go: those with the highest ordinals."""
        return nodeset.names(range(self.replicas, nodeset.replicas))

    def obstacle(self, nodeset: NodeSetSeen, *, asks_slurm: bool) -> str:
        """Why the NodeSet cannot have this size at present, and what to do first; empty if it can."""
        if nodeset.is_being_deleted:
            return f"NodeSet {nodeset.name} is being deleted"
        if nodeset.is_in_maintenance:
            return f"the cluster of NodeSet {nodeset.name} is in maintenance: wait until it ends"
        leaving = self.leaving(nodeset)
        if on := [name for name in nodeset.active_nodes if nodeset.is_ephemeral and name in leaving]:
            least = nodeset.nodes.index(on[-1]) + 1
            return (
                f"{hostlist.fold(on)} of the ephemeral NodeSet {nodeset.name} are on: power them down first "
                f"(PowerDownNodesOperator with stay_down=True), or ask for {least} or more nodes"
            )
        if leaving and not asks_slurm and not nodeset.is_ephemeral and self.mode != "force":
            return (
                f"without slurm_conn_id, jobs on {hostlist.fold(leaving)} cannot be seen: set slurm_conn_id, or "
                "mode='force' to lose them"
            )
        return ""

    def prepare(self, nodeset: NodeSetSeen, slurm: Mapping[str, Node] | None) -> NodeMove:
        """The move before the resize: drain the nodes that go, and wait for their jobs."""
        nodes = known(self.leaving(nodeset), slurm)
        move = drained(nodes, self.reason, wait_for_jobs=True, ends_jobs=self.mode == "force")
        on = [node.name for node in nodes if nodeset.is_ephemeral and node.is_drained and not node.is_off]
        return replace(move, waiting={**move.waiting, **dict.fromkeys(on, "is not off yet")})

    def finish(self, nodeset: NodeSetSeen, slurm: Mapping[str, Node] | None, since: datetime) -> NodeMove:
        """The move after the resize: removed nodes are gone from Kubernetes and Slurm, the others accept jobs."""
        waiting = {name: "still has a Pod" for name in nodeset.pods if name not in nodeset.nodes}
        # Another NodeSet's name may begin with its name.
        own = re.compile(rf"{re.escape(nodeset.name)}-[0-9]+")
        beyond = [name for name in slurm or () if own.fullmatch(name) and name not in nodeset.nodes]
        waiting |= dict.fromkeys(beyond, "is still in Slurm")
        ours = self.drained_for_it(known(nodeset.nodes, slurm))
        left = {*ours, *self.passed_over(nodeset, slurm, since)}
        found = of_nodes([name for name in nodeset.active_nodes if name not in left], nodeset.pods, slurm)
        waiting |= found.waiting
        if slurm is not None:
            # Those of an ephemeral NodeSet are in Slurm also while they are off.
            off = sorted({*nodeset.nodes} - {*nodeset.active_nodes, *slurm})
            waiting |= dict.fromkeys(off, "is not known to Slurm yet")
        waiting |= dict.fromkeys(ours, "is being undrained")
        return NodeMove((Undrain(ours),) if ours else (), waiting=waiting, lost=found.lost)

    def passed_over(self, nodeset: NodeSetSeen, slurm: Mapping[str, Node] | None, since: datetime) -> tuple[str, ...]:
        """Nodes that were out of service before this time; they are left alone, and not waited for."""
        return tuple(sorted(node.name for node in known(nodeset.nodes, slurm) if _was_wrong(node, since)))


def known(names: Iterable[str], slurm: Mapping[str, Node] | None) -> list[Node]:
    """The nodes that Slurm has, of these."""
    return [slurm[name] for name in names if name in slurm] if slurm else []


def _was_wrong(node: Node, since: datetime) -> bool:
    is_out = node.state.base is NodeBase.DOWN or node.state.has(NodeFlag.DRAIN, NodeFlag.FAIL)
    return is_out and not node.is_usable and node.reason_since is not None and node.reason_since < since
