"""Requests about nodes and partitions."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Machine, Node, Partition
from airflow_provider_soperator.slurm.errors import InvalidRequest, UnknownNode
from airflow_provider_soperator.slurm.notations import EPOCHS, parse_duration, parse_time
from airflow_provider_soperator.slurm.requests.commands import (
    MEGABYTE,
    Columns,
    Command,
    CommandOutput,
    Order,
    Request,
    Table,
    clean,
    free_text,
    listed,
    number,
    read_row,
    table_of,
)
from airflow_provider_soperator.slurm.states import NodeState


def _cpu_counts(text: str) -> list[int]:
    """The numbers of allocated, idle, other and all CPUs."""
    return [number(count) for count in text.split("/")]


#: The columns have the names that 22.05 and 26.05 share.
_COLUMNS: Columns = {
    "name": ("NodeList", str),
    "state": ("StateComplete", NodeState.parse),
    "partitions": ("PartitionName", clean),
    "reason": ("Reason", clean),
    "reason_user": ("User", lambda text: "" if text == "Unknown" else text),
    "reason_since": ("TimeStamp", parse_time),
    "comment": ("Comment", clean),
    "extra": ("Extra", clean),
    "features": ("Features", listed),
    "gres": ("Gres", clean),
    "gres_used": ("GresUsed", clean),
    "cpus": ("CPUsState", _cpu_counts),
    "memory": ("Memory", number),
    "memory_used": ("AllocMem", number),
    "address": ("NodeAddr", str),
    "version": ("Version", clean),
}


def fold_names(names: Iterable[str]) -> str:
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
    table: Table = field(default_factory=partial(table_of, _COLUMNS), compare=False, repr=False)

    def command(self) -> Command:
        chosen = [] if self.names is None else [f"--nodes={fold_names(self.names)}"]
        return Command(("sinfo", "--Node", "--all", "--exact", *chosen, *self.table.format_words()), environment=EPOCHS)

    def read(self, answer: CommandOutput) -> tuple[Node, ...]:
        rows: dict[str, tuple[str, ...]] = {}
        partitions: dict[str, list[str]] = {}
        for row in self.table.rows(self.check(answer).stdout):
            # A node has a row in each of its partitions.
            rows.setdefault(row[0], row)
            partitions.setdefault(row[0], []).append(row[2])
        if self.names is not None:
            missing = [name for name in hostlist.expand(fold_names(self.names)) if name not in rows]
            if missing:
                raise UnknownNode(f"there is no node {hostlist.fold(missing)}", "sinfo")
        return tuple(_node(row, partitions[name]) for name, row in rows.items())


def _node(row: tuple[str, ...], partitions: list[str]) -> Node:
    said = read_row(_COLUMNS, row)
    cpus_used, *_, cpus = said["cpus"]
    said |= {"cpus": cpus, "cpus_used": cpus_used, "partitions": tuple(sorted(filter(None, map(clean, partitions))))}
    # The user stays after the reason has been removed.
    return Node(**said if said["reason"] else {**said, "reason_user": ""})


#: A node in ``scontrol show node``: each free text is on a line of its own, after its name.
_SHOWN_NODE = re.compile(r"^NodeName=(\S+)(.*?)(?=^NodeName=|\Z)", re.MULTILINE | re.DOTALL)
_INSTANCE = re.compile(r"^ +InstanceId=(\S+)", re.MULTILINE)
_BOOTED = re.compile(r"^ +BootTime=(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class ListMachines(Request[tuple[Machine, ...]]):
    """List the machines under nodes. Slurm 26.05 does not learn the instance of a node that it has powered up."""

    names: tuple[str, ...]

    def command(self) -> Command:
        return Command(
            ("scontrol", "show", "node", fold_names(self.names)), environment=EPOCHS, max_output=64 * MEGABYTE
        )

    def read(self, answer: CommandOutput) -> tuple[Machine, ...]:
        shown = _SHOWN_NODE.findall(self.check(answer).text)
        return tuple(
            Machine(node=name, instance=_only(_INSTANCE, said), since=parse_time(_only(_BOOTED, said)))
            for name, said in shown
        )


def _only(pattern: re.Pattern[str], said: str) -> str:
    found = pattern.search(said)
    return clean(found[1]) if found else ""


class PowerDownMode(str, Enum):
    """The moment at which a node powers down."""

    #: When it is idle; jobs may start on it before that.
    IDLE = "power_down"
    #: When its current jobs have ended; no others start.
    ASAP = "power_down_asap"
    #: At once; its jobs are requeued or cancelled.
    FORCE = "power_down_force"


@dataclass(frozen=True)
class NodeOrder(Order):
    """An update of the state of nodes.

    ``scontrol power`` would be shorter, but 22.05 does not have it, and 24.11 refuses a reason with some of its forms;
    the update does the same on all.
    """

    names: tuple[str, ...]

    @abstractmethod
    def change(self) -> tuple[str, str]:
        """The state as ``scontrol update`` takes it, and the reason or nothing."""

    def command(self) -> Command:
        state, reason = self.change()
        # scontrol removes the outer quotation marks of a reason.
        because = [f'Reason="{free_text("a reason", reason)}"'] if reason else []
        return Command(("scontrol", "update", f"NodeName={fold_names(self.names)}", f"State={state}", *because))


class PowerUp(NodeOrder):
    """Power nodes up. slurmctld silently ignores it for a node that is up or is powering down.

    >>> PowerUp(("worker-0", "worker-2")).command().argv
    ('scontrol', 'update', 'NodeName=worker-[0,2]', 'State=power_up')
    """

    def change(self) -> tuple[str, str]:
        return "power_up", ""


@dataclass(frozen=True)
class PowerDown(NodeOrder):
    """Power nodes down. It clears a drain, and restarts the cycle of a node that is off already.

    >>> PowerDown(("worker-0",), PowerDownMode.ASAP, "lent").command().argv[3:]
    ('State=power_down_asap', 'Reason="lent"')
    """

    mode: PowerDownMode = PowerDownMode.ASAP
    reason: str = ""

    def again(self) -> None:
        """Not repeatable: a node that is off by now would restart its cycle."""

    def change(self) -> tuple[str, str]:
        return self.mode.value, self.reason


@dataclass(frozen=True)
class Drain(NodeOrder):
    """Drain nodes: no new job starts on them."""

    reason: str

    def change(self) -> tuple[str, str]:
        if not self.reason:
            raise InvalidRequest("a drain needs a reason")
        return "drain", self.reason


class Undrain(NodeOrder):
    """Undrain nodes, without any other change."""

    def change(self) -> tuple[str, str]:
        return "undrain", ""


class ResumeNodes(NodeOrder):
    """Return nodes to service, whether they are drained, down or failed.

    A node that powers down counts as powered down at once, before its machine is gone.
    """

    def change(self) -> tuple[str, str]:
        return "resume", ""


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
