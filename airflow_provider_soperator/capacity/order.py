"""What a shift is to do, as a value that goes through JSON: from a task to a trigger, and on to the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from airflow_provider_soperator.capacity.errors import CapacityMistake
from airflow_provider_soperator.capacity.flow import Allocation
from airflow_provider_soperator.capacity.holding import Release
from airflow_provider_soperator.capacity.patience import Timeouts
from airflow_provider_soperator.capacity.targets import stored
from airflow_provider_soperator.capacity.targets.base import Target
from airflow_provider_soperator.slurm.requests import PowerDownMode

#: How far nodes may be hurried: wait until they are idle, let their jobs end, or end these.
Hurry = Literal["idle", "asap", "force"]


@dataclass(frozen=True, kw_only=True)
class ShiftOrder:
    """A wish for capacity, and how far one may go for it."""

    key: str
    task: str
    block: str
    nebius_conn_id: str
    targets: tuple[Target, ...]
    goal: Allocation
    #: When the receivers shall have what they are to have.
    wanted_at: datetime
    #: How long a unit needs from one side to the other: so long before, nodes leave.
    transfer: timedelta = timedelta(0)
    #: Until when it is to stay so, if that is known.
    until: datetime | None = None
    hurry: Hurry = "asap"
    #: With ``force``: how long after ``wanted_at`` jobs are ended, and how long before that they are warned.
    force_after: timedelta = timedelta(0)
    grace: timedelta = timedelta(minutes=2)
    signal: str = "TERM"
    timeouts: Timeouts = field(default_factory=Timeouts)
    rollback: bool = True
    wait_for_turn: bool = True
    poll_interval: float = 10.0
    why: str = ""

    def __post_init__(self) -> None:
        names = [target.name for target in self.targets]
        if len(set(names)) < len(names):
            raise CapacityMistake(f"two targets have one name: {', '.join(names)}")
        unknown, missing = set(self.goal) - set(names), set(names) - set(self.goal)
        if unknown or missing:
            wrong = [f"there is no target {name}" for name in sorted(unknown)]
            wrong += [f"nothing is said of {name}" for name in sorted(missing)]
            raise CapacityMistake("; ".join(wrong), f"the targets are {', '.join(names)}")
        negative = [name for name, units in self.goal.items() if units < 0]
        if negative:
            raise CapacityMistake(f"{', '.join(negative)} cannot have less than nothing")

    @property
    def leaves_at(self) -> datetime:
        """When units begin to leave, so that they are where they are wanted in time."""
        return self.wanted_at - self.transfer

    def units(self, name: str) -> str:
        return next(target.units for target in self.targets if target.name == name)

    def release(self, now: datetime, *, back: bool = False) -> Release:
        """How far one may go at a moment to get units free."""
        if back:
            return Release(wanted_at=now, mode=PowerDownMode.ASAP)
        if now < self.leaves_at:
            return Release(wanted_at=self.leaves_at, mode=None, ahead=self.hurry != "idle")
        if self.hurry == "idle":
            return Release(wanted_at=self.leaves_at, mode=PowerDownMode.IDLE)
        # Jobs are warned first, so that is when it begins.
        if self.hurry == "force" and now >= self.wanted_at + self.force_after - self.grace:
            return Release(wanted_at=self.leaves_at, mode=PowerDownMode.FORCE, signal=self.signal, grace=self.grace)
        return Release(wanted_at=self.leaves_at, mode=PowerDownMode.ASAP)

    def write(self) -> dict[str, Any]:
        """As JSON."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        return said | {
            "targets": [stored.write(target) for target in self.targets],
            "goal": dict(self.goal),
            "wanted_at": self.wanted_at.timestamp(),
            "until": self.until and self.until.timestamp(),
            "transfer": self.transfer.total_seconds(),
            "force_after": self.force_after.total_seconds(),
            "grace": self.grace.total_seconds(),
            "timeouts": {one.name: getattr(self.timeouts, one.name).total_seconds() for one in fields(Timeouts)},
        }

    @classmethod
    def read(cls, said: dict[str, Any]) -> ShiftOrder:
        spans = {name: timedelta(seconds=said[name]) for name in ("transfer", "force_after", "grace")}
        return cls(
            **said
            | spans
            | {
                "targets": _targets(said["targets"]),
                "wanted_at": datetime.fromtimestamp(said["wanted_at"], timezone.utc),
                "until": datetime.fromtimestamp(said["until"], timezone.utc) if said["until"] else None,
                "timeouts": Timeouts(**{name: timedelta(seconds=span) for name, span in said["timeouts"].items()}),
            }
        )


def _targets(said: Sequence[dict[str, Any]]) -> tuple[Target, ...]:
    return tuple(map(stored.read, said))
