"""Requests about nodes and partitions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Machine, Node, Partition
from airflow_provider_soperator.slurm.errors import InvalidRequest, UnknownNode
from airflow_provider_soperator.slurm.notations import EPOCHS, parse_duration, parse_time
from airflow_provider_soperator.slurm.requests.commands import (
    MEGABYTE,
    Command,
    CommandOutput,
    Request,
    Table,
    clean,
    free_text,
    listed,
    number,
    quoted,
)
from airflow_provider_soperator.slurm.states import NodeState

#: Names of columns that 22.05 and 26.05 share.
_COLUMNS = (
    "NodeList",
    "StateComplete",
    "PartitionName",
    "Reason",
    "User",
    "TimeStamp",
    "Comment",
    "Extra",
    "Features",
    "Gres",
    "GresUsed",
    "CPUsState",
    "Memory",
    "AllocMem",
    "NodeAddr",
    "Version",
)


def node_table() -> Table:
    return Table(_COLUMNS)


def _fold(names: Iterable[str]) -> str:
    """Nodes as one word; ``InvalidRequest`` if there are none, or a name is invalid."""
    try:
        folded = hostlist.fold(names)
    except hostlist.HostlistError as error:
        raise InvalidRequest(str(error)) from None
    if not folded:
        raise InvalidRequest("no node is given")
    return folded


@dataclass(frozen=True)
class ListNodes(Request[tuple[Node, ...]]):
    """List nodes by name, or all. ``UnknownNode`` if one does not exist.

    >>> ListNodes(("worker-0", "worker-1")).command().argv[:5]
    ('sinfo', '--Node', '--all', '--exact', '--nodes=worker-[0-1]')
    """

    names: tuple[str, ...] | None = None
    table: Table = field(default_factory=node_table, compare=False, repr=False)

    def command(self) -> Command:
        chosen = [] if self.names is None else [f"--nodes={_fold(self.names)}"]
        return Command(("sinfo", "--Node", "--all", "--exact", *chosen, *self.table.format_words()), environment=EPOCHS)

    def read(self, answer: CommandOutput) -> tuple[Node, ...]:
        rows: dict[str, tuple[str, ...]] = {}
        partitions: dict[str, list[str]] = {}
        for row in self.table.rows(self.check(answer).stdout):
            # A node has a row in each of its partitions.
            rows.setdefault(row[0], row)
            partitions.setdefault(row[0], []).append(row[2])
        if self.names is not None:
            missing = [name for name in hostlist.expand(_fold(self.names)) if name not in rows]
            if missing:
                raise UnknownNode(f"there is no node {hostlist.fold(missing)}", "sinfo")
        return tuple(_node(row, partitions[name]) for name, row in rows.items())


def _node(row: tuple[str, ...], partitions: list[str]) -> Node:
    (name, state, _, reason, user, since, comment, extra, features, gres, used, cpus, memory, memory_used) = row[:14]
    address, version = row[14:]
    # Allocated, idle, other, total.
    cpu_counts = cpus.split("/")
    return Node(
        name=name,
        state=NodeState.parse(state),
        partitions=tuple(sorted(filter(None, map(clean, partitions)))),
        reason=clean(reason),
        # The user stays after the reason has been removed.
        reason_user=user if clean(reason) and user != "Unknown" else "",
        reason_since=parse_time(since),
        comment=clean(comment),
        extra=clean(extra),
        features=listed(features),
        gres=clean(gres),
        gres_used=clean(used),
        cpus=number(cpu_counts[-1]),
        cpus_used=number(cpu_counts[0]),
        memory=number(memory),
        memory_used=number(memory_used),
        address=address,
        version=clean(version),
    )


#: A node in ``scontrol show node``: each free text is on a line of its own, after its name.
_SHOWN_NODE = re.compile(r"^NodeName=(\S+)(.*?)(?=^NodeName=|\Z)", re.MULTILINE | re.DOTALL)
_INSTANCE = re.compile(r"^ +InstanceId=(\S+)", re.MULTILINE)
_BOOTED = re.compile(r"^ +BootTime=(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class ListMachines(Request[tuple[Machine, ...]]):
    """List the machines under nodes. Slurm 26.05 does not learn the instance of a node that it has powered up."""

    names: tuple[str, ...]

    def command(self) -> Command:
        return Command(("scontrol", "show", "node", _fold(self.names)), environment=EPOCHS, max_output=64 * MEGABYTE)

    def read(self, answer: CommandOutput) -> tuple[Machine, ...]:
        shown = _SHOWN_NODE.findall(self.check(answer).text)
        return tuple(
            Machine(node=name, instance=_only(_INSTANCE, said), since=parse_time(_only(_BOOTED, said)))
            for name, said in shown
        )


def _only(pattern: re.Pattern[str], said: str) -> str:
    found = pattern.search(said)
    return clean(found[1]) if found else ""


@dataclass(frozen=True)
class NodeDetail(Request[str]):
    """Get slurmctld's full record of a node, as text for people."""

    name: str

    def command(self) -> Command:
        return Command(("scontrol", "show", "node", _fold([self.name])), max_output=4 * MEGABYTE)

    def read(self, answer: CommandOutput) -> str:
        return self.check(answer).text


class PowerDownMode(str, Enum):
    """The moment at which a node powers down."""

    #: When it is idle; jobs may start on it before that.
    IDLE = "power_down"
    #: When its current jobs have ended; no others start.
    ASAP = "power_down_asap"
    #: At once; its jobs are requeued or cancelled.
    FORCE = "power_down_force"


@dataclass(frozen=True)
class _NodeOrder(Request[None]):
    """An update of the state of nodes.

    ``scontrol power`` would be shorter, but 22.05 does not have it, and 24.11 refuses a reason with some of its forms;
    the update does the same on all.
    """

    names: tuple[str, ...]

    def words(self) -> tuple[str, ...]:
        raise NotImplementedError

    def command(self) -> Command:
        return Command(("scontrol", "update", f"NodeName={_fold(self.names)}", *self.words()))

    def read(self, answer: CommandOutput) -> None:
        self.check(answer)


class PowerUp(_NodeOrder):
    """Power nodes up. slurmctld silently ignores it for a node that is up or is powering down.

    >>> PowerUp(("worker-0", "worker-2")).command().argv
    ('scontrol', 'update', 'NodeName=worker-[0,2]', 'State=power_up')
    """

    def words(self) -> tuple[str, ...]:
        return ("State=power_up",)


@dataclass(frozen=True)
class PowerDown(_NodeOrder):
    """Power nodes down. It clears a drain, and restarts the cycle of a node that is off already.

    >>> PowerDown(("worker-0",), PowerDownMode.ASAP, "lent").command().argv[3:]
    ('State=power_down_asap', 'Reason="lent"')
    """

    mode: PowerDownMode = PowerDownMode.ASAP
    reason: str = ""

    def again(self) -> None:
        """Not repeatable: a node that is off by now would restart its cycle."""

    def words(self) -> tuple[str, ...]:
        return (f"State={self.mode.value}", *([f"Reason={quoted('a reason', self.reason)}"] if self.reason else []))


@dataclass(frozen=True)
class Drain(_NodeOrder):
    """Drain nodes: no new job starts on them."""

    reason: str

    def words(self) -> tuple[str, ...]:
        if not self.reason:
            raise InvalidRequest("a drain needs a reason")
        return ("State=drain", f"Reason={quoted('a reason', self.reason)}")


class Undrain(_NodeOrder):
    """Undrain nodes, without any other change."""

    def words(self) -> tuple[str, ...]:
        return ("State=undrain",)


class ResumeNodes(_NodeOrder):
    """Return nodes to service, whether they are drained, down or failed.

    A node that powers down counts as powered down at once, before its machine is gone.
    """

    def words(self) -> tuple[str, ...]:
        return ("State=resume",)


@dataclass(frozen=True)
class CommentNodes(_NodeOrder):
    """Set the comment of nodes."""

    comment: str

    def words(self) -> tuple[str, ...]:
        return (f"Comment={free_text('a comment', self.comment)}",)


@dataclass(frozen=True)
class ListPartitions(Request[tuple[Partition, ...]]):
    """List all partitions, including hidden ones."""

    def command(self) -> Command:
        return Command(("scontrol", "--all", "--oneliner", "show", "partition"))

    def read(self, answer: CommandOutput) -> tuple[Partition, ...]:
        lines = self.check(answer).text.splitlines()
        return tuple(_partition(line) for line in lines if line.startswith("PartitionName="))


def _partition(line: str) -> Partition:
    # No field is free text.
    said = dict(word.partition("=")[::2] for word in line.split())
    return Partition(
        name=said["PartitionName"],
        state=said.get("State", "UP"),
        is_default=said.get("Default") == "YES",
        is_hidden=said.get("Hidden") == "YES",
        nodelist=clean(said.get("Nodes", "")),
        total_nodes=number(said.get("TotalNodes", "")),
        max_time=parse_duration(said.get("MaxTime", "UNLIMITED")),
        default_time=parse_duration(said.get("DefaultTime", "NONE")),
        priority_tier=number(said.get("PriorityTier", "")),
    )
