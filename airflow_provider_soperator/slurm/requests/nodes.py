"""Requests about nodes, partitions and reservations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import ClassVar

from airflow_provider_soperator.slurm import errors, hostlist, notations
from airflow_provider_soperator.slurm.cluster_records import Node, Partition, Reservation
from airflow_provider_soperator.slurm.notations import EPOCHS
from airflow_provider_soperator.slurm.requests import commands
from airflow_provider_soperator.slurm.requests.commands import Command, CommandOutput, Order, Request
from airflow_provider_soperator.slurm.states import NodeState


def fold_names(names: Iterable[str]) -> str:
    """Nodes as one word; ``InvalidRequest`` if there are none, or a name is invalid."""
    try:
        folded = hostlist.fold(names)
    except hostlist.HostlistError as error:
        raise errors.InvalidRequest(str(error)) from None
    if not folded:
        raise errors.InvalidRequest("no node is given")
    return folded


@dataclass(frozen=True)
class ListNodes(Request[tuple[Node, ...]]):
    """List nodes by name, or all. ``UnknownNode`` if one does not exist.

    ``sinfo --Node`` compares each node with all before it: 4 s for 10,000 nodes, against 0.04 s here.
    """

    names: tuple[str, ...] | None = None

    def command(self) -> Command:
        chosen = [] if self.names is None else [fold_names(self.names)]
        return Command(("scontrol", "--all", "--details", "show", "node", *chosen), environment=EPOCHS)

    def read(self, answer: CommandOutput) -> tuple[Node, ...]:
        if answer.status and (missing := _NOT_FOUND.findall(answer.text)):
            raise errors.UnknownNode(f"there is no node {hostlist.fold(missing)}", "scontrol")
        return tuple(map(_node, _shown(self.check(answer).text)))


_NOT_FOUND = re.compile(r"^Node (\S+) not found$", re.MULTILINE)
_NAME = "NodeName="
#: Lines that are one free text; further lines of each are not those of a reason.
_TEXTS = frozenset({"Reason", "Comment", "Extra"})
#: Lines that are read, by their first fields. What else they begin with depends on the node.
_LINES = _TEXTS | {
    *("CPUAlloc", "AvailableFeatures", "Gres", "GresUsed", "RealMemory"),
    *("State", "Partitions", "BootTime", "InstanceId"),
}
#: Who gave a reason and when, after the first of its lines.
_GIVEN = re.compile(r" \[([^@\[\]]*)@([^@\[\]]*)\]$")


def _shown(text: str) -> Iterator[dict[str, str]]:
    """The fields of each node that ``scontrol show node`` prints."""
    said: dict[str, str] = {}
    last = ""
    for line in text.split("\n"):
        if line.startswith(_NAME):
            if said:
                yield said
            said, last = {"NodeName": line.split(" ", 1)[0].removeprefix(_NAME)}, ""
            continue
        field = line[3 : line.find("=")]
        if field in _TEXTS:
            last = field
            said[field] = line[len(field) + 4 :]
        elif field in _LINES:
            last = ""
            for word in line.split():
                name, _, said[name] = word.partition("=")
        elif last and line and not _FIELD.match(line):
            # A text of several lines.
            said[last] += f"\n{line.removeprefix(_INDENT)}"
    if said:
        yield said


_FIELD = re.compile(r"   [A-Z][A-Za-z_]*=")
#: Before further lines of a reason.
_INDENT = " " * 10


def _node(said: Mapping[str, str]) -> Node:
    get = said.get
    first, *more = get("Reason", "").split("\n")
    given = _GIVEN.search(first)
    reason = "\n".join([first[: given.start()] if given else first, *more])
    return Node(
        name=said["NodeName"],
        state=NodeState.parse(said["State"]),
        partitions=tuple(sorted(notations.listed(get("Partitions", "")))),
        reason=notations.clean(reason),
        reason_user=given[1] if given else "",
        reason_since=notations.parse_time(given[2]) if given else None,
        comment=notations.clean(get("Comment", "")),
        features=notations.listed(get("AvailableFeatures", "")),
        gres=notations.clean(get("Gres", "")),
        gres_used=notations.clean(get("GresUsed", "")),
        cpus=notations.number(get("CPUTot", "")),
        memory=notations.number(get("RealMemory", "")),
        instance=notations.clean(get("InstanceId", "")),
        booted_at=notations.parse_time(get("BootTime", "")),
    )


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
    #: As ``scontrol update`` takes it.
    state: ClassVar[str]

    def change(self) -> tuple[str, str]:
        """The state, and the reason or nothing."""
        return self.state, ""

    def command(self) -> Command:
        state, reason = self.change()
        # scontrol removes the outer quotation marks of a reason.
        because = [f'Reason="{commands.free_text("a reason", reason)}"'] if reason else []
        return Command(("scontrol", "update", f"NodeName={fold_names(self.names)}", f"State={state}", *because))


class PowerUp(NodeOrder):
    """Power nodes up. slurmctld silently ignores it for a node that is up or is powering down."""

    state = "power_up"


@dataclass(frozen=True)
class PowerDown(NodeOrder):
    """Power nodes down. It clears a drain, and restarts the cycle of a node that is off already."""

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
            raise errors.InvalidRequest("a drain needs a reason")
        return "drain", self.reason


@dataclass(frozen=True)
class Undrain(NodeOrder):
    """Undrain nodes, without any other change."""

    #: Slurm clears it with the drain, but not of a node that has jobs, and up to 25.11 not without accounting: a later
    #: drain by slurmctld, which keeps a reason that is there, would be taken for this provider's.
    reason: str = "undrained by airflow"

    def change(self) -> tuple[str, str]:
        return "undrain", self.reason


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
        nodelist=notations.clean(said.get("Nodes", "")),
        has_suspend_time=said.get("SuspendTime", "").isdecimal(),
    )


_HEAD = re.compile(r"ReservationName=(.*?) (StartTime=\S+ EndTime=\S+ Duration=.*)")
_FLAG = re.compile(r"[+-]?[A-Za-z_]+(=[0-9:+-]+)?")
#: Blocks jobs that would run into the reservation, and ignores running ones and other reservations. With MAINT in the
#: place of OVERLAP the nodes would count as planned down in accounting, and as down for health checks.
HANDOVER_FLAGS = ("OVERLAP", "IGNORE_JOBS")


@dataclass(frozen=True)
class ListReservations(Request[tuple[Reservation, ...]]):
    """List all reservations."""

    def command(self) -> Command:
        return Command(("scontrol", "--all", "--oneliner", "show", "reservation"), environment=EPOCHS)

    def read(self, answer: CommandOutput) -> tuple[Reservation, ...]:
        # A comment may have several lines.
        shown = re.split(r"^(?=ReservationName=)", self.check(answer).text, flags=re.MULTILINE)
        return tuple(_read_reservation(one.rstrip("\n")) for one in shown if one.startswith("ReservationName="))


def _read_reservation(text: str) -> Reservation:
    head = _HEAD.match(text)
    if not head:
        raise errors.UnreadableAnswer(f"expected a reservation, got {text[:200]!r}", "scontrol")
    # The name, which is first, and the comment, which is last, are free text.
    fields, _, comment = text[head.start(2) :].partition(" Comment=")
    said = dict(word.partition("=")[::2] for word in fields.split())
    return Reservation(
        name=head[1],
        start=notations.parse_time(said["StartTime"]),
        end=notations.parse_time(said["EndTime"]),
        nodelist=notations.clean(said.get("Nodes", "")),
        flags=frozenset(notations.listed(said.get("Flags", ""))),
        users=notations.listed(said.get("Users", "")),
        accounts=notations.listed(said.get("Accounts", "")),
        is_active=said.get("State") == "ACTIVE",
        comment=comment,
    )


@dataclass(frozen=True, kw_only=True)
class CreateReservation(Request[str]):
    """Reserve nodes for a time; returns the reservation's name."""

    name: str
    nodes: tuple[str, ...]
    start: datetime
    #: None: as long as Slurm allows, which is a year.
    end: datetime | None
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    flags: tuple[str, ...] = HANDOVER_FLAGS
    partition: str = ""
    comment: str = ""

    def again(self) -> None:
        """Not repeatable: Slurm rejects a second reservation of the name; list them instead."""

    def command(self) -> Command:
        if not self.nodes:
            raise errors.InvalidRequest("a reservation needs nodes")
        if not self.users and not self.accounts:
            raise errors.InvalidRequest("a reservation needs users or accounts that may use it")
        words = [f"ReservationName={commands.plain_word('a reservation', self.name)}", *_reservation_words(self)]
        if self.end is None:
            words.append("Duration=UNLIMITED")
        if self.partition:
            words.append(f"PartitionName={commands.plain_word('a partition', self.partition)}")
        return Command(("scontrol", "create", "reservation", *words))

    def read(self, answer: CommandOutput) -> str:
        try:
            self.check(answer)
        except errors.NotPermitted as error:
            # slurmctld has the same message for both.
            remedy = f"{error.remedy}; or there is no user {self.users}"
            raise errors.NotPermitted(error.said, error.command, remedy) from None
        return self.name


@dataclass(frozen=True, kw_only=True)
class UpdateReservation(Order):
    """Change the given fields of a reservation."""

    name: str
    nodes: tuple[str, ...] = ()
    start: datetime | None = None
    end: datetime | None = None
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    #: ``+NAME`` and ``-NAME`` add and remove one.
    flags: tuple[str, ...] = ()
    comment: str = ""

    def command(self) -> Command:
        words = _reservation_words(self)
        if not words:
            raise errors.InvalidRequest("nothing to change")
        name = commands.plain_word("a reservation", self.name)
        return Command(("scontrol", "update", f"ReservationName={name}", *words))


@dataclass(frozen=True)
class DeleteReservation(Request[bool]):
    """Delete a reservation; returns False if there was none."""

    name: str

    def command(self) -> Command:
        return Command(("scontrol", "delete", f"ReservationName={commands.plain_word('a reservation', self.name)}"))

    def read(self, answer: CommandOutput) -> bool:
        try:
            self.check(answer)
        except errors.UnknownReservation:
            return False
        return True


def _reservation_words(of: CreateReservation | UpdateReservation) -> list[str]:
    """The fields that both can set, as words of ``scontrol``."""
    if of.start and of.end and of.end <= of.start:
        raise errors.InvalidRequest(f"a reservation cannot end ({of.end}) before it starts ({of.start})")
    for flag in of.flags:
        if not _FLAG.fullmatch(flag):
            raise errors.InvalidRequest(f"{flag!r} is not a reservation flag")
    values = {
        "Nodes": fold_names(of.nodes) if of.nodes else "",
        "StartTime": notations.format_time(of.start) if of.start else "",
        "EndTime": notations.format_time(of.end) if of.end else "",
        "Users": ",".join(commands.plain_word("a user", user) for user in of.users),
        "Accounts": ",".join(commands.plain_word("an account", account) for account in of.accounts),
        "Flags": ",".join(of.flags),
        "Comment": commands.free_text("a comment", of.comment),
    }
    return [f"{name}={value}" for name, value in values.items() if value]
