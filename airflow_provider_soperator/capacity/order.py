"""The order for a shift, as a value that JSON can carry, and the time limits of its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from airflow_provider_soperator.capacity.holdings import Allocation, Release, World
from airflow_provider_soperator.capacity.targets import Target
from airflow_provider_soperator.errors import CapacityError
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.slurm.requests import PowerDownMode

#: When nodes go: once they are idle, once their jobs have ended, or at once.
ReleaseMode = Literal["idle", "asap", "force"]


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Time limits for the next unit in each part of a shift.

    :param release: until one more unit is released, from when its turn has come: jobs may have to end first
    :param free: until the GPUs of a released unit are free in the block: machines go minutes after their nodes
    :param ready: until one more unit is ready at its new target
    :param out_of_reach: until a cluster or a cloud that does not answer does so again
    """

    release: timedelta = timedelta(hours=2)
    free: timedelta = timedelta(minutes=30)
    ready: timedelta = timedelta(minutes=45)
    out_of_reach: timedelta = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class ShiftOrder:
    """The desired allocation of a block, and the means that a shift may use to get there."""

    key: str
    task: str
    block: str
    nebius_conn_id: str
    targets: tuple[Target, ...]
    desired: Allocation
    #: When the receivers are to have their units.
    wanted_at: datetime
    #: The time that a unit needs from one target to the other: nodes leave that long before ``wanted_at``.
    transfer: timedelta = timedelta(0)
    #: The end of the allocation, if known.
    until: datetime | None = None
    mode: ReleaseMode = "asap"
    #: With ``force``: how long after ``wanted_at`` jobs are ended, and how long before that they get the signal.
    force_after: timedelta = timedelta(0)
    grace: timedelta = timedelta(minutes=2)
    signal: str = "TERM"
    timeouts: Timeouts = field(default_factory=Timeouts)
    rollback: bool = True
    wait_for_lease: bool = True
    poll_interval: float = 10.0
    why: str = ""

    @property
    def leaves_at(self) -> datetime:
        """The moment at which units begin to leave, to arrive in time."""
        return self.wanted_at - self.transfer

    def units(self, name: str) -> str:
        return next(target.units for target in self.targets if target.name == name)

    def release(self, now: datetime, *, back: bool = False) -> Release:
        """The limits within which units are released at a moment."""
        if back:
            return Release(wanted_at=now, mode=PowerDownMode.ASAP)
        if now < self.leaves_at:
            return Release(wanted_at=self.leaves_at, mode=None, ahead=self.mode != "idle")
        if self.mode == "idle":
            return Release(wanted_at=self.leaves_at, mode=PowerDownMode.IDLE)
        # Jobs get the signal first, so force begins that much earlier.
        if self.mode == "force" and now >= self.wanted_at + self.force_after - self.grace:
            return Release(wanted_at=self.leaves_at, mode=PowerDownMode.FORCE, signal=self.signal, grace=self.grace)
        return Release(wanted_at=self.leaves_at, mode=PowerDownMode.ASAP)

    def write(self) -> dict[str, Any]:
        """Return JSON."""
        from pydantic import TypeAdapter

        said: dict[str, Any] = TypeAdapter(ShiftOrder).dump_python(self, mode="json")
        return said

    @classmethod
    def read(cls, said: dict[str, Any]) -> ShiftOrder:
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_python(said)


class PartTookTooLong(CapacityError):
    """A part of a shift has made no progress within its time limit."""


class ProgressTimer:
    """Enforces the time limits of a shift's parts."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._part: tuple[Any, ...] = ()
        self._since: datetime | None = None
        self._out_of_reach: datetime | None = None

    def see(
        self, world: World, desired: Allocation, now: datetime, *, started: bool, ready: Allocation | None = None
    ) -> None:
        """Note the progress; raises ``PartTookTooLong``."""
        part, limit, what = self._waiting_for(world, desired, ready)
        if part != self._part or self._since is None or self._out_of_reach or not started:
            self._part, self._since = part, now
        elif now - self._since > limit:
            problems = [problem for seen in world.holdings.values() for problem in seen.problems]
            said = f" ({'; '.join(problems)})" if problems else ""
            raise PartTookTooLong(f"{what} after {limit}{said}")

    def wait_out(self, error: Exception, now: datetime, log: Logger) -> None:
        """Note that a step failed; raises ``PartTookTooLong`` if all steps have failed for too long."""
        if self._out_of_reach is None:
            self._out_of_reach = now
            log.warning("No step is possible at present, retrying; what has begun continues by itself: %s", error)
        elif now - self._out_of_reach > self._timeouts.out_of_reach:
            raise PartTookTooLong(f"no step succeeded for {self._timeouts.out_of_reach}: {error}")

    def worked(self) -> None:
        """Note that a whole step succeeded. A cluster may answer queries but reject changes, so less does not count."""
        self._out_of_reach = None

    def _waiting_for(
        self, world: World, desired: Allocation, desired_ready: Allocation | None
    ) -> tuple[tuple[Any, ...], timedelta, str]:
        donors, receivers = world.donors(desired), world.receivers(desired, desired_ready)
        ready = tuple(seen.ready for name, seen in world.holdings.items() if name in receivers)
        promised = [name for name in receivers if world.holdings[name].allowed >= desired[name]]
        if donors:
            names = " and ".join(donors)
            left = tuple(max(world.holdings[name].held, world.holdings[name].allowed) for name in donors)
            return ("release", left, ready), self._timeouts.release, f"{names} still has more than desired"
        short = [name for name in receivers if world.block.free is None or world.block.free < world.gpus[name]]
        if short and not promised:
            free = "the number of free GPUs of the block is unknown"
            if world.block.free is not None:
                free = f"only {world.block.free} GPUs of the block are free"
            for_whom = " and ".join(short)
            what = f"{free}, too few for {for_whom}: check that the machines are gone and their node group scales down"
            return ("free", world.block.usage, ready), self._timeouts.free, what
        if receivers:
            return ("ready", ready), self._timeouts.ready, f"{' and '.join(receivers)} is not ready"
        return ("free", world.block.usage), self._timeouts.free, "the released GPUs are not free in the block"
