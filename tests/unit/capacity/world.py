"""A small world in memory: a block, targets that take and give up GPUs as clouds do, and processes that die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo
from enum import Enum
from typing import Any

from airflow_provider_soperator.capacity.connections import ShiftConnections, TargetMachines
from airflow_provider_soperator.capacity.holdings import Holding, ProjectShare, Release
from airflow_provider_soperator.capacity.lease_store import LeaseStore
from airflow_provider_soperator.capacity.reservations import ReservationLease
from airflow_provider_soperator.capacity.targets.protocol import Session
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.cluster_records import Reservation
from airflow_provider_soperator.slurm.errors import ReservationConflict, UnknownReservation
from airflow_provider_soperator.slurm.requests import (
    CreateReservation,
    DeleteReservation,
    ListReservations,
    PowerDownMode,
    Request,
    UpdateReservation,
)
from airflow_provider_soperator.transports.transport_errors import ConnectionLost

START = datetime(2026, 11, 21, 20, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
BLOCK = "capacityblockgroup-1"
NEVER = 10**9


class Log:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, *args: Any) -> None:
        self.said.append(event % args)

    warning = error = info


class Death(BaseException):
    """A process has ended in the midst of something."""


class Process:
    """What runs a shift. It dies when it comes to a given step, and does nothing more."""

    def __init__(self, dies_at: int = NEVER) -> None:
        self.steps = 0
        self._dies_at = dies_at

    def live(self) -> None:
        self.steps += 1
        if self.steps >= self._dies_at:
            raise Death


class Reservations:
    """Slurm's list of reservations: names are unique, and it says so to whoever comes second."""

    def __init__(self) -> None:
        self.known: dict[str, Reservation] = {}

    def answer(self, request: Request[Any]) -> Any:
        if isinstance(request, ListReservations):
            return tuple(self.known.values())
        assert isinstance(request, CreateReservation | UpdateReservation | DeleteReservation)
        # Real ones are asked for by a command, which refuses what cannot be said.
        request.command()
        if isinstance(request, DeleteReservation):
            return self.known.pop(request.name, None) is not None
        if isinstance(request, CreateReservation):
            if request.name in self.known:
                raise ReservationConflict("Duplicate reservation name", "scontrol")
            self._set(request.name, Reservation(name=request.name), request)
            return request.name
        if request.name not in self.known:
            raise UnknownReservation("Requested reservation is invalid", "scontrol")
        self._set(request.name, self.known[request.name], request)
        return None

    def _set(self, name: str, before: Reservation, said: CreateReservation | UpdateReservation) -> None:
        self.known[name] = Reservation(
            name=name,
            start=said.start or before.start,
            end=said.end or before.end,
            nodelist=",".join(said.nodes) or before.nodelist,
            comment=said.comment or before.comment,
        )


class State(Enum):
    """What a unit is doing."""

    OFF = "off, and may not come by itself"
    SLEEPING = "off, and may come by itself"
    ASKED = "has been told to come, and has no machine yet"
    BOOTING = "has a machine, and is on its way in"
    READY = "at work"
    GOING = "is to go, and still at work"
    LINGERING = "off, while its machine is still there"
    DRAINED = "drained by somebody, with its machine"
    BANNED = "drained by somebody, and off"


OUT = {State.OFF, State.LINGERING, State.BANNED}
WITH_MACHINE = {State.BOOTING, State.READY, State.GOING, State.LINGERING, State.DRAINED}


@dataclass
class Unit:
    """One unit, and when it goes on by itself."""

    state: State
    due: int = NEVER


def at_once(unit: int) -> int:
    return 0


@dataclass
class Pace:
    """After how many ticks each unit of a target goes on."""

    #: Its work ends, once it is to go.
    work: Callable[[int], int] = at_once
    #: Its machine is gone, once it is off.
    machine: Callable[[int], int] = at_once
    #: It takes up what it was told to.
    claim: Callable[[int], int] = at_once
    #: It can take work.
    boot: Callable[[int], int] = at_once


@dataclass
class Units:
    """A target as it is."""

    cloud: Cloud
    units: list[Unit]
    gpus: int = 8
    pace: Pace = field(default_factory=Pace)
    #: When which unit was given up or taken up.
    gone: list[int] = field(default_factory=list)
    come: list[int] = field(default_factory=list)
    #: The least that it was shrunk to.
    least: int = NEVER
    #: Its node group buys what the block lacks (AUTO); and the units whose machines were bought.
    buys: bool = False
    bought: set[int] = field(default_factory=set)

    def count(self, *states: State) -> int:
        return sum(unit.state in states for unit in self.units)

    @property
    def allowed(self) -> int:
        return len(self.units) - self.count(*OUT)

    @property
    def machines(self) -> int:
        """Those that the block holds."""
        return self.count(*WITH_MACHINE) - len(self.bought)

    def see(self) -> Holding:
        return Holding(
            allowed=self.allowed,
            held=self.count(State.BOOTING, State.READY, State.GOING, State.DRAINED),
            ready=self.count(State.READY),
            finishing=self.count(State.GOING),
            is_settled=not self.count(State.ASKED, State.BOOTING, State.GOING),
            stuck=self._fixed(State.DRAINED),
            broken=self.count(State.DRAINED),
            away=self._fixed(State.BANNED),
            size=len(self.units),
        )

    def _fixed(self, state: State) -> dict[str, str]:
        return {f"unit-{number}": "is drained: disk" for number, one in enumerate(self.units) if one.state is state}

    def shrink(self, to: int, mode: PowerDownMode) -> None:
        surplus = self.allowed - to - self.count(State.GOING)
        self.least = min(self.least, to)
        order = (State.SLEEPING, State.ASKED, State.BOOTING, State.READY)
        for number in self._first(order, surplus):
            unit, now = self.units[number], self.cloud.now
            if unit.state in (State.SLEEPING, State.ASKED):
                self._set(number, State.OFF)
            elif unit.state is State.BOOTING:
                self._set(number, State.GOING, now)
            else:
                self._set(number, State.GOING, now + self.pace.work(number))
        if mode is PowerDownMode.FORCE:
            for number in self._first((State.GOING,), len(self.units)):
                self._set(number, State.GOING, self.cloud.now)

    def grow(self, to: int) -> None:
        # What is on its way out counts as long as it holds its GPUs.
        missing = to - self.count(State.READY, State.BOOTING, State.ASKED, State.GOING, State.DRAINED)
        for number in self._first((State.SLEEPING, State.OFF), missing):
            self._set(number, State.ASKED, self.cloud.now + self.pace.claim(number))

    def allow(self, to: int) -> None:
        for number in self._first((State.OFF,), to - self.allowed):
            self._set(number, State.SLEEPING)

    def advance(self) -> None:
        """Whatever is due happens."""
        for number, unit in enumerate(self.units):
            if unit.due > self.cloud.now:
                continue
            if unit.state is State.GOING:
                self.gone.append(self.cloud.now)
                self._set(number, State.LINGERING, self.cloud.now + self.pace.machine(number))
            elif unit.state is State.LINGERING:
                self._set(number, State.OFF)
                self.bought.discard(number)
            elif unit.state is State.ASKED and (self.cloud.has_room_for(self.gpus, self) or self._buy(number)):
                self.come.append(self.cloud.now)
                self._set(number, State.BOOTING, self.cloud.now + self.pace.boot(number))
            elif unit.state is State.BOOTING:
                self._set(number, State.READY)

    def _buy(self, number: int) -> bool:
        if self.buys:
            self.bought.add(number)
        return self.buys

    def _first(self, states: Sequence[State], count: int) -> list[int]:
        found = [number for number, unit in enumerate(self.units) if unit.state in states]
        return sorted(found, key=lambda number: states.index(self.units[number].state))[: max(0, count)]

    def _set(self, number: int, state: State, due: int = NEVER) -> None:
        self.units[number] = Unit(state, due)


class Cloud:
    """A block, those who hold its GPUs, Slurm's reservations, and time."""

    def __init__(self, limit: int = 64) -> None:
        self.limit, self.now = limit, 0
        self.targets: dict[str, Units] = {}
        self.reservations = Reservations()
        #: Claims that the cloud has turned down: somebody asked for what was not free.
        self.refused = 0
        #: GPUs that others have.
        self.foreign = 0
        #: Targets whose project may have only so many GPUs of the block.
        self.shares: dict[str, tuple[frozenset[str], int]] = {}
        #: From when to when nobody is told how many GPUs are taken; and nothing works at all, for this reason.
        self.unknown: Sequence[range] = ()
        self.trouble: Sequence[range] = ()
        self.reason: Exception = ConnectionLost("the network is away")
        #: How often sessions were opened.
        self.connected = 0
        self.log = Log()

    def add(self, name: str, *, gpus: int = 8, pace: Pace | None = None, **states: int) -> Units:
        units = [Unit(State[state.upper()]) for state, count in states.items() for _ in range(count)]
        self.targets[name] = Units(self, units, gpus, pace or Pace())
        return self.targets[name]

    @property
    def taken(self) -> int:
        return self.foreign + sum(target.machines * target.gpus for target in self.targets.values())

    def _taken_by(self, names: Collection[str]) -> int:
        return sum(self.targets[name].machines * self.targets[name].gpus for name in names)

    def share(self) -> list[ProjectShare]:
        return [
            ProjectShare(project, names, limit, self._taken_by(names))
            for project, (names, limit) in self.shares.items()
        ]

    def has_room_for(self, gpus: int, target: Units | None = None) -> bool:
        fits = self.taken + gpus <= self.limit
        for names, limit in self.shares.values():
            is_in = any(self.targets[name] is target for name in names)
            fits = fits and not (is_in and self._taken_by(names) + gpus > limit)
        self.refused += not fits
        return fits

    def block(self) -> CapacityBlock:
        usage = None if any(self.now in span for span in self.unknown) else self.taken
        return CapacityBlock(id=BLOCK, limit=self.limit, usage=usage)

    def tick(self) -> None:
        self.now += 1
        for target in self.targets.values():
            target.advance()

    def ready(self) -> dict[str, int]:
        return {name: target.count(State.READY) for name, target in self.targets.items()}

    def allowed(self) -> dict[str, int]:
        return {name: target.allowed for name, target in self.targets.items()}

    # As a process sees it

    async def do(self, process: Process, deed: Callable[[], Any]) -> Any:
        """A deed that a process may die before, or before it hears of its result."""
        process.live()
        if any(self.now in span for span in self.trouble):
            raise self.reason
        result = deed()
        await asyncio.sleep(0)
        process.live()
        return result

    def reader(self, process: Process) -> Callable[[], Any]:
        async def read() -> CapacityBlock:
            seen: CapacityBlock = await self.do(process, self.block)
            return seen

        return read

    def sessions(self, process: Process, key: str) -> Callable[[Any], Any]:
        async def opened(stack: Any) -> Mapping[str, Session]:
            self.connected += 1
            return {name: UnitsSession(self, name, process, key) for name in self.targets}

        return opened

    def clock(self) -> Clock:
        return Clock(self)


class Clock:
    """In the place of ``datetime``: a second goes by whenever somebody asks for the time."""

    resolution = datetime.resolution

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def now(self, zone: tzinfo) -> datetime:
        self._cloud.tick()
        return START + self._cloud.now * SECOND


class UnitsSession(Session):
    """A target at work; the first of all has the lease, as a Slurm does."""

    def __init__(self, cloud: Cloud, name: str, process: Process, key: str) -> None:
        self._cloud, self._units, self._process, self.key = cloud, cloud.targets[name], process, key
        self._has_lease = name == next(iter(cloud.targets))

    async def check(self, units: int, block: CapacityBlock) -> None:
        return

    async def look(self) -> Holding:
        seen: Holding = await self._do(self._units.see)
        return seen

    async def shrink(self, to: int, release: Release) -> None:
        mode = release.mode
        if mode is not None:
            await self._do(lambda: self._units.shrink(to, mode))

    async def grow(self, to: int) -> None:
        await self._do(lambda: self._units.grow(to))

    async def allow(self, to: int) -> None:
        await self._do(lambda: self._units.allow(to))

    async def forget(self, key: str) -> None:
        return

    def lease(self) -> LeaseStore | None:
        return ReservationLease(self._ask, BLOCK, self.key, ("worker-0",), "root") if self._has_lease else None

    async def _do(self, deed: Callable[[], Any]) -> Any:
        return await self._cloud.do(self._process, deed)

    async def _ask(self, request: Request[Any]) -> Any:
        return await self._do(lambda: self._cloud.reservations.answer(request))


class NoMachines(TargetMachines):
    """In the place of the cloud's API, of which nothing is known."""

    def __init__(self) -> None:
        self._unchecked = []

    async def check(self, sessions: Mapping[str, Session], gpus: Mapping[str, int], block: CapacityBlock) -> None:
        return

    async def shares(self, sessions: Mapping[str, Session]) -> list[ProjectShare]:
        return []

    async def bought(self, sessions: Mapping[str, Session]) -> int | None:
        return None


class Connected(ShiftConnections):
    """The connections of a shift to what is in memory: its sessions, and the place that all have agreed on."""

    def __init__(
        self, sessions: Callable[[Any], Any], agreed: Any = None, machines: TargetMachines | None = None
    ) -> None:
        self._sessions_of, self._agreed, self.machines = sessions, agreed, machines or NoMachines()
        self._opened = AsyncExitStack()
        self.sessions, self.stores, self.is_agreed = {}, [], False

    async def _open_agreed(self, opened: AsyncExitStack) -> LeaseStore | None:
        place: LeaseStore | None = await self._agreed(opened) if self._agreed else None
        return place

    async def _open_sessions(self, opened: AsyncExitStack, found: dict[str, Session]) -> None:
        found.update(await self._sessions_of(opened))
