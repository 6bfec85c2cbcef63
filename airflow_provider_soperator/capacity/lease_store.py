"""A place that keeps the lease of a block, what it keeps, and the record of a shift that is written there."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

#: Time for which a lease holds after it was renewed.
TERM = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True)
class ShiftRecord:
    """The state of a shift, from which a later try or another process continues."""

    #: Identifies the shift.
    key: str
    #: Its task, as ``dag/run/task/map index``, for people and for Airflow; "…" ends one that was cut.
    task: str
    #: The id of its Airflow.
    airflow: str = ""
    #: Identifies the process that drives the shift.
    session: str = ""
    #: The allowed and ready units of each target when the shift began, to roll back to.
    before: dict[str, int] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)
    #: GPUs of the block that no target held then; None if that was unknown.
    others: int | None = None
    #: Why the shift is rolled back; empty if it is not.
    undone: str = ""
    #: The times at which its parts were over, in seconds since 1970.
    marks: dict[str, float] = field(default_factory=dict)
    #: The GPU-seconds so far; see ``figures.Meter``.
    sums: dict[str, float] = field(default_factory=dict)
    #: GPUs that targets, by their places, may take and have not taken yet, and until when that counts, in seconds since
    #: 1970: those of this shift and of former ones.
    claims: dict[str, list[float]] = field(default_factory=dict)
    #: What each DAG has moved last, and when, for people.
    movers: dict[str, str] = field(default_factory=dict)

    def write(self, most: int = sys.maxsize) -> str:
        """JSON of at most that many bytes: without what can be missed, if the whole is longer."""
        record, said = self, self._write()
        for name in ("movers", "sums", "undone", "before", "ready", "marks", "claims", "task"):
            if (surplus := len(said) - most) > 0:
                value = getattr(record, name)
                # The end of a text that is too much, and all of anything else; in JSON the dots take six bytes.
                is_text = isinstance(value, str) and value
                less: Any = f"{value[: max(0, len(value) - surplus - 6)]}…" if is_text else type(value)()
                record = replace(record, **{name: less})
                said = record._write()
        return said

    def _write(self) -> str:
        filled = {name: value for name, value in asdict(self).items() if value not in ("", {})}
        return json.dumps(filled, separators=(",", ":"))

    @classmethod
    def read(cls, said: str) -> ShiftRecord | None:
        """Read a record; None where it cannot be seen, as over slurmrestd. A newer version may keep more in it."""
        try:
            return cls(**{name: value for name, value in json.loads(said).items() if name in cls.__dataclass_fields__})
        except (AttributeError, TypeError, ValueError):
            return None

    def owed(self, now: datetime) -> dict[str, int]:
        """GPUs that are claimed at a moment, by place."""
        return {place: int(gpus) for place, (gpus, until) in self.claims.items() if now.timestamp() < until}

    def marked(self, mark: str, when: datetime) -> ShiftRecord:
        return self if mark in self.marks else replace(self, marks=self.marks | {mark: round(when.timestamp(), 1)})


@dataclass(frozen=True, kw_only=True)
class StoredLease:
    """A lease as its store has it."""

    #: It differs after each write.
    version: str
    renewed: datetime
    term: timedelta = TERM
    is_held: bool = True
    #: True if the holder is this shift, in whatever process.
    is_mine: bool = False
    #: None if it cannot be seen or read.
    record: ShiftRecord | None = None
    #: What of the place is the lease, and the command that deletes it.
    name: str = ""
    remedy: str = ""
    #: What other shifts have beside it, where a place cannot refuse that.
    others: tuple[StoredLease, ...] = ()

    def __str__(self) -> str:
        by = f"task {self.record.task}" if self.record else "a task that this connection cannot identify"
        return f"{by} ({self.name})"

    @property
    def how_to_end(self) -> str:
        """When the block will be free, and how to make it so."""
        return (
            f"its lease ends {self.term / timedelta(minutes=1):g} minutes after its last renewal, which was at "
            f"{self.renewed:%d %b %H:%M:%S %Z}; if that task no longer exists, `{self.remedy}` ends it now"
        )

    def is_driven_by(self, session: str | None) -> bool:
        """True unless another process than that is known to have written it; None is any."""
        return session is None or self.record is None or self.record.session == session


class LeaseStore(Protocol):
    """A place that keeps the lease of one block, and changes it only as it was read."""

    async def read(self) -> StoredLease | None:
        """The lease; None if there is none."""

    async def write(
        self, record: ShiftRecord, now: datetime, term: timedelta, over: StoredLease | None
    ) -> StoredLease | None:
        """Make this shift the holder from now on; None if the lease is no more as it was read, and stays.

        :param over: the lease as it was read, if that is this shift's or over; what is beside it is over, too.
        """

    async def free(self, session: str | None) -> None:
        """Give up what this shift has of the lease: that process of it, or with None any."""
