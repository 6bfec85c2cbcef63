"""States of nodes in people's words, and how many of some nodes are in one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.errors import UnknownPartition
from airflow_provider_soperator.slurm.nodes import (
    failed_to_resume,
    is_busy,
    is_coming_up,
    is_drained,
    is_draining,
    is_going_off,
    is_off,
    is_up,
    is_usable,
)
from airflow_provider_soperator.slurm.power import refuse_unknown
from airflow_provider_soperator.slurm.records import Node
from airflow_provider_soperator.slurm.states import NodeBase, NodeFlag

#: What each word means. A node can be in several of these states at once.
WORDS: dict[str, Callable[[Node], bool]] = {
    "usable": is_usable,
    "up": is_up,
    "off": is_off,
    "idle": lambda node: is_usable(node) and not is_busy(node),
    "busy": is_busy,
    "drained": is_drained,
    "draining": is_draining,
    "booting": is_coming_up,
    "going off": is_going_off,
    "failed to boot": failed_to_resume,
    "down": lambda node: node.state.base is NodeBase.DOWN,
    "not responding": lambda node: node.state.has(NodeFlag.NOT_RESPONDING) and not is_coming_up(node),
    "reserved": lambda node: node.state.has(NodeFlag.RESERVED, NodeFlag.MAINTENANCE),
}
#: What else people call them.
_ALIASES = {
    "ready": "usable",
    "powered down": "off",
    "powered off": "off",
    "on": "up",
    "free": "idle",
    "allocated": "busy",
    "powering up": "booting",
    "powering down": "going off",
    "going down": "going off",
    "resume failed": "failed to boot",
}


def word(said: str) -> str:
    """The state that is meant; ``ValueError`` with one that may be, if there is none of that name.

    >>> word("Powered_Down"), word("going-off")
    ('off', 'going off')
    >>> word("drianed")
    Traceback (most recent call last):
    ValueError: 'drianed' is no state of nodes: did you mean 'drained'?
    """
    plain = " ".join(said.lower().replace("_", " ").replace("-", " ").split())
    meant = _ALIASES.get(plain, plain)
    if meant in WORDS:
        return meant
    near = difflib.get_close_matches(plain, [*WORDS, *_ALIASES], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(WORDS)}"
    raise ValueError(f"{said!r} is no state of nodes: {hint}")


def in_lines(said: Mapping[str, str]) -> tuple[str, ...]:
    """What is said of nodes, by name, with a line for each thing that is said.

    >>> in_lines({"worker-0": "boots", "worker-2": "has jobs", "worker-1": "boots"})
    ('worker-[0-1] boots', 'worker-2 has jobs')
    """
    nodes: dict[str, list[str]] = {}
    for name, what in said.items():
        nodes.setdefault(what, []).append(name)
    return tuple(f"{hostlist.fold(names)} {what}" for what, names in nodes.items())


def check_how(how: str | int) -> None:
    """Raise unless it is ``all``, ``any`` or a number of nodes."""
    if how not in ("all", "any") and (isinstance(how, (str, bool)) or how < 1):
        raise ValueError(f"how={how!r} is neither 'all' nor 'any' nor a number of nodes")


def chosen(nodes: Iterable[Node], names: Sequence[str], partition: str) -> list[Node]:
    """Those that are meant: by name, or else all of a partition, or just all. Raises if there are none such."""
    known = {node.name: node for node in nodes}
    if names:
        refuse_unknown(names, known)
        return [known[name] for name in names]
    meant = [node for node in known.values() if partition in ("", *node.partitions)]
    if not meant:
        raise UnknownPartition(f"no node is in a partition {partition}")
    return meant
