"""soperatorchecks and the rebooter: what Soperator does when a node is drained for one of its reasons, or maintained.

The steps and their conditions on the Kubernetes Node are those of Soperator's controllers, one step at each look.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sandbox.cloud.conditions import condition, with_conditions
from sandbox.cloud.fleet import Fleet
from sandbox.cloud.kubelet import Kubelet
from sandbox.cloud.slurm import Slurm, SlurmNode
from sandbox.cloud.soperator import WORKER_LABEL
from sandbox.kube.objects import dig, parse_timestamp
from sandbox.kube.store import ObjectStore
from sandbox.settings import NAMESPACE, Settings

REPLACEMENT = "[compute_maintenance] node replacement process"
REBOOT = "[compute_maintenance] node reboot process"
KILL_TASK_FAILED = "Kill task failed"
HARDWARE = "[hardware_problem]"
NODE = "[node_problem]"
USER = "[user_problem]"
#: In the order in which they are looked for, anywhere in a reason: the first one counts. Nothing is done for a
#: ``[user_problem]``, and nothing for what is none of them.
_KNOWN = (KILL_TASK_FAILED, REPLACEMENT, REBOOT, NODE, USER, HARDWARE)

#: The beginning of the names of reservations in which nodes are tested further.
SUSPICIOUS = "suspicious-node"

_MAINTENANCE = "NebiusMaintenanceScheduled"
_SUSPECTED = "HardwareIssuesSuspected"
_TO_BE_MAINTAINED = "SoperatorChecksNodeMaintenance"
_DEGRADED = "SoperatorChecksNodeDegraded"
_DRAIN = "SlurmNodeDrain"
_REBOOT = "SlurmNodeReboot"


@dataclass(frozen=True)
class Flags:
    """What soperatorchecks may do: as the recipe has it, or as the chart of an installation says."""

    node_replacement: bool
    extensive_check: bool

    @classmethod
    def of(cls, store: ObjectStore, settings: Settings) -> Flags:
        said: dict[str, str] = {}
        for deployment in store.list("deployments", NAMESPACE):
            for container in dig(deployment, "spec.template.spec.containers") or []:
                words = [str(word).partition("=") for word in container.get("args") or []]
                said |= {name: value for name, _, value in words if name.startswith("--enable-")}
        replaces = said.get("--enable-node-replacement", str(settings.replaces_nodes).lower()) == "true"
        tests = said.get("--enable-extensive-check", str(settings.tests_suspects).lower()) == "true"
        return cls(replaces, tests and settings.soperator == "4.1")


class NodeChecks:
    """Looks at all nodes, and does the next step with each that needs one."""

    def __init__(self, store: ObjectStore, slurm: Slurm, fleet: Fleet, kubelet: Kubelet, settings: Settings) -> None:
        self._store, self._slurm, self._fleet, self._kubelet = store, slurm, fleet, kubelet
        self._settings = settings
        #: The nodes of the last look, by name.
        self.seen: dict[str, SlurmNode] = {}
        #: When each machine that is rebooting has been told to.
        self._rebooted: dict[str, float] = {}

    async def look(self) -> None:
        self.seen = {node.name: node for node in await self._slurm.nodes()}
        for pod in self._store.list("pods", NAMESPACE, labels=WORKER_LABEL):
            node, machine = self.seen.get(pod["metadata"]["name"]), pod["spec"].get("nodeName")
            if node and self._is_there(machine):
                await self._maintain(node, machine)
                await self._answer_drain(node, machine, pod)
                self._drain_machine(machine)
                await self._reboot_machine(node, machine)

    def _is_there(self, machine: str | None) -> bool:
        """Both are: a machine comes and goes a moment before its Node."""
        return machine in self._fleet.machines and bool(self._store.list("nodes", fields=f"metadata.name={machine}"))

    async def _maintain(self, node: SlurmNode, machine: str) -> None:
        """A machine that is to be maintained, or may be broken, is drained to be replaced."""
        if not self._is_to_be_maintained(machine):
            return
        if not node.is_drained_for(REPLACEMENT):
            await self._drain(node, REPLACEMENT)
        elif node.is_fully_drained:
            self._set(machine, _TO_BE_MAINTAINED, True, "NodeDraining", "Maintenance is scheduled on k8s node")

    async def _answer_drain(self, node: SlurmNode, machine: str, pod: dict[str, Any]) -> None:
        reason = next((known for known in _KNOWN if known in node.reason), None) if "DRAIN" in node.state else None
        if reason in (HARDWARE, NODE):
            flags = Flags.of(self._store, self._settings)
            if not flags.node_replacement:
                return
            if reason == NODE and flags.extensive_check:
                await self._reserve(node, machine)
            # Up to 4.1 no look is taken at the rest of the text.
            elif reason == HARDWARE or self._settings.soperator == "4.1" or _is_problem(node.reason):
                await self._suspect(node, machine, pod)
        elif reason == REPLACEMENT:
            # Without a condition that asks for it nobody replaces the machine, and the drain has no meaning.
            if not self._is_to_be_maintained(machine):
                await self._undrain(node)
        elif reason in (KILL_TASK_FAILED, REBOOT):
            await self._degrade(node, machine)

    def _is_to_be_maintained(self, machine: str) -> bool:
        """Of the two conditions that say so, the last one in the list counts, and is only denied by False."""
        conditions = dig(self._store.get("nodes", machine), "status.conditions") or []
        found = [one for one in conditions if one["type"] in (_MAINTENANCE, _SUSPECTED)]
        return bool(found) and found[-1]["status"] != "False"

    async def _reserve(self, node: SlurmNode, machine: str) -> None:
        """Up to 4.1: keep jobs off the node by a reservation, so that it can be tested further without a drain."""
        if self._made_at(machine) > node.reason_since:
            await self._undrain(node)
        elif _is_problem(node.reason) and not self._is_true(machine, _SUSPECTED):
            await add_reservation(self._slurm, f"{SUSPICIOUS}-{node.name}", node.name)
            await self._undrain(node)

    async def _suspect(self, node: SlurmNode, machine: str, pod: dict[str, Any]) -> None:
        if max(self._made_at(machine), _scheduled_at(pod)) > node.reason_since:
            # The drain was meant for the machine before this one.
            await self._undrain(node)
        elif node.is_fully_drained:
            self._set(machine, _SUSPECTED, True, "GPUHealthCheckFailedSoperator", node.comment)

    async def _degrade(self, node: SlurmNode, machine: str) -> None:
        degraded = self._condition(machine, _DEGRADED)
        if degraded.get("status") == "True":
            return
        rebooted_at = _seconds(degraded.get("lastTransitionTime"))
        if degraded and node.reason_since < rebooted_at:
            await self._undrain(node)
        elif not node.is_drained_for(REBOOT):
            await self._drain(node, REBOOT)
        elif node.is_fully_drained:
            message = "Some slurm nodes on the k8s node are degraded"
            self._set(machine, _DEGRADED, True, "NodeNeedReboot", message)

    def _drain_machine(self, machine: str) -> None:
        drain, maintained = self._condition(machine, _DRAIN), self._is_true(machine, _TO_BE_MAINTAINED)
        if drain.get("status") != "True":
            if maintained or self._is_true(machine, _SUSPECTED):
                self._set(machine, _DRAIN, True, "NodeNeedDrain", "Node has to be drained")
        elif drain["reason"] == "NodeNeedDrain":
            self._set(machine, _DRAIN, True, "NodeDraining", "Node is draining")
        elif drain["reason"] == "NodeDraining":
            self._set(machine, _DRAIN, True, "NodeDrained", "Node has been drained")
        elif maintained:
            # Soperator deletes the Node; its machine goes with it, and the node group makes another.
            self._fleet.kill(machine)
        else:
            self._set(machine, _DRAIN, False, "NodeRebooted", "Node is rebooted")

    async def _reboot_machine(self, node: SlurmNode, machine: str) -> None:
        reboot = self._condition(machine, _REBOOT)
        if reboot.get("status") != "True":
            if self._is_true(machine, _DEGRADED):
                self._set(machine, _REBOOT, True, "NodeNeedReboot", "Node has to be rebooted")
        elif reboot["reason"] == "NodeNeedReboot":
            self._set(machine, _REBOOT, True, "NodeRebooting", "Node is rebooting")
            self._set(machine, "Ready", False, "KubeletNotReady", "Node is rebooting")
            self._rebooted[machine] = time.monotonic()
            await self._kubelet.reboot(node.name)
        elif time.monotonic() >= self._rebooted.get(machine, 0) + self._settings.vm_boot:
            self._rebooted.pop(machine, None)
            self._kubelet.rebooting.discard(node.name)
            self._set(machine, "Ready", True, "KubeletReady", "kubelet is posting ready status")
            for type_ in (_REBOOT, _DRAIN, _DEGRADED):
                self._set(machine, type_, False, "NodeRebooted", "Node is rebooted")

    async def _drain(self, node: SlurmNode, reason: str) -> None:
        await self._slurm.run("scontrol", "update", f"nodename={node.name}", "state=drain", f"reason={reason}")

    async def _undrain(self, node: SlurmNode) -> None:
        await self._slurm.run("scontrol", "update", f"nodename={node.name}", "state=undrain")

    def _condition(self, machine: str, type_: str) -> dict[str, Any]:
        found = self._store.list("nodes", fields=f"metadata.name={machine}")
        condition = dig(found[0], f"status.conditions[{type_}]") if found else None
        return condition or {}

    def _is_true(self, machine: str, type_: str) -> bool:
        return self._condition(machine, type_).get("status") == "True"

    def _set(self, machine: str, type_: str, status: bool, reason: str, message: str) -> None:
        old = self._store.get("nodes", machine)["status"]
        new = with_conditions(old, condition(type_, status, reason, message))
        if new != old:
            self._store.patch("nodes", machine, {"status": new}, part="status")

    def _made_at(self, machine: str) -> float:
        return _seconds(self._store.get("nodes", machine)["metadata"]["creationTimestamp"])


async def add_reservation(slurm: Slurm, name: str, node: str) -> None:
    """One that lasts, and jobs that run go on in it; of the user whose jobs test nodes, which is root here."""
    if (await slurm.run("scontrol", "show", "reservation", name)).status:
        words = (f"nodes={node}", "flags=maint,ignore_jobs", "users=root", "starttime=now", "duration=infinite")
        await slurm.run("scontrol", "create", f"reservationname={name}", *words)


def _is_problem(reason: str) -> bool:
    """The text has a name and details, as Soperator's checks write them; others are let be."""
    name, details, _ = reason.partition(": ")
    return bool(details) and any(letter.isalpha() for letter in name.replace(f"{NODE} ", ""))


def _scheduled_at(pod: dict[str, Any]) -> float:
    return _seconds(dig(pod, "status.conditions[PodScheduled].lastTransitionTime"))


def _seconds(text: str | None) -> float:
    moment = parse_timestamp(text) if text else None
    return moment.timestamp() if moment else 0.0
