"""Replacement of the machine under a node: Soperator does it once the node is drained with the right reason.

A node keeps its name and comes back on another machine. Soperator looks every few minutes for drained nodes whose
reason contains ``[hardware_problem]``, marks their machines, has them removed, and undrains a node that is on a newer
machine. Meanwhile it overwrites our reason with its own. A drain with its own ``[compute_maintenance]`` does not work:
Soperator undrains such a node unless the cloud has announced maintenance.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_soperator.health.findings import acted_upon
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import DrainReason, check_reason, is_drained_by_us, is_ours
from airflow_provider_soperator.slurm.node_orders import NodeStep, because, held, undrains
from airflow_provider_soperator.slurm.requests import Drain, NodeOrder, Undrain
from airflow_provider_soperator.slurm.states import NodeFlag
from airflow_provider_soperator.soperator.workloads import Host, Pod

_HARDWARE = "[hardware_problem]"
#: Reasons that lead to a replacement.
_ENDS_IN_ANOTHER = (_HARDWARE, "[compute_maintenance] node replacement process")
#: A reason that reports an unhealthy machine: replacing it is justified, and Soperator may do so.
_ASKS_FOR_IT = ("[node_problem]",)
#: Marks a reason of ours that has overwritten another one.
_NOT_THE_FIRST = "(was drained before)"


def reason(owner: str, why: str) -> str:
    """The drain reason on which Soperator acts."""
    return f"{_HARDWARE} {DrainReason(owner, why)}"


@dataclass(frozen=True)
class NodeSnapshot:
    """A node at one moment."""

    node: Node
    #: None if it has none, or if that is unknown. It may be gone.
    machine: Host | None = None
    #: The action on its machine, worded to follow the node's name; empty if none.
    acted: str = ""
    #: When it was drained, where it is known how old machines are: one that is newer has come for the drain.
    drained: datetime | None = None
    #: Its slurmd runs on the machine. slurmctld notices late that one is gone.
    is_there: bool = True
    #: Why its Pod does not run.
    problems: tuple[str, ...] = ()


def by_kubernetes(node: Node, pod: Pod | None) -> NodeSnapshot:
    """A snapshot from Kubernetes, which knows each machine and Soperator's marks on it."""
    machine = pod.host if pod else None
    drained = node.reason_since if node.state.has(NodeFlag.DRAIN) else None
    is_there = pod is not None and pod.is_ready
    # The node group, and Soperator, replace a machine that does not answer. Nothing acts on a Pod that does not.
    answers = machine and all(one.is_true for one in machine.conditions if one.type == "Ready")
    acted = acted_upon(pod) or ("" if answers else _is_away(node))
    return NodeSnapshot(node, machine, acted, drained, is_there, pod.problems if pod else ())


def by_slurm(node: Node) -> NodeSnapshot:
    """A snapshot from slurmctld, which knows the machine of a node only if the node has reported it."""
    acted = "is being replaced" if _ENDS_IN_ANOTHER[1] in node.reason else _is_away(node)
    return NodeSnapshot(node, Host(node.instance, node.booted_at) if node.instance else None, acted)


def _is_away(node: Node) -> str:
    return "" if node.is_up else f"is {node.state}"


@dataclass(kw_only=True)
class ReplacementOptions:
    """Options of a machine replacement."""

    owner: str
    reason: str = ""
    #: Also replace machines of nodes that others have drained.
    any_owner: bool = False
    #: Machines that are newer than this are new.
    since: datetime
    #: Time limit for each reaction of Soperator.
    response_timeout: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        # An owner who can have no drains, and a reason that is another order, are refused before the first.
        check_reason(self.reason)
        reason(self.owner, self.reason)


@dataclass
class Replacement:
    """The replacement of one node's machine."""

    options: ReplacementOptions
    old: str | None = None
    new: str | None = None
    is_skipped: bool = False
    began: datetime | None = None
    ended: datetime | None = None
    #: When it was drained first: Soperator renews its drains for a maintenance every few minutes.
    drained: datetime | None = None
    _former: str = ""
    _was_drained: bool = False
    #: The drain for which others may have begun to replace it.
    _since: datetime | None = None
    #: The time since which Soperator is expected to act.
    _its_turn: datetime | None = None
    #: The time since which a Pod on its machine is expected to run.
    _its_pods: datetime | None = None

    @property
    def is_begun(self) -> bool:
        return self.began is not None

    @property
    def is_over(self) -> bool:
        return self.is_skipped or self.ended is not None

    @property
    def is_under_way(self) -> bool:
        return self.is_begun and not self.is_over

    def look(self, snapshot: NodeSnapshot, now: datetime, *, may_begin: bool) -> NodeStep:
        node = snapshot.node
        if self.is_over:
            return NodeStep()
        if self.is_begun and node.state.has(NodeFlag.DRAIN) and node.reason != self._former:
            self.drained = self.drained or node.reason_since
        if not self.is_begun and (step := self._begin(snapshot, now, may_begin)):
            return step
        if self._is_on_another(snapshot.machine):
            return self._arrive(snapshot, now)
        return self._leave(snapshot, now)

    def undo(self, snapshot: NodeSnapshot) -> tuple[NodeOrder, ...]:
        """Revoke the drain if the replacement ends early, but not once the machine is being replaced."""
        node = snapshot.node
        ours = is_drained_by_us(node, self.options.owner)
        if not (self.is_under_way and ours) or snapshot.acted or self._is_on_another(snapshot.machine):
            return ()
        if self._former:
            return (Drain((node.name,), self._former),)
        # Another process has overwritten the former reason, so it is unknown: keep the node drained.
        return () if _NOT_THE_FIRST in node.reason else undrains(node)

    def _begin(self, snapshot: NodeSnapshot, now: datetime, may_begin: bool) -> NodeStep | None:
        """None once it has begun."""
        node, machine = snapshot.node, snapshot.machine
        if node.failed_to_resume:
            return NodeStep(lost=because(node, "did not boot") + ": power it down and up again to get another machine")
        if node.is_off or node.is_going_off:
            self.is_skipped = True
            return NodeStep()
        drained = node.state.has(NodeFlag.DRAIN)
        self._since = snapshot.drained if _says(node, *_ENDS_IN_ANOTHER, *_ASKS_FOR_IT) else None
        if drained and _says(node, *_ENDS_IN_ANOTHER):
            self._started(snapshot, now)
            self._was_drained = True
            return None
        asks_for_it = _says(node, *_ASKS_FOR_IT) or is_ours(node, self.options.owner)
        if drained and not asks_for_it and not self.options.any_owner:
            return NodeStep(lost=because(node, "is drained") + "; set any_owner=True to replace its machine anyway")
        if self._is_new(machine) or (machine and (machine.is_leaving or machine.is_gone)):
            # An earlier try, or others, have replaced the machine, or do so now. A drain would be one of the next one.
            self._started(snapshot, now)
            return None
        if node.is_coming_up:
            return NodeStep(waits="boots")
        if machine is None and not snapshot.is_there:
            return NodeStep(waits=snapshot.acted)
        if not may_begin:
            return NodeStep(waits="waits for other replacements")
        self._started(snapshot, now)
        self._former = node.reason if drained else ""
        return NodeStep((self._drain(node),), waits="is being drained")

    def _started(self, snapshot: NodeSnapshot, now: datetime) -> None:
        self.began = now
        if snapshot.machine and not self._is_new(snapshot.machine):
            self.old = snapshot.machine.name

    def _leave(self, snapshot: NodeSnapshot, now: datetime) -> NodeStep:
        """On the old machine still, or on none."""
        node = snapshot.node
        # A Pod that starts again, such as after a reboot, undrains its node, up to Soperator 4.1.
        self._was_drained = self._was_drained and snapshot.is_there and not snapshot.acted
        if snapshot.acted:
            self._its_turn = None
            return NodeStep(waits=snapshot.acted)
        if snapshot.machine is None:
            return NodeStep(waits="is on an unknown machine")
        if not node.state.has(NodeFlag.DRAIN):
            if self._was_drained:
                return NodeStep(lost=f"was undrained by others while still on {snapshot.machine.name}")
            return NodeStep((self._drain(node),), waits="is being drained")
        self._was_drained = snapshot.is_there
        if self._former and node.reason == self._former:
            # The first order did not arrive.
            return NodeStep((self._drain(node),), waits="is being drained")
        if node.is_busy:
            return NodeStep(waits="has jobs")
        if snapshot.is_there:
            is_overdue = self._is_overdue(now)
        else:
            # Soperator's turn begins with the Pod. One that comes and goes has its time once.
            self._its_turn, self._its_pods = None, self._its_pods or now
            is_overdue = now - self._its_pods >= self.options.response_timeout
        if not is_overdue:
            return NodeStep(waits=f"is drained, waiting for {'Soperator' if snapshot.is_there else 'its Pod'}")
        if not node.is_up:
            state = "; ".join((str(node.state), *snapshot.problems))
            return NodeStep(lost=f"is {state}, and Soperator acts on drained nodes only that are idle")
        late = f"is drained for {node.reason!r}, but Soperator did not react within {self.options.response_timeout}"
        if not node.instance:
            known = f"`scontrol update nodename={node.name} instanceid={snapshot.machine.name}`"
            return NodeStep(lost=f"{late}: Slurm does not know the machine, by which Soperator finds it: {known}")
        return NodeStep(lost=f"{late}: check that soperatorchecks runs with --enable-node-replacement")

    def _arrive(self, snapshot: NodeSnapshot, now: datetime) -> NodeStep:
        node, machine = snapshot.node, snapshot.machine
        assert machine
        if self.new != machine.name:
            self.new, self._its_turn, self._its_pods = machine.name, None, None
        if node.failed_to_resume:
            return NodeStep(lost=because(node, f"did not boot on {self.new}"))
        if not snapshot.is_there and snapshot.problems:
            why = f"boots on {self.new} ({'; '.join(snapshot.problems)})"
            # As of the old machine: one that comes and goes has its time once.
            self._its_pods = self._its_pods or now
            if now - self._its_pods >= self.options.response_timeout:
                return NodeStep(lost=f"{why} since {self._its_pods:%Y-%m-%d %H:%M} UTC: correct what its Pod waits for")
            return NodeStep(waits=why)
        if not snapshot.is_there or not node.is_up:
            return NodeStep(waits=f"boots on {self.new}")
        if node.is_usable:
            self.ended = now
            return NodeStep()
        if not node.state.has(NodeFlag.DRAIN):
            return NodeStep(waits=f"is on {self.new}, and is {node.state}")
        is_of_machine = _says(node, *_ENDS_IN_ANOTHER, *_ASKS_FOR_IT)
        if not is_of_machine or _is_older(machine.created, node.reason_since):
            # The new machine is ill as well.
            return held(node, f"is on {self.new}, and is drained")
        # Soperator up to 4.1 has undrained it when its Pod started; 5.0 does so at its next look.
        if not self._is_overdue(now):
            return NodeStep(waits=f"is on {self.new}, waiting for Soperator to undrain it")
        return NodeStep((Undrain((node.name,)),), waits=f"is on {self.new}, and is being undrained")

    def _is_overdue(self, now: datetime) -> bool:
        self._its_turn = self._its_turn or now
        return now - self._its_turn >= self.options.response_timeout

    def _is_on_another(self, machine: Host | None) -> bool:
        if machine is None or machine.is_gone:
            return False
        if self.old is None:
            return self._is_new(machine)
        return machine.name != self.old

    def _is_new(self, machine: Host | None) -> bool:
        return bool(machine and _is_older(self._since or self.options.since, machine.created))

    def _drain(self, node: Node) -> Drain:
        had_one = node.state.has(NodeFlag.DRAIN) and node.reason
        why = (self.options.reason, _NOT_THE_FIRST if had_one else "")
        return Drain((node.name,), reason(self.options.owner, " ".join(filter(None, why))))


def _is_older(one: datetime | None, other: datetime | None) -> bool:
    return bool(one and other and one < other)


def _says(node: Node, *texts: str) -> bool:
    return any(text in node.reason for text in texts)
