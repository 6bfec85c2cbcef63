"""Findings from Kubernetes about a node: its Pod, and its machine, which is a Kubernetes Node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_soperator.health.findings import Finding, FindingKind
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import is_coming_up, is_going_off, is_off
from airflow_provider_soperator.soperator.conditions import Condition
from airflow_provider_soperator.soperator.workloads import Host, Pod

_SOURCE = "kubernetes"


@dataclass(frozen=True)
class ConditionRule:
    """The meaning of a condition with a given status."""

    kind: FindingKind
    meaning: str
    status: str = "True"
    heals: bool = False
    takes_machine: bool = False


#: Conditions of Kubernetes, of Soperator's controllers and of the cloud.
CONDITIONS: dict[str, ConditionRule] = {
    "Ready": ConditionRule(
        FindingKind.MACHINE,
        "its kubelet has failed or does not answer; Soperator has the machine replaced after a while",
        "False",
    ),
    "MemoryPressure": ConditionRule(FindingKind.MACHINE, "it is short of memory", heals=True),
    "DiskPressure": ConditionRule(FindingKind.MACHINE, "its disk is nearly full", heals=True),
    "PIDPressure": ConditionRule(FindingKind.MACHINE, "it has too many processes", heals=True),
    "NetworkUnavailable": ConditionRule(FindingKind.MACHINE, "its network is not set up"),
    "NebiusMaintenanceScheduled": ConditionRule(
        FindingKind.MAINTENANCE,
        "Nebius is going to maintain the machine; Soperator drains the node and has it replaced",
        heals=True,
        takes_machine=True,
    ),
    "HardwareIssuesSuspected": ConditionRule(
        FindingKind.HARDWARE_PROBLEM,
        "a health check has failed for good; the machine is going to be replaced",
        heals=True,
        takes_machine=True,
    ),
    "SoperatorChecksNodeDegraded": ConditionRule(
        FindingKind.REBOOT, "Soperator is going to reboot the machine", heals=True, takes_machine=True
    ),
    "SoperatorChecksNodeMaintenance": ConditionRule(
        FindingKind.MAINTENANCE, "Soperator is going to have the machine replaced", heals=True, takes_machine=True
    ),
    "SlurmNodeDrain": ConditionRule(
        FindingKind.MAINTENANCE, "Soperator takes the Pods off the machine", heals=True, takes_machine=True
    ),
    "SlurmNodeReboot": ConditionRule(
        FindingKind.REBOOT, "Soperator reboots the machine", heals=True, takes_machine=True
    ),
}


def of_kubernetes(node: Node, pod: Pod | None) -> Iterator[Finding]:
    """Findings about the Pod and machine of a node. A node that is off has no Pod; one that boots may have none yet."""
    if is_off(node) or is_going_off(node):
        return
    if pod is None:
        if not is_coming_up(node):
            yield _finding(node.name, FindingKind.POD, "there is no Pod of its name", None, heals=True)
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
        yield _finding(node.name, FindingKind.POD, "its Pod is being deleted", pod.since, heals=True)
    elif pod.problems and not (is_coming_up(node) and pod.host is None):
        # While a node boots, its Pod waits for a machine.
        yield _finding(node.name, FindingKind.POD, f"its Pod is {pod.phase}: {'; '.join(pod.problems)}", pod.since)
    elif not pod.is_ready and not is_coming_up(node):
        yield _finding(node.name, FindingKind.POD, f"its Pod is {pod.phase} and not ready", pod.since, heals=True)


def _of_host(node: str, host: Host) -> Iterator[Finding]:
    if host.is_gone:
        yield _finding(
            node, FindingKind.MACHINE, f"its machine {host.name} is gone", None, heals=True, takes_machine=True
        )
    for one in _wrong(host):
        rule = CONDITIONS[one.type]
        said = ": ".join(filter(None, (one.reason, one.message)))
        what = f"{one.type} is {one.status} on {host.name}{f' ({said})' if said else ''}: {rule.meaning}"
        yield _finding(node, rule.kind, what, one.since, heals=rule.heals, takes_machine=rule.takes_machine)


def _wrong(host: Host) -> list[Condition]:
    return [one for one in host.conditions if one.type in CONDITIONS and _is_wrong(one, CONDITIONS[one.type])]


def _is_wrong(condition: Condition, rule: ConditionRule) -> bool:
    # The condition of a machine that does not answer is Unknown, which is as bad as not Ready.
    return condition.status != "True" if rule.status == "False" else condition.status == rule.status


def _finding(
    node: str, kind: FindingKind, what: str, since: datetime | None, *, heals: bool = False, takes_machine: bool = False
) -> Finding:
    return Finding(
        node=node, kind=kind, what=what, source=_SOURCE, since=since, heals=heals, takes_machine=takes_machine
    )
