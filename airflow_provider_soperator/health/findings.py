"""Findings: observations that a node is unhealthy, made by Slurm, Kubernetes (of its Pod and machine) or others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import explain, is_drained_by_us, is_ours
from airflow_provider_soperator.slurm.states import NodeBase, NodeFlag
from airflow_provider_soperator.soperator.conditions import Condition
from airflow_provider_soperator.soperator.workloads import Host, Pod
from airflow_provider_soperator.values import listed


class FindingKind(str, Enum):
    """Kinds of findings, by who can fix them."""

    #: A job has left something behind; it goes away with its cause.
    USER_PROBLEM = "user_problem"
    #: A health check has failed.
    NODE_PROBLEM = "node_problem"
    HARDWARE_PROBLEM = "hardware_problem"
    #: Software on the node does not work.
    SOFTWARE_PROBLEM = "software_problem"
    #: The cloud is going to take the machine away, for a while or for good.
    MAINTENANCE = "maintenance"
    #: The machine reboots, or has to.
    REBOOT = "reboot"
    #: The node's Pod is being replaced, is gone, or does not start.
    POD = "pod"
    NOT_RESPONDING = "not_responding"
    BOOT_FAILED = "boot_failed"
    #: Slurm does not use the node, for another reason.
    OUT_OF_SERVICE = "out_of_service"
    #: A person, or another program, has drained the node.
    DRAINED = "drained"
    #: Kubernetes reports a problem of the machine.
    MACHINE = "machine"
    METRIC = "metric"
    #: A check has measured less than before, or less than on the node's neighbours.
    SLOW = "slow"


def kinds_of(said: Iterable[str]) -> tuple[FindingKind, ...]:
    """Kinds by their names; ``ValueError`` for an unknown name, with the nearest one."""
    names = listed(said)
    if unknown := [name for name in names if name not in [*FindingKind]]:
        remedy = name_remedy(unknown[0], [kind.value for kind in FindingKind])
        raise ValueError(f"unknown kind {', '.join(unknown)} of findings: {remedy}")
    return tuple(map(FindingKind, names))


@dataclass(frozen=True)
class Finding:
    """A fault of a node."""

    node: str
    kind: FindingKind
    what: str
    #: ``slurm``, ``kubernetes``, ``prometheus`` or ``checks``.
    source: str
    since: datetime | None = None
    #: It resolves itself, or Soperator repairs it.
    heals: bool = False
    #: The machine has to be replaced or rebooted, by Soperator or by others.
    takes_machine: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as XComs and events carry them."""
        return asdict(self) | {"kind": self.kind.value, "since": self.since.isoformat() if self.since else None}


# From Slurm

_DOWN = (NodeBase.DOWN, NodeBase.ERROR)


def of_slurm(node: Node, *, ignore_own_drains: bool = True) -> Iterator[Finding]:
    """Findings about a node as slurmctld sees it."""
    if node.failed_to_resume:
        yield _known(node, FindingKind.BOOT_FAILED)
        return
    # A node that is off is not faulty, and cannot answer.
    if node.is_off or node.is_going_off:
        return
    # It is down, and often drained, for the reboot; what stays after that is found then.
    is_only_rebooting = node.state.has(NodeFlag.REBOOT_ISSUED) and explain(node.reason) is None
    if node.state.has(NodeFlag.DRAIN) and not is_only_rebooting:
        yield from _drained(node, ignore_own_drains)
    elif node.state.base in _DOWN and not node.is_coming_up and not is_only_rebooting:
        yield _known(node, FindingKind.OUT_OF_SERVICE)
    if node.is_coming_up:
        return
    if node.state.has(NodeFlag.NOT_RESPONDING) and "Not responding" not in node.reason:
        yield _by_slurm(node, "does not answer", FindingKind.NOT_RESPONDING, heals=True)
    if node.state.has(NodeFlag.REBOOT_ISSUED):
        yield _by_slurm(node, "reboots", FindingKind.REBOOT, heals=True)
    if node.state.has(NodeFlag.INVALID_REG):
        what = "has registered with fewer GPUs, CPUs or less memory than in slurm.conf"
        yield _by_slurm(node, what, FindingKind.HARDWARE_PROBLEM)
    if node.state.has(NodeFlag.FAIL):
        yield _by_slurm(node, "has been set to fail", FindingKind.OUT_OF_SERVICE)
    if node.state.has(NodeFlag.BLOCKED):
        yield _by_slurm(node, "is blocked by exclusive jobs", FindingKind.OUT_OF_SERVICE, heals=True)


def _drained(node: Node, ignore_own_drains: bool) -> Iterator[Finding]:
    if is_drained_by_us(node):
        if node.state.base in _DOWN and not node.is_coming_up and not node.state.has(NodeFlag.NOT_RESPONDING):
            yield _by_slurm(node, f"is {node.state}", FindingKind.OUT_OF_SERVICE)
        if ignore_own_drains:
            return
    if is_ours(node):
        yield _by_slurm(node, f"is drained: {node.reason}", FindingKind.DRAINED)
        return
    known = explain(node.reason)
    if known and not known.kind:
        return
    yield _known(node, FindingKind.DRAINED)


def _known(node: Node, otherwise: FindingKind) -> Finding:
    """A finding by the reason; ``otherwise`` is the kind if the reason is unknown."""
    known = explain(node.reason)
    if known is None:
        by = f" by {node.reason_user}" if node.reason_user else ""
        how = "is drained" if node.state.has(NodeFlag.DRAIN) else f"is {node.state}"
        return _by_slurm(node, f"{how}{by}: {node.reason or 'no reason given'}", otherwise)
    kind = FindingKind(known.kind) if known.kind else otherwise
    takes_machine = known.takes_machine or kind is FindingKind.HARDWARE_PROBLEM
    return _by_slurm(node, f"{node.reason} ({known.meaning})", kind, heals=known.heals, takes_machine=takes_machine)


def _by_slurm(node: Node, what: str, kind: FindingKind, *, heals: bool = False, takes_machine: bool = False) -> Finding:
    return Finding(node.name, kind, what, "slurm", node.reason_since, heals, takes_machine)


# From Kubernetes


@dataclass(frozen=True)
class ConditionRule:
    """The meaning of a condition of a machine."""

    kind: FindingKind
    meaning: str
    heals: bool = False
    takes_machine: bool = False


_machine_is_taken = partial(ConditionRule, heals=True, takes_machine=True)

#: Conditions of Kubernetes, of Soperator's controllers and of the cloud.
CONDITIONS: dict[str, ConditionRule] = {
    "Ready": ConditionRule(
        FindingKind.MACHINE,
        # Until then it may answer again, so the machine need not go.
        "its kubelet has failed or does not answer; after 15 minutes Soperator has the machine replaced",
        heals=True,
    ),
    "MemoryPressure": ConditionRule(FindingKind.MACHINE, "it is short of memory", heals=True),
    "DiskPressure": ConditionRule(FindingKind.MACHINE, "its disk is nearly full", heals=True),
    "PIDPressure": ConditionRule(FindingKind.MACHINE, "it has too many processes", heals=True),
    "NetworkUnavailable": ConditionRule(FindingKind.MACHINE, "its network is not set up"),
    "NebiusMaintenanceScheduled": _machine_is_taken(
        FindingKind.MAINTENANCE,
        "Nebius is going to maintain the machine; Soperator drains the node and has it replaced",
    ),
    "HardwareIssuesSuspected": _machine_is_taken(
        FindingKind.HARDWARE_PROBLEM, "a health check has failed for good; the machine is going to be replaced"
    ),
    "SoperatorChecksNodeDegraded": _machine_is_taken(FindingKind.REBOOT, "Soperator is going to reboot the machine"),
    "SoperatorChecksNodeMaintenance": _machine_is_taken(
        FindingKind.MAINTENANCE, "Soperator is going to have the machine replaced"
    ),
    "SlurmNodeDrain": _machine_is_taken(FindingKind.MAINTENANCE, "Soperator takes the Pods off the machine"),
    "SlurmNodeReboot": _machine_is_taken(FindingKind.REBOOT, "Soperator reboots the machine"),
}


_by_kubernetes = partial(Finding, source="kubernetes")


def of_kubernetes(node: Node, pod: Pod | None) -> Iterator[Finding]:
    """Findings about the Pod and machine of a node. A node that is off has no Pod; one that boots may have none yet."""
    if node.is_off or node.is_going_off:
        return
    if pod is None:
        if not node.is_coming_up:
            yield _by_kubernetes(node.name, FindingKind.POD, "there is no Pod of its name", heals=True)
        return
    yield from _of_pod(node, pod)
    if pod.host:
        yield from _of_host(node.name, pod.host)


def acted_upon(pod: Pod | None) -> str:
    """The action of Soperator or the cloud on a node's machine, worded to follow the node's name; empty if none."""
    if pod is None:
        return "has no Pod"
    host = pod.host
    if host is None:
        return "has a Pod that is on no machine"
    if pod.is_leaving:
        return "has a Pod that is being deleted"
    if host.is_leaving or host.is_gone:
        return f"has a machine that goes ({host.name})"
    taken = [one.type for one in _wrong(host) if CONDITIONS[one.type].takes_machine]
    return f"has a machine with {', '.join(taken)}" if taken else ""


def _of_pod(node: Node, pod: Pod) -> Iterator[Finding]:
    if pod.is_leaving:
        yield _by_kubernetes(node.name, FindingKind.POD, "its Pod is being deleted", since=pod.since, heals=True)
    elif pod.problems and not (node.is_coming_up and pod.host is None):
        # While a node boots, its Pod waits for a machine.
        what = f"its Pod is {pod.phase}: {'; '.join(pod.problems)}"
        yield _by_kubernetes(node.name, FindingKind.POD, what, since=pod.since)
    elif not pod.is_ready and not node.is_coming_up:
        yield _by_kubernetes(
            node.name, FindingKind.POD, f"its Pod is {pod.phase} and not ready", since=pod.since, heals=True
        )


def _of_host(node: str, host: Host) -> Iterator[Finding]:
    if host.is_gone:
        yield _by_kubernetes(
            node, FindingKind.MACHINE, f"its machine {host.name} is gone", heals=True, takes_machine=True
        )
    for one in _wrong(host):
        rule = CONDITIONS[one.type]
        what = f"{one.type} is {one.status} on {host.name}{f' ({one.why})' if one.why else ''}: {rule.meaning}"
        yield _by_kubernetes(node, rule.kind, what, since=one.since, heals=rule.heals, takes_machine=rule.takes_machine)


def _wrong(host: Host) -> list[Condition]:
    # Of a machine that does not answer Ready is Unknown, which is as bad as False.
    return [one for one in host.conditions if one.type in CONDITIONS and one.is_true != (one.type == "Ready")]
