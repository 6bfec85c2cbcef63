"""Findings: what is wrong with a node, from whichever source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any


class FindingKind(str, Enum):
    """Sorts of what is wrong, by who can do something about it."""

    #: A job has left something behind, which goes away with its cause.
    USER_PROBLEM = "user_problem"
    #: A health check has failed.
    NODE_PROBLEM = "node_problem"
    #: The machine is broken.
    HARDWARE_PROBLEM = "hardware_problem"
    #: Something that is installed on the node does not work.
    SOFTWARE_PROBLEM = "software_problem"
    #: The cloud is going to take the machine away for a while, or for good.
    MAINTENANCE = "maintenance"
    #: The machine has to be rebooted, or is being.
    REBOOT = "reboot"
    #: The node's Pod is renewed, or gone, or does not start.
    POD = "pod"
    #: slurmd does not answer.
    NOT_RESPONDING = "not_responding"
    #: The node was powered up and did not come.
    BOOT_FAILED = "boot_failed"
    #: Slurm uses the node no more, for a reason that is none of the above.
    OUT_OF_SERVICE = "out_of_service"
    #: A person, or another program, has drained the node.
    DRAINED = "drained"
    #: Kubernetes says that the machine is not well.
    MACHINE = "machine"
    #: A figure that was measured is out of bounds.
    METRIC = "metric"


def kinds_of(said: Iterable[str]) -> tuple[FindingKind, ...]:
    """Kinds by their names; ``ValueError`` says which there are.

    >>> kinds_of(["hardware_problem"])
    (<FindingKind.HARDWARE_PROBLEM: 'hardware_problem'>,)
    """
    names = [said] if isinstance(said, str) else list(said)
    if unknown := [name for name in names if name not in [*FindingKind]]:
        raise ValueError(
            f"there is no kind {', '.join(unknown)} of findings, but {', '.join(kind.value for kind in FindingKind)}"
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
    #: It passes by itself, or by what Soperator does.
    heals: bool = False
    #: The machine has to be replaced or rebooted, whether or not Soperator does that by itself.
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
    #: What it does, in a word or two: ``idle``, ``off``, ``drained by airflow:night``.
    word: str = ""

    @property
    def is_healthy(self) -> bool:
        return not self.findings
