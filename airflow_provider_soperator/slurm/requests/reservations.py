"""Requests about reservations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.errors import InvalidRequest, NotPermitted, UnknownReservation, UnreadableAnswer
from airflow_provider_soperator.slurm.notations import EPOCHS, format_time, parse_time
from airflow_provider_soperator.slurm.requests.commands import (
    Command,
    CommandOutput,
    Order,
    Request,
    clean,
    free_text,
    listed,
    plain_word,
)
from airflow_provider_soperator.slurm.requests.nodes import fold_names

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
        return tuple(_reservation(one.rstrip("\n")) for one in shown if one.startswith("ReservationName="))


def _reservation(text: str) -> Reservation:
    head = _HEAD.match(text)
    if not head:
        raise UnreadableAnswer(f"expected a reservation, got {text[:200]!r}", "scontrol")
    # The name, which is first, and the comment, which is last, are free text.
    fields, _, comment = text[head.start(2) :].partition(" Comment=")
    said = dict(word.partition("=")[::2] for word in fields.split())
    return Reservation(
        name=head[1],
        start=parse_time(said["StartTime"]),
        end=parse_time(said["EndTime"]),
        nodelist=clean(said.get("Nodes", "")),
        flags=frozenset(listed(said.get("Flags", ""))),
        users=listed(said.get("Users", "")),
        accounts=listed(said.get("Accounts", "")),
        partition=clean(said.get("PartitionName", "")),
        is_active=said.get("State") == "ACTIVE",
        comment=comment,
    )


@dataclass(frozen=True, kw_only=True)
class CreateReservation(Request[str]):
    """Reserve nodes for a time; returns the reservation's name.

    >>> from datetime import timezone
    >>> at = datetime(2026, 11, 21, 20, tzinfo=timezone.utc)
    >>> CreateReservation(name="night", nodes=("worker-0",), start=at, end=None, users=("root",)).command().argv[3:6]
    ('ReservationName=night', 'Nodes=worker-0', 'StartTime=uts1795291200')
    """

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
            raise InvalidRequest("a reservation needs nodes")
        if not self.users and not self.accounts:
            raise InvalidRequest("a reservation needs users or accounts that may use it")
        words = [f"ReservationName={plain_word('a reservation', self.name)}", *_changes(self)]
        if self.end is None:
            words.append("Duration=UNLIMITED")
        if self.partition:
            words.append(f"PartitionName={plain_word('a partition', self.partition)}")
        return Command(("scontrol", "create", "reservation", *words))

    def read(self, answer: CommandOutput) -> str:
        try:
            self.check(answer)
        except NotPermitted as error:
            # slurmctld has the same message for both.
            remedy = f"{error.remedy}; or there is no user {self.users}"
            raise NotPermitted(error.said, error.command, remedy) from None
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
        words = _changes(self)
        if not words:
            raise InvalidRequest("nothing to change")
        return Command(("scontrol", "update", f"ReservationName={plain_word('a reservation', self.name)}", *words))


@dataclass(frozen=True)
class DeleteReservation(Request[bool]):
    """Delete a reservation; returns False if there was none."""

    name: str

    def command(self) -> Command:
        return Command(("scontrol", "delete", f"ReservationName={plain_word('a reservation', self.name)}"))

    def read(self, answer: CommandOutput) -> bool:
        try:
            self.check(answer)
        except UnknownReservation:
            return False
        return True


def _changes(of: CreateReservation | UpdateReservation) -> list[str]:
    """The fields that both can set, as words of ``scontrol``."""
    if of.start and of.end and of.end <= of.start:
        raise InvalidRequest(f"a reservation cannot end ({of.end}) before it starts ({of.start})")
    for flag in of.flags:
        if not _FLAG.fullmatch(flag):
            raise InvalidRequest(f"{flag!r} is not a reservation flag")
    values = {
        "Nodes": fold_names(of.nodes) if of.nodes else "",
        "StartTime": format_time(of.start) if of.start else "",
        "EndTime": format_time(of.end) if of.end else "",
        "Users": ",".join(plain_word("a user", user) for user in of.users),
        "Accounts": ",".join(plain_word("an account", account) for account in of.accounts),
        "Flags": ",".join(of.flags),
        "Comment": free_text("a comment", of.comment),
    }
    return [f"{name}={value}" for name, value in values.items() if value]
