"""The order for a shift: the desired allocation, by a schedule or as a user asks for it, and the means to get there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_soperator.capacity.allocation import Units, is_within, one_of, refuse_unknown_targets
from airflow_provider_soperator.capacity.holdings import Allocation, Release, World
from airflow_provider_soperator.capacity.overrides import check_words
from airflow_provider_soperator.capacity.targets import BoughtNodes, SlurmNodesTarget, Target
from airflow_provider_soperator.errors import CapacityError, CapacityMistake, ClusterError, ConnectionMistake
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.api import NebiusUnauthenticated
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.errors import AuthenticationFailed
from airflow_provider_soperator.slurm.requests import PowerDownMode
from airflow_provider_soperator.transports.transport_errors import ConnectFailed
from airflow_provider_soperator.values import Plain, check_durations

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.schedule import CapacitySchedule

#: When nodes go: once they are idle, once their jobs have ended, or at once.
ReleaseMode = Literal["idle", "asap", "force"]
#: What is moved back if not all can be moved.
Rollback = Literal["none", "all"]

#: For the next unit to be released, if its window has no end.
_RELEASE = timedelta(hours=2)

_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_AMOUNT = re.compile(r"(\d+)(?: *(gpus?|[a-z]+))?", re.IGNORECASE)


@dataclass(frozen=True)
class DesiredAllocation:
    """Units of each target from a moment on, and until when, if that is known."""

    units: Mapping[str, Units]
    at: datetime
    until: datetime | None
    why: str
    #: When the shift to the next allocation begins, if that is known.
    stops_at: datetime | None = None
    #: The end of the schedule's own window, also under an override, which is paid for by that.
    window_ends: datetime | None = None

    def __post_init__(self) -> None:
        check_words(self.why)


class Superseded(CapacityError):
    """A newer allocation of the schedule is already in force."""


def scheduled_allocation(schedule: CapacitySchedule, at: datetime, now: datetime) -> DesiredAllocation:
    """The allocation of a schedule at a moment; a past one is due at once, or ``Superseded`` by a newer one."""
    segment, newest = schedule.at(at), schedule.last_change(now)
    if newest is not None and newest.at > at:
        raise Superseded(
            f"{segment.name} is superseded: {newest.after.name} is in force since {newest.at:%d %b %H:%M %Z}"
        )
    following = schedule.next_change(max(at, now))
    until = following.at if following else None
    # A shift to what comes takes over when it begins, also of a later handover; within its lead, at the handover.
    comes = schedule.changes(until, until + schedule.lead_time) if until else ()
    stops_at = until and min([until, *(one.begins for one in comes if one.begins > now)])
    planned = schedule.planned.next_change(max(at, now))
    ends = planned.at if planned else None
    return DesiredAllocation(dict(segment.allocation), max(at, now), until, segment.name, stops_at, ends)


def headed_for(schedule: CapacitySchedule, now: datetime, demanded: Mapping[str, int] | None = None) -> datetime:
    """The moment whose allocation the world is to have: once a shift is due, also if it is over, its handover.

    What is ``demanded`` before and after that waits for no handover.
    """
    due = schedule.due(now)
    if due is None or due.at <= now:
        return now
    wishes = (due.after.allocation, schedule.at(now).allocation)
    return now if demanded and all(is_within(demanded, wished) for wished in wishes) else due.at


def requested_allocation(desired: Any, targets: Sequence[Target], limit: int, at: datetime) -> DesiredAllocation:
    """The allocation that a user requests: units or GPUs of each target; one target may be left out, to get the rest.

    >>> from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
    >>> two = [SlurmNodesTarget(name=name, nodes="worker-[0-7]") for name in ("training", "inference")]
    >>> requested_allocation({"training": "32 gpus"}, two, 64, datetime.now()).units
    {'training': 4, 'inference': 4}
    """
    said, names = _mapping(desired), [target.name for target in targets]
    refuse_unknown_targets(said, names)
    units = {one.name: _units(said[one.name], one) for one in targets if _is_said(said.get(one.name))}
    rest = [target for target in targets if target.name not in units]
    if len(rest) > 1 or not units:
        said_none = " and ".join(target.name for target in rest)
        raise CapacityMistake(f"no number for {said_none}", "give one for all targets but one")
    taken = sum(units[one.name] * one.gpus_per_unit for one in targets if one.name in units)
    for target in rest:
        left = max(0, limit - taken) // target.gpus_per_unit
        units[target.name] = min(left, target.size) if isinstance(target, SlurmNodesTarget) else left
    return DesiredAllocation({name: units[name] for name in names}, at, None, "requested manually")


def is_requested(desired: Any) -> bool:
    """True if anything was requested; an empty form requests nothing."""
    return any(map(_is_said, _mapping(desired).values())) if _is_said(desired) else False


def _mapping(desired: Any) -> Mapping[str, Any]:
    if isinstance(desired, str):
        try:
            desired = json.loads(desired)
        except ValueError:
            raise CapacityMistake(f"desired must be a JSON object, got {desired!r}") from None
    if not isinstance(desired, Mapping):
        raise CapacityMistake(f"desired must map each target to its units, got {desired!r}")
    return desired


def _is_said(value: Any) -> bool:
    # A template renders None as the text "None".
    return value is not None and str(value).strip().lower() not in ("", "none", "null")


def _units(value: Any, target: Target) -> int:
    found = _AMOUNT.fullmatch(str(value).strip())
    if not found:
        raise CapacityMistake(f"{target.name}: expected a number of {target.units} or GPUs ('32 gpus'), got {value!r}")
    number, what, each = int(found[1]), (found[2] or "").lower(), target.gpus_per_unit
    if what in ("gpu", "gpus"):
        if number % each:
            raise CapacityMistake(
                f"{target.name}: {number} GPUs are not a multiple of the {each} of its {target.units}"
            )
        return number // each
    if what not in ("", target.units.lower(), one_of(target.units.lower())):
        raise CapacityMistake(f"{target.name}: expected {target.units} or GPUs, got {what}")
    return number


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Time limits for the next unit in each part of a shift.

    :param release: until one more unit is released, from when its turn has come: jobs may have to end first. By default
        as long as the window lasts, or two hours if it has no end
    :param free: until the GPUs of a released unit are free in the block: machines go minutes after their nodes
    :param ready: until one more unit is ready at its new target
    :param out_of_reach: until a cluster or a cloud that does not answer does so again
    """

    release: timedelta | None = None
    free: timedelta = timedelta(minutes=30)
    ready: timedelta = timedelta(minutes=45)
    out_of_reach: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        check_durations(or_none=True, release=self.release)
        check_durations(free=self.free, ready=self.ready, out_of_reach=self.out_of_reach)


def patience(timeouts: Timeouts, *, has_window: bool) -> timedelta | None:
    """How long the next unit to be released is waited for; None: as long as the window lasts."""
    return timeouts.release or (None if has_window else _RELEASE)


def refuse_force_too_late(after: timedelta, timeouts: Timeouts | None, *, has_window: bool) -> None:
    """Refuse to end jobs at a time at which the shift is over by then."""
    limit = patience(timeouts or Timeouts(), has_window=has_window)
    if limit is not None and after >= limit:
        raise CapacityMistake(
            f"jobs are ended {after} after nodes begin to leave (transfer + force_after, or grace), but a shift "
            f"waits only {limit} for a node",
            f"make force_after shorter, or grace, or timeouts.release longer than {after}",
        )


@dataclass(frozen=True, kw_only=True)
class ShiftOrder(Plain):
    """The desired allocation of a block, and the means that a shift may use to get there.

    leaves_at -- transfer --> wanted_at -- force_after --> jobs end        stops_at --> until
                                 signals_at -- grace -->         the next shift begins, is due
    """

    key: str
    task: str
    #: The id of the Airflow, of which the key is made, too.
    airflow: str = ""
    block: str
    nebius_conn_id: str
    targets: tuple[Target, ...]
    desired: Allocation
    #: When the receivers are to have their units.
    wanted_at: datetime
    #: The time that a unit needs from one target to the other: nodes leave that long before ``wanted_at``.
    transfer: timedelta = timedelta(0)
    #: The end of the allocation, and the beginning of the shift to the next one, if known.
    until: datetime | None = None
    stops_at: datetime | None = None
    #: The end of the window that pays for what is bought, if that is not ``until``.
    window_ends: datetime | None = None
    mode: ReleaseMode = "asap"
    #: With ``force``: how long after ``wanted_at`` jobs are ended, and how long before that they get the signal.
    force_after: timedelta = timedelta(0)
    grace: timedelta = timedelta(minutes=2)
    signal: str = "TERM"
    timeouts: Timeouts = field(default_factory=Timeouts)
    rollback: Rollback = "none"
    wait_for_lease: bool = True
    poll_interval: float = 10.0
    why: str = ""
    #: What a person has approved: ``goal`` (units), ``nodes`` that may go and ``jobs`` that may be ended (ids), each by
    #: target, and the ``end`` of it. The shift does no more.
    approved: dict[str, Any] | None = None

    @classmethod
    def to_look(cls, key: str, task: str, block: str, nebius_conn_id: str, targets: Sequence[Target]) -> ShiftOrder:
        """An order by which it is seen what the targets have, and nothing is moved."""
        return cls(
            key=key,
            task=task,
            block=block,
            nebius_conn_id=nebius_conn_id,
            targets=tuple(targets),
            desired={},
            wanted_at=_EPOCH,
        )

    @property
    def leaves_at(self) -> datetime:
        """The moment at which units begin to leave, to arrive in time."""
        return self.wanted_at - self.transfer

    @property
    def places(self) -> dict[str, str]:
        """What each target holds GPUs with, apart from its name: the same for two targets with the same nodes."""
        fields = ("slurm_conn_id", "nodes", "kubernetes_conn_id", "namespace", "resource")
        return {
            one.name: getattr(one, "node_group", "")
            or "/".join(getattr(one, name) for name in fields if hasattr(one, name))
            for one in self.targets
        }

    def units(self, name: str) -> str:
        return next(target.units for target in self.targets if target.name == name)

    @property
    def buys(self) -> dict[str, BoughtNodes]:
        """What targets may buy while the block lacks it."""
        return {one.name: said for one in self.targets if (said := getattr(one, "fallback", None))}

    @property
    def may_buy(self) -> bool:
        """True unless a person has approved something else."""
        said = {name: str(one) for name, one in self.buys.items()}
        return self.approved is None or self.approved.get("buys", {}) == said

    @property
    def may_wait(self) -> bool:
        """True if jobs may last as long as the window does."""
        return self.stops_at is not None and self.rollback == "none"

    def release(self, now: datetime, *, back: bool = False) -> Release:
        """The limits within which units are released at a moment."""
        if back:
            return Release(leaves_at=now, mode=PowerDownMode.ASAP)
        if self.mode == "idle":
            mode = None if now < self.leaves_at else PowerDownMode.IDLE
            return Release(leaves_at=self.leaves_at, mode=mode, ahead=False)
        # Jobs get the signal first, so force begins that much earlier, but not before nodes leave.
        ends_at = self.wanted_at + self.force_after
        signals_at = max(ends_at - self.grace, self.leaves_at) if self.mode == "force" else None
        mode = PowerDownMode.FORCE if signals_at and now >= signals_at else PowerDownMode.ASAP
        return Release(
            leaves_at=self.leaves_at,
            mode=None if now < self.leaves_at else mode,
            signal=self.signal,
            grace=self.grace,
            ends_jobs=self.mode == "force",
            signals_at=signals_at,
        )

    def allowed(self, name: str, units: int, present: int) -> int:
        """Units of a target that it may be brought to: none beyond the approved ones, if a person had to approve."""
        goal: int = (self.approved or {}).get("goal", {}).get(name, units)
        return min(max(units, min(goal, present)), max(goal, present))

    def may_take(self, name: str) -> frozenset[str] | None:
        """The units of a target that may go, if a person has approved them.

        With ``rollback="all"`` a target gives back what came to it, also where units have no names before they come.
        """
        named = self._approved("nodes", name)
        return None if self.rollback == "all" and not named else named

    def may_end(self, name: str) -> frozenset[str] | None:
        """The jobs on units of a target that may be ended, if a person has approved them."""
        return self._approved("jobs", name)

    def _approved(self, what: str, name: str) -> frozenset[str] | None:
        said = (self.approved or {}).get(what)
        return None if said is None else frozenset(said.get(name, ()))

    @property
    def ends_at(self) -> datetime | None:
        """When the shift stops where it is: as its window is over, or the approval."""
        end = (self.approved or {}).get("end")
        return min(filter(None, (self.stops_at, end and datetime.fromisoformat(end))), default=None)

    def check_block(self, block: CapacityBlock, now: datetime) -> None:
        """Raise ``CapacityMistake`` if the block has too few GPUs for it, or will have before its end."""
        wanted = sum(self.desired[target.name] * target.gpus_per_unit for target in self.targets)
        if block.state == "allocating":
            raise CapacityError(f"block {block.id} is being allocated", "retry once it is active")
        if block.state != "active":
            raise CapacityMistake(f"block {block.id} is {block.state}, expected active", "use an active block")
        if wanted > (most := block.most_by(self.wanted_at)):
            said = f"{wanted} GPUs are desired, but block {block.id} has {most}"
            raise CapacityMistake(said, "ask for less, or extend the block")
        # The next window begins at ``until``, so that moment itself does not count.
        last = self.until - datetime.resolution if self.until else self.wanted_at
        if wanted > (later := block.limit_at(max(last, now))):
            has = f"has only {later} from {block.next_change_at} on"
            raise CapacityMistake(
                f"{wanted} GPUs are desired, but block {block.id} {has}", "extend the block, or ask for less"
            )


class ShiftFailed(CapacityError):
    """A shift has failed; the message says why, what was moved back, and the present allocation."""

    is_rolled_back = False


class PartTookTooLong(CapacityError):
    """A part of a shift has made no progress within its time limit."""


#: Time after which a person who has to do something is reminded.
_REMIND = timedelta(minutes=10)


def needs_a_person(error: Exception) -> bool:
    """True if a connection or its credentials have to be mended, which may be done while the shift waits."""
    refused = isinstance(error, ConnectFailed) and not error.passing
    return refused or isinstance(error, (AuthenticationFailed, ConnectionMistake, NebiusUnauthenticated))


def is_waited_out(error: Exception) -> bool:
    """True if the next step may succeed."""
    return needs_a_person(error) or (isinstance(error, ClusterError) and error.passing)


class ProgressTimer:
    """Enforces the time limits of a shift's parts."""

    def __init__(self, timeouts: Timeouts, *, has_window: bool = False) -> None:
        self.use(timeouts, has_window=has_window)
        self._part: tuple[Any, ...] = ()
        self._since: datetime | None = None
        #: When steps began to fail, when a person was told, and from when on no time has been counted.
        self._out_of_reach: datetime | None = None
        self._told: datetime | None = None
        self._failed: datetime | None = None

    def use(self, timeouts: Timeouts, *, has_window: bool) -> None:
        """Take other time limits for what is under way."""
        self._timeouts, self._patience = timeouts, patience(timeouts, has_window=has_window)

    def see(
        self, world: World, desired: Allocation, now: datetime, *, started: bool, ready: Allocation | None = None
    ) -> None:
        """Note the progress; raises ``PartTookTooLong``. Time in which steps fail does not count."""
        part, limit, what = self._waiting_for(world, desired, ready)
        if self._since and self._failed:
            self._since += now - self._failed
        self._failed = None
        if part != self._part or self._since is None or not started:
            self._part, self._since = part, now
        elif limit is not None and now - self._since > limit:
            problems = "; ".join(problem for seen in world.holdings.values() for problem in seen.problems)
            raise PartTookTooLong(f"{what} after {limit}" + (f" ({problems})" if problems else ""))

    def wait_out(self, error: Exception, now: datetime, log: Logger) -> None:
        """Note that a step failed; raises ``PartTookTooLong`` if all steps have failed for too long."""
        needs_person, self._failed = needs_a_person(error), self._failed or now
        if self._out_of_reach is None or self._told is None or (needs_person and now - self._told > _REMIND):
            self._out_of_reach, self._told = self._out_of_reach or now, now
            if needs_person:
                left = self._out_of_reach + self._timeouts.out_of_reach - now
                log.error("The owner of the Airflow connection has to mend it within %s, or this ends: %s", left, error)
            else:
                log.warning("No step is possible at present, retrying; what has begun continues by itself: %s", error)
        elif now - self._out_of_reach > self._timeouts.out_of_reach:
            raise PartTookTooLong(f"no step succeeded for {self._timeouts.out_of_reach}: {error}")

    def worked(self) -> None:
        """Note that a whole step succeeded. A cluster may answer queries but reject changes, so less does not count."""
        self._out_of_reach = self._told = None

    def _waiting_for(
        self, world: World, desired: Allocation, desired_ready: Allocation | None
    ) -> tuple[tuple[Any, ...], timedelta | None, str]:
        donors, receivers = world.donors(desired), world.receivers(desired, desired_ready)
        ready = tuple(seen.ready for name, seen in world.holdings.items() if name in receivers)
        promised = [name for name in receivers if world.holdings[name].allowed >= desired[name]]
        if donors:
            names = " and ".join(donors)
            left = tuple(max(world.holdings[name].held, world.holdings[name].allowed) for name in donors)
            return ("release", left, ready), self._patience, f"{names} still has more than desired"
        short = [name for name in receivers if world.block.free is None or world.block.free < world.gpus[name]]
        if short and not promised:
            free, what = world.block.free, "the number of free GPUs of the block is unknown"
            what = what if free is None else f"only {free} GPUs of the block are free"
            for_whom = " and ".join(short)
            what += f", too few for {for_whom}: check that the machines are gone and their node group scales down"
            return ("free", world.block.usage, ready), self._timeouts.free, what
        if receivers:
            return ("ready", ready), self._timeouts.ready, f"{' and '.join(receivers)} is not ready"
        return ("free", world.block.usage), self._timeouts.free, "the released GPUs are not free in the block"
