"""Findings: observations that a node is unhealthy, from any source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any


class FindingKind(str, Enum):
    """Kinds of findings, by who can fix them."""

    #: A job has left something behind; it goes away with its cause.
    USER_PROBLEM = "user_problem"
    #: A health check has failed.
    NODE_PROBLEM = "node_problem"
    #: The machine is broken.
    HARDWARE_PROBLEM = "hardware_problem"
    #: Software on the node does not work.
    SOFTWARE_PROBLEM = "software_problem"
    #: The cloud is going to take the machine away, for a while or for good.
    MAINTENANCE = "maintenance"
    #: The machine reboots, or has to.
    REBOOT = "reboot"
    #: The node's Pod is being replaced, is gone, or does not start.
    POD = "pod"
    #: slurmd does not answer.
    NOT_RESPONDING = "not_responding"
    #: The node was powered up and did not boot.
    BOOT_FAILED = "boot_failed"
    #: Slurm does not use the node, for another reason.
    OUT_OF_SERVICE = "out_of_service"
    #: A person, or another program, has drained the node.
    DRAINED = "drained"
    #: Kubernetes reports a problem of the machine.
    MACHINE = "machine"
    #: A metric is out of bounds.
    METRIC = "metric"


def kinds_of(said: Iterable[str]) -> tuple[FindingKind, ...]:
    """Kinds by their names; the ``ValueError`` for an unknown name lists them all.

    >>> kinds_of(["hardware_problem"])
    (<FindingKind.HARDWARE_PROBLEM: 'hardware_problem'>,)
    """
    names = [said] if isinstance(said, str) else list(said)
    if unknown := [name for name in names if name not in [*FindingKind]]:
        raise ValueError(
            f"unknown kind {', '.join(unknown)} of findings; use {', '.join(kind.value for kind in FindingKind)}"
        )
    return tuple(map(FindingKind, names))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault of a node.

    >>> Finding(node="worker-0", kind=FindingKind.POD, what="there is no Pod", source="kubernetes").to_dict()["kind"]
    'pod'
    """

    node: str
    kind: FindingKind
    what: str
    #: ``slurm``, ``kubernetes`` or ``prometheus``.
    source: str
    since: datetime | None = None
    #: It resolves itself, or Soperator repairs it.
    heals: bool = False
    #: The machine has to be replaced or rebooted, by Soperator or by others.
    takes_machine: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as XComs and events carry them."""
        return {
            "node": self.node,
            "kind": self.kind.value,
            "what": self.what,
            "source": self.source,
            "since": self.since.isoformat() if self.since else None,
            "heals": self.heals,
            "takes_machine": self.takes_machine,
        }


@dataclass(frozen=True)
class NodeHealth:
    """The findings about a node."""

    node: str
    findings: tuple[Finding, ...] = ()
    #: Its state in a word or two: ``idle``, ``off``, ``drained by airflow:night``.
    word: str = ""

    @property
    def is_healthy(self) -> bool:
        return not self.findings
