"""What DAGs have left on a cluster: drains, reservations and files, who may need them yet, and their release."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

from airflow_provider_soperator.board.picture import Picture
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.reservations import OUR_RESERVATIONS, is_lapsed
from airflow_provider_soperator.hooks.cluster_clients import installation_id
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node, Reservation
from airflow_provider_soperator.slurm.files import RemoveFiles
from airflow_provider_soperator.slurm.node_conditions import WORDS, DrainReason
from airflow_provider_soperator.slurm.requests import DeleteReservation, Request, Undrain

#: The DAG of a shift, or of a task that moves nodes, at the end of what it says about itself, and the Airflow's id.
_DAG = re.compile(r"\(([\w.-]+)\)(?: of Airflow (\w+))?$")


class OwnersNeed(NamedTuple):
    """Whether the owner of something that is left is at work, and may need it."""

    at_work: Literal["yes", "no", "unknown"]
    said: str


@dataclass(frozen=True, kw_only=True)
class LeftOver:
    """A drain, a reservation or files of this provider."""

    what: str
    owner: str = ""
    why: str = ""
    since: datetime | None = None
    #: One of these: the drained nodes, the reservation, or the paths of files in one folder.
    nodes: tuple[str, ...] = ()
    reservation: Reservation | None = None
    files: tuple[str, ...] = ()

    @property
    def dag_id(self) -> str:
        """The DAG that has left it, as far as it says so."""
        return self._origin[0]

    @property
    def _origin(self) -> tuple[str, str]:
        """The DAG that has left it, and the id of its Airflow; empty if that is not said."""
        if self.reservation and (record := ShiftRecord.read(self.reservation.comment)):
            return record.task.partition("/")[0], record.airflow
        # The reason of a drain by hand may end with its user, as this one ends with the DAG.
        said = self.reservation.comment if self.reservation else self.why if self.owner.startswith("capacity/") else ""
        found = _DAG.search(said)
        return (found[1], found[2] or "") if found else (self.owner, "")

    @property
    def names(self) -> set[str]:
        """What it is called: each of its nodes; or the reservation; or each file, and their folder."""
        if self.reservation:
            return {self.reservation.name}
        return {*self.nodes, *self.files, *map(_folder, self.files)}

    @property
    def form(self) -> dict[str, str]:
        """What the form of its release is given."""
        if self.nodes:
            return {"nodes": ",".join(self.nodes), "drain_owner": self.owner}
        if self.reservation:
            return {"name": self.reservation.name}
        return {"name": self.files[0] if len(self.files) == 1 else _folder(self.files[0])}

    @property
    def release(self) -> Request[Any]:
        if self.reservation:
            return DeleteReservation(self.reservation.name)
        return Undrain(self.nodes) if self.nodes else RemoveFiles(self.files)

    def of(self, named: Collection[str]) -> LeftOver:
        """The part of it that is named."""
        if nodes := tuple(node for node in self.nodes if node in named):
            return replace(self, what=f"drain of {hostlist.fold(nodes)}", nodes=nodes)
        if files := tuple(file for file in self.files if file in named or _folder(file) in named):
            return replace(self, what=_what(files), files=files)
        return self

    def is_meant(self, given: Mapping[str, str]) -> bool:
        """True if the form of an action has it."""
        return self.owner == given.get("drain_owner") if self.nodes else given.get("name") in self.names

    def need(self, known: Mapping[str, bool]) -> OwnersNeed:
        """Its owner's need of it; ``known`` are the DAGs of this Airflow, and whether a run of each is under way."""
        dag, airflow = self._origin
        if self.files:
            return OwnersNeed("no", "No job in the queue is of these calls.")
        if self.reservation and is_lapsed(self.reservation, datetime.now(timezone.utc)):
            return OwnersNeed("no", f"The shift of the DAG {dag} has not renewed its lease.")
        if airflow and airflow != installation_id():
            # This one may have a DAG of that name as well, as staging and production do.
            return OwnersNeed("unknown", f"The DAG {dag} of another Airflow has left it, and may need it.")
        if dag not in known:
            # Of another Airflow, or under a name of its own.
            return OwnersNeed("unknown", f"This Airflow has no DAG {dag}: its owner may need it.")
        if known[dag]:
            return OwnersNeed("yes", f"A run of the DAG {dag} is under way, and may need it.")
        if self.owner.startswith("capacity/"):
            return OwnersNeed("yes", f"The DAG {dag} moves capacity, and keeps nodes drained between its runs.")
        is_over = f"No run of the DAG {dag} is under way."
        if self.nodes:
            # As after a failed check, or of nodes that are to stay off.
            return OwnersNeed("unknown", f"{is_over} It may have meant them to stay drained.")
        return OwnersNeed("no", is_over)


def left_overs(picture: Picture) -> list[LeftOver]:
    """Drains of this provider, those of one owner and reason together; its reservations; and files without a job."""
    drains: dict[DrainReason, list[Node]] = {}
    for node in picture.nodes:
        reason = DrainReason.parse(node.reason)
        if reason and any(WORDS[word](node) for word in ("drained", "draining")):
            drains.setdefault(reason, []).append(node)
    found = [
        LeftOver(
            what=f"drain of {hostlist.fold(node.name for node in drained)}",
            owner=reason.owner,
            why=reason.why,
            since=min((node.reason_since for node in drained if node.reason_since), default=None),
            nodes=tuple(node.name for node in drained),
        )
        for reason, drained in drains.items()
    ]
    found += [
        LeftOver(what=f"reservation {one.name} of {one.nodelist}", owner=one.name, reservation=one)
        for one in picture.reservations
        if one.name.startswith(OUR_RESERVATIONS)
    ]
    if (old := picture.idle_files) and "jobs" not in picture.failures:
        found.append(LeftOver(what=_what(old), why="no job in the queue is of these calls", files=old))
    return found


def _what(files: Sequence[str]) -> str:
    return f"file {files[0]}" if len(files) == 1 else f"{len(files)} files in {_folder(files[0])}"


def _folder(file: str) -> str:
    return str(PurePosixPath(file).parent)
