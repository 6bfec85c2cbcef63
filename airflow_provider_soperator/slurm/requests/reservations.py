"""Requests about reservations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.errors import InvalidRequest, NotPermitted, UnknownReservation, UnreadableAnswer
from airflow_provider_soperator.slurm.notations import EPOCHS, format_time, parse_time
from airflow_provider_soperator.slurm.requests.commands import (
    Command,
    CommandOutput,
    Request,
    clean,
    free_text,
    listed,
    plain_word,
)

_HEAD = re.compile(r"ReservationName=(.*?) (StartTime=\S+ EndTime=\S+ Duration=.*)")
_FLAG = re.compile(r"[+-]?[A-Za-z_]+(=[0-9:+-]+)?")
#: Blocks jobs that would run into the reservation, and ignores running ones.
HANDOVER_FLAGS = ("MAINT", "IGNORE_JOBS")


@dataclass(frozen=True)
class ListReservations(Request[tuple[Reservation, ...]]):
    """List all reservations."""

    def command(self) -> Command:
        return Command(("scontrol", "--all", "--oneliner", "show", "reservation"), environment=EPOCHS)

    def read(self, answer: CommandOutput) -> tuple[Reservation, ...]:
        found: list[Reservation] = []
        lines: list[str] = []
        for line in self.check(answer).text.split("\n"):
            if line.startswith("ReservationName=") and lines:
                found.append(_reservation("\n".join(lines)))
                lines = []
            # A comment may have several lines.
            if lines or line.startswith("ReservationName="):
                lines.append(line)
        return tuple(found + ([_reservation("\n".join(lines).rstrip("\n"))] if lines else []))


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
        if not self.users and not self.accounts:
            raise InvalidRequest("a reservation needs users or accounts that may use it")
        words = [
            f"ReservationName={plain_word('a reservation', self.name)}",
            f"Nodes={_fold(self.nodes)}",
            *_times(self.start, self.end),
        ]
        if self.end is None:
            words.append("Duration=UNLIMITED")
        words += _whose(self.users, self.accounts)
        if self.flags:
            words.append(f"Flags={','.join(_flags(self.flags))}")
        if self.partition:
            words.append(f"PartitionName={plain_word('a partition', self.partition)}")
        if self.comment:
            words.append(f"Comment={free_text('a comment', self.comment)}")
        return Command(("scontrol", "create", "reservation", *words))

    def read(self, answer: CommandOutput) -> str:
        if answer.status:
            error = self.error(answer)
            if isinstance(error, NotPermitted):
                # slurmctld has the same message for both.
                raise NotPermitted(error.said, error.command, f"{error.remedy}; or there is no user {self.users}")
            raise error
        return self.name


@dataclass(frozen=True, kw_only=True)
class UpdateReservation(Request[None]):
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
        words = [
            *([f"Nodes={_fold(self.nodes)}"] if self.nodes else []),
            *_times(self.start, self.end),
            *_whose(self.users, self.accounts),
            *([f"Flags={','.join(_flags(self.flags))}"] if self.flags else []),
            *([f"Comment={free_text('a comment', self.comment)}"] if self.comment else []),
        ]
        if not words:
            raise InvalidRequest("nothing to change")
        return Command(("scontrol", "update", f"ReservationName={plain_word('a reservation', self.name)}", *words))

    def read(self, answer: CommandOutput) -> None:
        self.check(answer)


@dataclass(frozen=True)
class DeleteReservation(Request[bool]):
    """Delete a reservation; returns False if there was none."""

    name: str

    def command(self) -> Command:
        return Command(("scontrol", "delete", f"ReservationName={plain_word('a reservation', self.name)}"))

    def read(self, answer: CommandOutput) -> bool:
        if answer.status:
            error = self.error(answer)
            if isinstance(error, UnknownReservation):
                return False
            raise error
        return True


def _fold(names: Iterable[str]) -> str:
    try:
        folded = hostlist.fold(names)
    except hostlist.HostlistError as error:
        raise InvalidRequest(str(error)) from None
    if not folded:
        raise InvalidRequest("a reservation needs nodes")
    return folded


def _times(start: datetime | None, end: datetime | None) -> list[str]:
    if start and end and end <= start:
        raise InvalidRequest(f"a reservation cannot end ({end.isoformat()}) before it starts ({start.isoformat()})")
    return [f"{name}={format_time(when)}" for name, when in (("StartTime", start), ("EndTime", end)) if when]


def _whose(users: tuple[str, ...], accounts: tuple[str, ...]) -> list[str]:
    words = []
    for what, names in (("Users", users), ("Accounts", accounts)):
        if names:
            words.append(f"{what}={','.join(plain_word(what.lower()[:-1], name) for name in names)}")
    return words


def _flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    for flag in flags:
        if not _FLAG.fullmatch(flag):
            raise InvalidRequest(f"{flag!r} is not a reservation flag")
    return flags
