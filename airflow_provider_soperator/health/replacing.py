"""How the machine under a node is replaced: Soperator does it, once the node is drained for the reason that it heeds.

A node of Slurm's keeps its name, and comes back on another machine. Soperator looks every few minutes for drained nodes
whose reason has ``[hardware_problem]`` in it, marks their machines, has them removed, and undrains a node that is on a
newer machine. On the way it writes a reason of its own over ours. A drain with its own ``[compute_maintenance]`` would
not do: it undrains such a node unless the cloud has announced a maintenance.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_soperator.health.machines import acted_upon
from airflow_provider_soperator.kubernetes.view import Pod
from airflow_provider_soperator.slurm.cluster_records import Machine, Node
from airflow_provider_soperator.slurm.node_conditions import (
    DrainReason,
    failed_to_resume,
    is_busy,
    is_coming_up,
    is_going_off,
    is_off,
    is_ours,
    is_up,
    is_usable,
)
from airflow_provider_soperator.slurm.node_orders import NodeOrder, NodeStep, because, held
from airflow_provider_soperator.slurm.requests import Drain, Undrain
from airflow_provider_soperator.slurm.states import NodeFlag

_HARDWARE = "[hardware_problem]"
#: Reasons that end in another machine, whoever has given them.
_ENDS_IN_ANOTHER = (_HARDWARE, "[compute_maintenance] node replacement process")
#: A reason that says that the machine is not well: to replace it is what it asks for, or more than that.
_ASKS_FOR_IT = "[node_problem]"
#: In a reason of ours that has taken the place of somebody else's.
_NOT_THE_FIRST = "(was drained before)"


def reason(owner: str, why: str) -> str:
    """What a node is drained with, for Soperator to act upon.

    >>> reason("nights", "too hot")
    '[hardware_problem] airflow:nights: too hot'
    """
    return f"{_HARDWARE} {DrainReason(owner, why)}"


@dataclass(frozen=True)
class Sight:
    """A node at one moment."""

    node: Node
    #: None while it is on none, or while nobody knows.
    machine: Machine | None = None
    #: What is being done to its machine, as the rest of a sentence; empty if nothing.
    acted: str = ""
    #: The machine was made after the node was drained: it is not the one that the reason is about.
    is_after_drain: bool = False
    #: Its slurmd runs there. Of one that has just gone slurmctld has not heard yet.
    is_there: bool = True


def by_kubernetes(node: Node, pod: Pod | None) -> Sight:
    """Kubernetes knows each machine, and what Soperator has marked it with."""
    host = pod.host if pod else None
    machine = Machine(node=node.name, instance=host.name, since=host.created) if host and not host.is_gone else None
    drained = node.reason_since if node.state.has(NodeFlag.DRAIN) else None
    is_after_drain = bool(drained and machine and machine.since and machine.since > drained)
    is_there = pod is not None and pod.is_ready and not pod.is_leaving
    return Sight(node, machine, acted_upon(pod) or _is_away(node), is_after_drain, is_there)


def by_slurm(node: Node, machine: Machine | None) -> Sight:
    """slurmctld knows the machine of a node that has told it; what is done to it shows when it is."""
    return Sight(node, machine if machine and machine.instance else None, _acted_by_slurm(node))


def _acted_by_slurm(node: Node) -> str:
    if _ENDS_IN_ANOTHER[1] in node.reason:
        return "is being replaced"
    return _is_away(node)


def _is_away(node: Node) -> str:
    return "" if is_up(node) else f"is {node.state}"


@dataclass(frozen=True)
class Wanted:
    """What whoever has nodes replaced has said."""

    owner: str
    why: str = ""
    #: Whoever has drained them, and why.
    force: bool = False
    #: Machines that are newer than this are new.
    since: datetime | None = None
    #: For each of Soperator's reactions.
    react_within: timedelta = timedelta(minutes=10)


@dataclass
class Replacement:
    """One node on its way to another machine."""

    wanted: Wanted
    #: The machine that is to go, and the one that has come.
    old: str | None = None
    new: str | None = None
    is_begun: bool = False
    is_skipped: bool = False
    began: datetime | None = None
    ended: datetime | None = None
    #: The reason it was drained for before.
    _former: str = ""
    _was_drained: bool = False
    #: Since when Soperator has had something to do.
    _its_turn: datetime | None = None

    @property
    def is_over(self) -> bool:
        return self.is_skipped or self.ended is not None

    @property
    def is_under_way(self) -> bool:
        return self.is_begun and not self.is_over

    def look(self, sight: Sight, now: datetime, *, may_begin: bool) -> NodeStep:
        """What the node needs now."""
        if self.is_over:
            return NodeStep()
        if not self.is_begun:
            step = self._begin(sight, now, may_begin)
            if step is not None:
                return step
        if self._is_on_another(sight.machine):
            return self._arrive(sight, now)
        return self._leave(sight, now)

    def undo(self, sight: Sight) -> tuple[NodeOrder, ...]:
        """What is to be taken back if nobody goes on: nothing once its machine is being replaced."""
        node = sight.node
        if not self.is_under_way or not self._is_our_drain(node) or sight.acted or self._is_on_another(sight.machine):
            return ()
        if self._former:
            return (Drain((node.name,), self._former),)
        # Why somebody had drained it is known to the process only that has drained it anew. It is not opened to jobs.
        return () if _NOT_THE_FIRST in node.reason else (Undrain((node.name,)),)

    def _begin(self, sight: Sight, now: datetime, may_begin: bool) -> NodeStep | None:
        """None once it has begun."""
        node, machine = sight.node, sight.machine
        if failed_to_resume(node):
            return NodeStep(lost=because(node, "did not boot") + ": power it down and up again, on another machine")
        if is_off(node) or is_going_off(node):
            self.is_skipped = True
            return NodeStep()
        drained = node.state.has(NodeFlag.DRAIN)
        if drained and any(text in node.reason for text in _ENDS_IN_ANOTHER):
            self._started(sight, now)
            self._was_drained = True
            return None
        if drained and not self._may_take(node):
            return NodeStep(lost=because(node, "is drained") + "; force=True replaces its machine all the same")
        if self._is_new(machine):
            # Another try has had it replaced.
            self._started(sight, now)
            return None
        if is_coming_up(node):
            return NodeStep(waits="boots")
        if not may_begin:
            return NodeStep(waits="is replaced when others are done")
        self._started(sight, now)
        self._former = node.reason if drained else ""
        return NodeStep((self._drain(node),), waits="is being drained")

    def _started(self, sight: Sight, now: datetime) -> None:
        self.is_begun, self.began = True, now
        if sight.machine and sight.is_after_drain:
            self.new = sight.machine.instance
        elif sight.machine and not self._is_new(sight.machine):
            self.old = sight.machine.instance

    def _leave(self, sight: Sight, now: datetime) -> NodeStep:
        """On the old machine still, or on none."""
        node = sight.node
        if sight.acted:
            self._its_turn = None
            return NodeStep(waits=sight.acted)
        if sight.machine is None:
            return NodeStep(waits="is on no machine that is known")
        if not node.state.has(NodeFlag.DRAIN):
            if self._was_drained:
                return NodeStep(lost=f"was undrained by somebody while it was on {sight.machine.instance} still")
            return NodeStep((self._drain(node),), waits="is being drained")
        self._was_drained = True
        if is_busy(node):
            return NodeStep(waits="has jobs")
        if not self._its_turn:
            self._its_turn = now
        if now - self._its_turn < self.wanted.react_within:
            return NodeStep(waits="is drained, and Soperator is to replace its machine")
        return NodeStep(
            lost=f"is drained for {node.reason!r}, and nobody has acted upon that for {self.wanted.react_within}: see "
            "whether soperatorchecks runs, and with --enable-node-replacement"
        )

    def _arrive(self, sight: Sight, now: datetime) -> NodeStep:
        """On another machine."""
        node, machine = sight.node, sight.machine
        assert machine
        if self.new != machine.instance:
            self.new, self._its_turn = machine.instance, None
        if failed_to_resume(node):
            return NodeStep(lost=because(node, f"did not boot on {self.new}"))
        if not sight.is_there or not is_up(node):
            return NodeStep(waits=f"is on {self.new}, and boots")
        if is_usable(node):
            self.ended = now
            return NodeStep()
        if not node.state.has(NodeFlag.DRAIN):
            return NodeStep(waits=f"is on {self.new}, and is {node.state}")
        if not self._is_drained_for_this(node):
            return held(node, f"is on {self.new}, and is drained")
        # Up to Soperator 4.1 it has been undrained when its Pod started; 5.0 does so when it looks next.
        if not self._its_turn:
            self._its_turn = now
        if now - self._its_turn < self.wanted.react_within:
            return NodeStep(waits=f"is on {self.new}, and Soperator is to undrain it")
        return NodeStep((Undrain((node.name,)),), waits=f"is on {self.new}, and is being undrained")

    def _is_on_another(self, machine: Machine | None) -> bool:
        if machine is None:
            return False
        if self.old is None:
            return machine.instance == self.new or self._is_new(machine)
        return machine.instance != self.old

    def _is_new(self, machine: Machine | None) -> bool:
        since = self.wanted.since
        return bool(machine and machine.since and since and machine.since > since)

    def _may_take(self, node: Node) -> bool:
        return self.wanted.force or _ASKS_FOR_IT in node.reason or is_ours(node, self.wanted.owner)

    def _is_our_drain(self, node: Node) -> bool:
        reason = DrainReason.parse(node.reason.removeprefix(f"{_HARDWARE} "))
        return node.state.has(NodeFlag.DRAIN) and reason is not None and reason.owner == self.wanted.owner

    def _drain(self, node: Node) -> Drain:
        had_one = node.state.has(NodeFlag.DRAIN) and node.reason
        why = (self.wanted.why, _NOT_THE_FIRST if had_one else "")
        return Drain((node.name,), reason(self.wanted.owner, " ".join(filter(None, why))))

    def _is_drained_for_this(self, node: Node) -> bool:
        return any(text in node.reason for text in _ENDS_IN_ANOTHER)


def at_most(said: int | str, of: int) -> int:
    """How many nodes may be on their way at once: a number, or a part of all of them, and one at least.

    >>> at_most(2, 10), at_most("25%", 10), at_most("1%", 10)
    (2, 2, 1)
    """
    text = str(said).strip()
    number = text.removesuffix("%")
    if isinstance(said, bool) or not number.isdecimal() or int(number) < 1 or (text != number and int(number) > 100):
        raise ValueError(f"at_once={said!r} is neither a number of nodes nor a part of them such as '25%'")
    return max(1, of * int(number) // 100) if text != number else int(number)
