"""Words for the conditions of nodes, and reasons of drains."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import RESUME_FAILED, Node
from airflow_provider_soperator.slurm.errors import UnknownNode, UnknownPartition
from airflow_provider_soperator.slurm.states import NodeBase, NodeFlag

#: Prefix of this provider's reasons. Soperator's own do not have it, so its health checks leave such a node alone.
OUR_PREFIX = "airflow:"
_OWNER = re.compile(r"[A-Za-z0-9._/@+-]+")
#: Slurm adds to a reason after `` : ``, such as that the node does not respond.
_OUR_REASON = re.compile(rf"(?:\[hardware_problem\] )?{OUR_PREFIX}({_OWNER.pattern})(?: ?: (.*))?", re.DOTALL)


@dataclass(frozen=True)
class DrainReason:
    """The reason of a drain by this provider, with its owner, who alone may undo it.

    >>> str(DrainReason("gpu-shifts/night", "lent to inference until 08:00"))
    'airflow:gpu-shifts/night: lent to inference until 08:00'
    """

    #: The DAG, schedule or shift that may undo it.
    owner: str
    why: str = ""

    def __post_init__(self) -> None:
        if not _OWNER.fullmatch(self.owner):
            raise ValueError(f"{self.owner!r} cannot own a drain: use letters, digits and . _ / @ + -")

    def __str__(self) -> str:
        return f"{OUR_PREFIX}{self.owner}" + (f": {self.why}" if self.why else "")

    @classmethod
    def parse(cls, reason: str) -> DrainReason | None:
        """Parse a reason, also one of a machine's replacement; None if it is not one of this provider."""
        found = _OUR_REASON.fullmatch(reason)
        return cls(found[1], found[2] or "") if found else None


def is_drained_by_us(node: Node, owner: str = "") -> bool:
    """True if this provider, or the given owner, has drained the node, for itself or to have its machine replaced."""
    reason = DrainReason.parse(node.reason)
    return node.state.has(NodeFlag.DRAIN) and reason is not None and owner in ("", reason.owner)


def is_ours(node: Node, owner: str = "") -> bool:
    """True if this provider, or the given owner, has drained the node for itself: Soperator does not end that."""
    return is_drained_by_us(node, owner) and node.reason.startswith(OUR_PREFIX)


def is_anothers(node: Node, owner: str) -> bool:
    """True if the node was drained by another owner; a drain that came with a power down has none."""
    return node.state.has(NodeFlag.DRAIN) and not node.is_going_off and not is_ours(node, owner)


def ends_by_itself(node: Node) -> bool:
    """True if others have drained the node, and undrain it once what they have drained it for is done."""
    known = explain(node.reason)
    is_theirs = node.state.has(NodeFlag.DRAIN) and not is_ours(node)
    is_undrained = known is not None and (known.takes_machine or known.undrained_by_it)
    return is_theirs and (node.is_rebooting or is_undrained)


def can_be_taken_over(node: Node) -> bool:
    """True if a drain that ends by itself goes on under another reason, and nothing waits for its own."""
    known = explain(node.reason)
    # Slurm ends the drain of a reboot itself, and Soperator finds the nodes of its update by their reason.
    return ends_by_itself(node) and known is not None and known.undrained_by_it and not node.is_rebooting


def loss_rank(node: Node, *, has_jobs: bool = False) -> int:
    """Rank of a node in the choice of nodes to power down: off, going off, idle, busy.

    ``has_jobs``: it has jobs that its state may not show yet.
    """
    return 0 if node.is_off else 1 if node.is_going_off else 3 if has_jobs or node.is_busy else 2


@dataclass(frozen=True)
class KnownReason:
    """A reason that Soperator or Slurm sets, and what happens to the node without an operator."""

    text: str
    #: The kind of finding that it is; empty if it is not a fault.
    kind: str
    meaning: str
    #: The machine is rebooted or replaced once the node has drained.
    takes_machine: bool = False
    #: The node comes back by itself once the cause is gone.
    heals: bool = False
    #: By this reason alone the node is undrained: once it has another one, it stays drained.
    undrained_by_it: bool = False


#: The reason of a reboot for a new Pod (``slurmAwareRollingUpdate``), also in the place of a drain's that was there.
ROLLING_UPDATE = "soperator rolling update"
_by_machine = partial(KnownReason, takes_machine=True, heals=True)
#: The first one whose text is in the reason counts.
KNOWN_REASONS = (
    _by_machine("Kill task failed", "reboot", "a process of a job could not be killed; Soperator reboots the machine"),
    _by_machine(
        "[compute_maintenance] node replacement process",
        "maintenance",
        "Soperator replaces the machine under the node once it has drained",
    ),
    _by_machine(
        "[compute_maintenance] node reboot process",
        "reboot",
        "Soperator reboots the machine under the node once it has drained",
    ),
    _by_machine("[compute_maintenance]", "maintenance", "Soperator maintains the machine under the node"),
    _by_machine(
        "[node_problem]",
        "node_problem",
        "a health check has failed; Soperator tests the node further or has its machine replaced",
    ),
    KnownReason(
        "[user_problem]",
        "user_problem",
        "a job has left something behind (processes on GPUs, a full disk, used memory); the check that has drained "
        "the node undrains it once that is gone",
        heals=True,
        undrained_by_it=True,
    ),
    _by_machine(
        "[hardware_problem]",
        "hardware_problem",
        "a health check has failed for good; Soperator has the machine replaced once the node has drained",
    ),
    KnownReason(
        "[software_problem]", "software_problem", "a check of the node's software has failed; it needs manual repair"
    ),
    KnownReason(ROLLING_UPDATE, "pod", "Soperator renews the node's pod", heals=True, undrained_by_it=True),
    KnownReason(
        RESUME_FAILED,
        "boot_failed",
        "the node did not boot in time: look at its pod and at the free capacity, then power it down or up again",
    ),
    KnownReason("POWER_DOWN_ASAP", "", "the node powers down once its jobs have ended", heals=True),
    KnownReason(
        "Not responding", "not_responding", "slurmd on the node has not answered for SlurmdTimeout", heals=True
    ),
    KnownReason("Prolog error", "software_problem", "the prolog has failed on the node; it needs manual repair"),
    KnownReason(
        "nvme_raid_health",
        "hardware_problem",
        "local disks of the node are missing; Soperator does not replace the machine by itself",
    ),
)


#: Bytes of a reason, which is kept with what else says whose it is.
_MOST_OF_REASON = 768
#: Texts on which Soperator acts wherever they stand in a drain's reason, in the order in which it looks for them.
ORDERS = (
    "Kill task failed",
    "[compute_maintenance] node replacement process",
    "[compute_maintenance] node reboot process",
    "[node_problem]",
    "[user_problem]",
    "[hardware_problem]",
)


def check_reason(why: str) -> None:
    """Raise ``ValueError`` for what can be no reason of a drain, or what Soperator would take for an order."""
    if not why.isprintable() or len(why.encode()) > _MOST_OF_REASON:
        raise ValueError(f"the reason {why!r} must be one printable line of at most {_MOST_OF_REASON} bytes")
    if order := next((text for text in ORDERS if text in why), None):
        raise ValueError(
            f"the reason {why!r} has {order!r} in it, on which Soperator reboots or replaces the machine of a drained "
            "node: say it in other words, or use ReplaceNodesOperator for another machine"
        )


def explain(reason: str) -> KnownReason | None:
    """The meaning of a node's reason; None for one that a person has set."""
    # Without accounting, Slurm up to 25.11 keeps the reason of a boot that failed, and adds later faults to it.
    now = reason.replace(f"{RESUME_FAILED} : ", "")
    return next((known for known in KNOWN_REASONS if known.text in now), None)


def is_faulty(node: Node, reason: str = "") -> bool:
    """True if the node's reason is a fault that Slurm or Soperator names, or the given reason of a check."""
    known = explain(node.reason)
    return bool(known and known.kind) or bool(reason and node.reason == reason)


#: States of nodes by their names. A node can be in several of them at once.
WORDS: dict[str, Callable[[Node], bool]] = {
    "usable": attrgetter("is_usable"),
    "up": attrgetter("is_up"),
    "off": attrgetter("is_off"),
    "idle": lambda node: node.is_usable and not node.is_busy,
    "busy": attrgetter("is_busy"),
    "drained": attrgetter("is_drained"),
    "draining": attrgetter("is_draining"),
    "booting": attrgetter("is_coming_up"),
    "going off": attrgetter("is_going_off"),
    "failed to boot": attrgetter("failed_to_resume"),
    "down": lambda node: node.state.base is NodeBase.DOWN,
    "failing": lambda node: node.state.has(NodeFlag.FAIL),
    # A job of other nodes has the whole switch or network block.
    "blocked": lambda node: node.state.has(NodeFlag.BLOCKED),
    "not responding": lambda node: node.state.has(NodeFlag.NOT_RESPONDING) and not node.is_coming_up,
    "reserved": lambda node: node.state.has(NodeFlag.RESERVED, NodeFlag.MAINTENANCE),
}


#: Slurm's words for some of these states.
_OF_SLURM = {
    "powered down": "off",
    "powering up": "booting",
    "powering down": "going off",
    "allocated": "busy",
    "fail": "failing",
}


def word(said: object) -> str:
    """The state of this name; ``ValueError`` with a close match if there is none.

    >>> word("Going-off"), word("POWERED_DOWN")
    ('going off', 'off')
    >>> word("drianed")
    Traceback (most recent call last):
    ValueError: 'drianed' is not a node state: did you mean 'drained'?
    >>> word(["drained"])
    Traceback (most recent call last):
    ValueError: ['drained'] is not a node state: did you mean 'drained'?
    """
    plain = " ".join(str(said).lower().replace("_", " ").replace("-", " ").split())
    meant = _OF_SLURM.get(plain, plain)
    if meant in WORDS:
        return meant
    raise ValueError(f"{said!r} is not a node state: {name_remedy(plain, [*WORDS, *_OF_SLURM])}")


def in_lines(said: Mapping[str, str]) -> tuple[str, ...]:
    """Lines about nodes; nodes with the same text share one.

    >>> in_lines({"worker-0": "boots", "worker-2": "has jobs", "worker-1": "boots"})
    ('each of worker-[0-1] boots', 'worker-2 has jobs')
    """
    nodes: dict[str, list[str]] = {}
    for name, what in said.items():
        nodes.setdefault(what, []).append(name)
    several = {what for what, names in nodes.items() if len(names) > 1 and _SINGULAR.match(what)}
    return tuple(f"{'each of ' * (what in several)}{hostlist.fold(names)} {what}" for what, names in nodes.items())


#: The verb for one node at the beginning of a text, such as `is` or `boots`.
_SINGULAR = re.compile(r"[a-z]+s( |$)")


def check_match(match: str | int) -> None:
    """Raise unless it is ``all``, ``any`` or a number of nodes."""
    if match not in ("all", "any") and (isinstance(match, (str, bool)) or match < 1):
        raise ValueError(f"match must be 'all', 'any' or a number of nodes, got {match!r}")


def chosen(nodes: Iterable[Node], names: Sequence[str], partition: str) -> list[Node]:
    """Nodes by name, else all of a partition, else all. Raises if there are none."""
    known = {node.name: node for node in nodes}
    if names:
        refuse_unknown(names, known)
        return [known[name] for name in names]
    meant = [node for node in known.values() if partition in ("", *node.partitions)]
    if not meant:
        raise UnknownPartition(f"no node is in partition {partition}")
    return meant


def refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    """Raise if there is no such node, with the nearest name."""
    missing = [name for name in dict.fromkeys(names) if name not in known]
    if not missing:
        return
    remedy = name_remedy(missing[0], known, f"there are {hostlist.fold(known)}" if known else "")
    raise UnknownNode(f"there is no node {hostlist.fold(missing)}", remedy=remedy)
