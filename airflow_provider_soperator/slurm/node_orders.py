"""Orders that power nodes up and down, drain and undrain them, derived from their current states.

A task that moves nodes reads their states, sends the orders of a ``NodeMove``, waits a little, and repeats. As nothing
is remembered in between, another process can continue at any time. The effect of an order depends on the node's state,
and slurmctld does not report it; hence the care:

- A power down of a node that is off repeats its whole cycle, and clears its drain.
- A node that is powering down, or will, ignores a power up, and a power down cannot be revoked.
- After ``FORCE`` a node looks as after ``IDLE``, and accepts jobs: hence ``ASAP`` first.
- The mode shows only in the drain that comes with ``ASAP``; no state shows ``FORCE``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node, Partition
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.slurm.node_conditions import (
    ROLLING_UPDATE,
    DrainReason,
    can_be_taken_over,
    explain,
    is_drained_by_us,
    is_ours,
)
from airflow_provider_soperator.slurm.requests import (
    Drain,
    NodeOrder,
    PowerDown,
    PowerDownMode,
    PowerUp,
    Request,
    Undrain,
)
from airflow_provider_soperator.slurm.states import NodeBase, NodeFlag

#: Names of the modes of a power down.
MODES = {"idle": PowerDownMode.IDLE, "asap": PowerDownMode.ASAP, "force": PowerDownMode.FORCE}


@dataclass(frozen=True)
class NodeMove:
    """Progress of nodes to their goal, and the orders that help them on."""

    #: Requests to send now, in this order.
    orders: tuple[Request[None], ...] = ()
    #: Nodes that have reached the goal.
    there: tuple[str, ...] = ()
    #: What each node waits for, as the continuation of its name in a sentence.
    waiting: Mapping[str, str] = field(default_factory=dict)
    #: Nodes that cannot reach the goal by themselves, and why.
    lost: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """True if all nodes have reached the goal."""
        return not self.waiting and not self.lost

    @property
    def is_settled(self) -> bool:
        """True if waiting changes nothing more: every node has reached the goal or is lost."""
        return not self.waiting


@dataclass(frozen=True)
class NodeStep:
    """The next step of one node; an empty one if it has reached the goal."""

    orders: tuple[NodeOrder, ...] = ()
    waits: str = ""
    lost: str = ""


THERE = NodeStep()


def up(nodes: Iterable[Node], *, owner: str = "", since: datetime | None = None) -> NodeMove:
    """Make nodes usable. Drains of ``owner`` (default: of this provider) are undone, those of others never.

    ``since``: when the move began. A node that failed to boot after that is lost; others that failed are powered up
    again, as are all without ``since``.
    """
    return move_each(nodes, lambda node: _up(node, owner, since))


def down(nodes: Iterable[Node], mode: PowerDownMode, *, reason: str = "") -> NodeMove:
    """Power nodes down. Jobs may power them up again afterwards."""
    return move_each(nodes, lambda node: _down(node, mode, reason))


def kept_off(nodes: Iterable[Node], mode: PowerDownMode, *, reason: DrainReason) -> NodeMove:
    """Power nodes down and drain them, so that no job powers them up again."""
    return move_each(nodes, lambda node: _kept_off(node, mode, reason))


def move_each(nodes: Iterable[Node], step: Callable[[Node], NodeStep]) -> NodeMove:
    return move_of({node.name: step(node) for node in nodes})


def move_of(steps: Mapping[str, NodeStep]) -> NodeMove:
    """The move that the steps of nodes make together, by their names."""
    return NodeMove(
        orders=_together(order for one in steps.values() for order in one.orders),
        there=tuple(name for name, one in steps.items() if one == THERE),
        waiting={name: one.waits for name, one in steps.items() if one.waits},
        lost={name: one.lost for name, one in steps.items() if one.lost},
    )


def _together(orders: Iterable[NodeOrder]) -> tuple[Request[None], ...]:
    """Join equal orders to several nodes."""
    names: dict[NodeOrder, list[str]] = {}
    for order in orders:
        names.setdefault(replace(order, names=()), []).extend(order.names)
    return tuple(replace(order, names=tuple(names[order])) for order in sorted(names, key=_place))


def undrains(*nodes: Node) -> tuple[Undrain, ...]:
    """Orders that undrain nodes. Of one that is down Slurm clears no reason, which says why it is."""
    down = {node.name for node in nodes if node.state.base is NodeBase.DOWN or node.state.has(NodeFlag.FAIL)}
    up = tuple(node.name for node in nodes if node.name not in down)
    return tuple(order for order in (Undrain(up), Undrain(tuple(sorted(down)), "")) if order.names)


def _place(order: NodeOrder) -> tuple[int, int]:
    """The place of an order among several to one node."""
    kinds = (PowerUp, Undrain, PowerDown, Drain)
    return kinds.index(type(order)), list(PowerDownMode).index(order.mode) if isinstance(order, PowerDown) else 0


def _up(node: Node, owner: str, since: datetime | None) -> NodeStep:
    if node.is_usable:
        return THERE
    drained, ours = node.state.has(NodeFlag.DRAIN), is_ours(node, owner)
    if node.state.has(NodeFlag.POWER_DOWN):
        # Its drain ends when it powers down.
        return NodeStep(waits=_told_to_go(node))
    if drained and not ours:
        return held(node, "is drained")
    if node.state.has(NodeFlag.POWERING_DOWN):
        return NodeStep(waits="is powering down and can be powered up only after that")
    # Soperator 4.1 ends a drain when the node's Pod starts, 5.0 does not. Slurm refuses it of an INVALID_REG node.
    undrain = undrains(node) if drained and not node.state.has(NodeFlag.INVALID_REG) else ()
    if node.is_coming_up:
        return NodeStep(undrain, waits="boots")
    if node.failed_to_resume and since and node.reason_since and node.reason_since > since:
        return NodeStep(lost=because(node, "did not boot"))
    if node.is_off:
        return NodeStep((PowerUp((node.name,)), *undrain), waits="is being powered up")
    if undrain:
        return NodeStep(undrain, waits="is being undrained")
    if node.state.base is NodeBase.DOWN or node.state.has(NodeFlag.FAIL, NodeFlag.INVALID_REG):
        return held(node, f"is {node.state}")
    # As it is for a moment after it was undrained, too.
    return NodeStep(waits="does not answer yet" if node.state.has(NodeFlag.NOT_RESPONDING) else f"is {node.state}")


def _down(node: Node, mode: PowerDownMode, reason: str) -> NodeStep:
    if node.state.has(NodeFlag.POWERING_DOWN):
        return NodeStep(waits="is powering down")
    # Up to Soperator 4.1 the Pod of a node that did not boot in time stays, and keeps its machine.
    if node.is_off and not node.failed_to_resume:
        return THERE
    needed = _to_order(node, mode)
    return NodeStep(tuple(PowerDown((node.name,), one, reason) for one in needed), waits=_told_to_go(node))


def _to_order(node: Node, mode: PowerDownMode) -> tuple[PowerDownMode, ...]:
    ordered, drained = node.state.has(NodeFlag.POWER_DOWN), node.state.has(NodeFlag.DRAIN)
    if mode is PowerDownMode.IDLE:
        return () if ordered else (mode,)
    first = () if ordered and drained else (PowerDownMode.ASAP,)
    # Its jobs are ending, by an earlier order or by themselves.
    ends = node.state.has(NodeFlag.COMPLETING) or not node.is_busy
    if mode is PowerDownMode.ASAP or (ordered and ends):
        return first
    return (*first, PowerDownMode.FORCE)


def _kept_off(node: Node, mode: PowerDownMode, reason: DrainReason) -> NodeStep:
    step = _down(node, mode, str(reason))
    if node.state.has(NodeFlag.DRAIN) or not (step == THERE or node.state.has(NodeFlag.POWERING_DOWN)):
        return step
    # Not earlier: a power down clears the drain.
    return NodeStep((Drain((node.name,), str(reason)),), waits=step.waits or "is being drained")


def _told_to_go(node: Node) -> str:
    if node.is_coming_up:
        return "powers down once it has booted"
    return "powers down after its jobs" if node.is_busy else "is about to power down"


def held(node: Node, how: str) -> NodeStep:
    """Step of a faulty node that this provider must not repair: it recovers by itself, or is lost."""
    if node.is_rebooting:
        # What stays after that is seen then.
        return NodeStep(waits="reboots")
    known = explain(node.reason)
    # The recovery needs the machine.
    if known and known.heals and not node.is_off and not node.is_going_off:
        return NodeStep(waits=because(node, how))
    return NodeStep(lost=because(node, how))


def because(node: Node, how: str) -> str:
    known = explain(node.reason)
    by = f" by {node.reason_user}" if node.reason_user and how == "is drained" else ""
    meaning = f" ({known.meaning})" if known else ""
    return f"{how}{by}: {node.reason or 'no reason given'}{meaning}"


def static_among(names: Iterable[str], config: ClusterConfig) -> tuple[str, ...]:
    """Nodes that power saving leaves alone (SuspendExcNodes): their Pods always run."""
    # From a list with a number behind it, any nodes of that number stay on.
    whole = [piece for piece in re.split(r",(?![^\[]*\])", config.suspend_exc_nodes) if piece and ":" not in piece]
    return tuple(hostlist.intersect(list(names), whole))


def refuse_power(names: Iterable[str], config: ClusterConfig, partitions: Iterable[Partition] = ()) -> None:
    """Raise if nodes cannot be powered up and down: static ones, or all where power saving is off.

    ``partitions`` matter only without a SuspendTime of the whole cluster: that of one switches power saving on.
    """
    # Slurm would accept the order and lose the node.
    if static := static_among(names, config):
        raise SlurmError(
            f"{hostlist.fold(static)} cannot be powered up or down",
            remedy="a static node is always on: drain it, or make its NodeSet ephemeral (NodeSet spec.ephemeralNodes)",
        )
    # Up to 25.11 the automatic power saving and the one by hand are the same.
    is_on = config.suspend_time is not None or any(one.has_suspend_time for one in partitions)
    if not is_on and config.release < (26, 5):
        raise SlurmError(
            f"Slurm {config.version} rejects every power order while SuspendTime=INFINITE",
            remedy="set slurmConfig.suspendTime of the SlurmCluster to a large number, such as Soperator's 1000000000: "
            "nodes then power down on request only",
        )


def drained(
    nodes: Iterable[Node], reason: DrainReason | str, *, wait_for_jobs: bool = False, ends_jobs: bool = False
) -> NodeMove:
    """Drain nodes. A node that is drained already keeps its reason, unless that would end the drain.

    A drain ends the jobs for which a node boots; so it waits, unless it ``ends_jobs``.
    """

    def step(node: Node) -> NodeStep:
        if not node.state.has(NodeFlag.DRAIN):
            if node.boots_for_job and not ends_jobs:
                return NodeStep(waits="boots for a job, which a drain would end, and is drained after that")
            return NodeStep((Drain((node.name,), str(reason)),), waits="is being drained")
        if node.state.has(NodeFlag.POWER_DOWN):
            return NodeStep(waits="powers down, which ends its drain, and is drained after that")
        if node.is_rebooting and is_ours(node):
            return NodeStep(waits="reboots, which may end its drain")
        if can_be_taken_over(node) and node.reason != str(reason):
            how = f"is drained for {node.reason!r}, which ends by itself, and is being drained anew"
            return NodeStep((Drain((node.name,), str(reason)),), waits=how)
        return NodeStep(waits="has jobs") if wait_for_jobs and node.is_busy else THERE

    return move_each(nodes, step)


def undrained(nodes: Iterable[Node], *, owner: str = "", any_owner: bool = False) -> NodeMove:
    """Undrain nodes; drains of others only with ``any_owner``."""

    def step(node: Node) -> NodeStep:
        if not node.state.has(NodeFlag.DRAIN):
            return THERE
        if not any_owner and not is_drained_by_us(node, owner):
            if node.reason.startswith(ROLLING_UPDATE) or node.is_rebooting:
                # It may have taken over a drain of ours, and ends it.
                return held(node, "is drained")
            return NodeStep(lost=because(node, "is drained"))
        if node.state.has(NodeFlag.INVALID_REG):
            how = "is drained, and Slurm does not undrain it before it registers with all its configured resources"
            return held(node, how)
        return NodeStep(undrains(node), waits="is being undrained")

    return move_each(nodes, step)
