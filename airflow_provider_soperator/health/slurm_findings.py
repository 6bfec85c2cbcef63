"""Findings from Slurm about a node: its state, and the reason of its drain or DOWN state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_soperator.health.findings import Finding, FindingKind
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import (
    DrainReason,
    explain,
    failed_to_resume,
    is_busy,
    is_coming_up,
    is_drained,
    is_going_off,
    is_off,
    is_ours,
    is_usable,
)
from airflow_provider_soperator.slurm.states import NodeBase, NodeFlag

#: The kind of each known reason, by its text; None if it is not a fault.
KINDS: dict[str, FindingKind | None] = {
    "[compute_maintenance] node replacement process": FindingKind.MAINTENANCE,
    "[compute_maintenance] node reboot process": FindingKind.REBOOT,
    "[compute_maintenance]": FindingKind.MAINTENANCE,
    "Kill task failed": FindingKind.REBOOT,
    "[hardware_problem]": FindingKind.HARDWARE_PROBLEM,
    "[node_problem]": FindingKind.NODE_PROBLEM,
    "[user_problem]": FindingKind.USER_PROBLEM,
    "[software_problem]": FindingKind.SOFTWARE_PROBLEM,
    "soperator rolling update": FindingKind.POD,
    "ResumeTimeout reached": FindingKind.BOOT_FAILED,
    "POWER_DOWN_ASAP": None,
    "Not responding": FindingKind.NOT_RESPONDING,
    "Prolog error": FindingKind.SOFTWARE_PROBLEM,
    "nvme_raid_health": FindingKind.HARDWARE_PROBLEM,
}
_SOURCE = "slurm"


@dataclass(frozen=True)
class _Fault:
    """A state that is a fault, in words."""

    what: str
    kind: FindingKind
    heals: bool = False


#: Faults by their flags, in order of precedence.
_FLAGS = {
    NodeFlag.INVALID_REG: _Fault(
        "has registered with fewer GPUs, CPUs or less memory than in slurm.conf", FindingKind.HARDWARE_PROBLEM
    ),
    NodeFlag.FAIL: _Fault("has been set to fail", FindingKind.OUT_OF_SERVICE),
    NodeFlag.BLOCKED: _Fault("is blocked by exclusive jobs", FindingKind.OUT_OF_SERVICE, heals=True),
}


def of_slurm(node: Node, *, ignore_own_drains: bool = True) -> Iterator[Finding]:
    """Findings about a node as slurmctld sees it."""
    if failed_to_resume(node):
        yield _known(node, FindingKind.BOOT_FAILED)
        return
    # A node that is off is not faulty, and cannot answer.
    if is_off(node) or is_going_off(node):
        return
    if node.state.has(NodeFlag.DRAIN):
        yield from _drained(node, ignore_own_drains)
    elif node.state.base in (NodeBase.DOWN, NodeBase.ERROR) and not is_coming_up(node):
        yield _known(node, FindingKind.OUT_OF_SERVICE)
    if is_coming_up(node):
        return
    if node.state.has(NodeFlag.NOT_RESPONDING) and "Not responding" not in node.reason:
        yield _finding(node, "does not answer", FindingKind.NOT_RESPONDING, heals=True)
    if node.state.has(NodeFlag.REBOOT_ISSUED):
        yield _finding(node, "reboots", FindingKind.REBOOT, heals=True)
    for flag, fault in _FLAGS.items():
        if node.state.has(flag):
            yield _finding(node, fault.what, fault.kind, heals=fault.heals)


def word_of(node: Node) -> str:
    """The state of a node in a word or two.

    >>> from airflow_provider_soperator.slurm.states import NodeState
    >>> word_of(Node(name="n", state=NodeState.parse("IDLE+DRAIN"), reason="airflow:night: lent"))
    'drained by airflow:night'
    """
    if is_off(node):
        return "off"
    if is_going_off(node):
        return "going off"
    if is_coming_up(node):
        return "booting"
    if node.state.has(NodeFlag.DRAIN):
        reason = DrainReason.parse(node.reason)
        by = f"airflow:{reason.owner}" if reason else node.reason_user
        how = "drained" if is_drained(node) else "draining"
        return f"{how} by {by}" if by else how
    if is_usable(node):
        return "busy" if is_busy(node) else "idle"
    return str(node.state)


def _drained(node: Node, ignore_own_drains: bool) -> Iterator[Finding]:
    if is_ours(node):
        if not ignore_own_drains:
            yield _finding(node, f"is drained: {node.reason}", FindingKind.DRAINED)
        return
    known = explain(node.reason)
    if known and KINDS[known.text] is None:
        return
    yield _known(node, FindingKind.DRAINED)


def _known(node: Node, otherwise: FindingKind) -> Finding:
    """A finding by the reason; ``otherwise`` is the kind if the reason is unknown."""
    known = explain(node.reason)
    if known is None:
        by = f" by {node.reason_user}" if node.reason_user else ""
        how = "is drained" if node.state.has(NodeFlag.DRAIN) else f"is {node.state}"
        return _finding(node, f"{how}{by}: {node.reason or 'no reason given'}", otherwise)
    kind = KINDS[known.text] or otherwise
    takes_machine = known.takes_machine or kind is FindingKind.HARDWARE_PROBLEM
    return _finding(node, f"{node.reason} ({known.meaning})", kind, heals=known.heals, takes_machine=takes_machine)


def _finding(node: Node, what: str, kind: FindingKind, *, heals: bool = False, takes_machine: bool = False) -> Finding:
    return Finding(
        node=node.name,
        kind=kind,
        what=what,
        source=_SOURCE,
        since=node.reason_since,
        heals=heals,
        takes_machine=takes_machine,
    )
