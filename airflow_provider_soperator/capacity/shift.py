"""A shift: moves capacity towards the desired allocation, in steps that any process can continue.

A shift keeps no progress in memory. Each round observes the world and does what is possible now, so a process that
takes over from one that has died does the same. The state before the shift cannot be observed: the lease keeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.capacity.connections import ShiftConnections
from airflow_provider_soperator.capacity.figures import Figures, Meter
from airflow_provider_soperator.capacity.holdings import Allocation, Goal, Release, World, may_have, may_leave
from airflow_provider_soperator.capacity.lease import IsAlive, LeaseLost, ShiftDisplaced
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.order import (
    PartTookTooLong,
    ProgressTimer,
    ShiftFailed,
    ShiftOrder,
    Superseded,
    is_waited_out,
)
from airflow_provider_soperator.capacity.reconciliation import BlockReader, OrderedShift
from airflow_provider_soperator.capacity.shift_plan import ShiftOutcome, missing_units, present, shift_state
from airflow_provider_soperator.capacity.steering import ShiftSteering, SteeringCommand, asked, left_out, steered
from airflow_provider_soperator.errors import CapacityBusy, CapacityError
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.transports.transport_errors import FAILURES

T = TypeVar("T")

#: Seconds in which a shift that has failed may find its last figures.
_LAST_LOOK = 60.0
#: Characters of an error that a lease has room for.
_MOST_OF_A_CAUSE = 200
#: Parts of ``poll_interval``: while machines are in transit between targets; and the least pause between steps.
_IN_TRANSIT = 0.25
_LEAST_PAUSE = 0.2


class Shift(OrderedShift):
    """A shift at work. Its sessions are opened at the first step, and again after each step that has failed.

    A connection may have been mended in Airflow meanwhile.
    """

    def __init__(self, order: ShiftOrder, block: BlockReader, connections: ShiftConnections, log: Logger) -> None:
        super().__init__(order, block, connections, log)
        #: As it was given, before anything was asked of the shift.
        self._given = order
        self._steering: ShiftSteering | None = None
        self._commands: Sequence[SteeringCommand] = ()
        self._meter = Meter(self._gpus)
        #: Once it is over.
        self._figures: Figures | None = None
        self._progress = self._timer()
        self._state: dict[str, Any] = {}
        self._is_in_transit = False

    async def run(self, is_alive: IsAlive | None = None, steering: ShiftSteering | None = None) -> ShiftOutcome:
        """Move what is possible. Raises ``Superseded`` if the window is over before anything could be moved."""
        self._steering = steering
        while True:
            try:
                await self._until(lambda now: self._take_lease(now, is_alive))
                outcome = await self._there_or_back()
                break
            except ShiftDisplaced as error:
                self._log.warning("This process waits: %s", error)
                self._lease.step_aside()
                self._progress = self._timer()
            # Not if this process is stopped: then another one continues.
            except Exception:
                await self.leave_if_possible()
                raise
        await self.leave_if_possible()
        return outcome

    async def leave(self) -> None:
        """Remove what existed only for the shift. What has been moved stays where it is."""
        while not await self._leave():
            await asyncio.sleep(self._order.poll_interval)

    async def _leave(self) -> bool | None:
        if self._lease.is_displaced:
            # Another process goes on with it.
            return True
        await self._connect()
        # A shift that has the block by now is at work with cordons and comments of the same name.
        is_anothers = await self._lease.is_anothers()
        key, sessions = self._order.key, self._sessions.values()
        # One after the other: targets in one Slurm share a reservation.
        ends = (one.forget(key) if is_anothers else one.finish() for one in sessions)
        answers = [answer for end in ends for answer in await asyncio.gather(end, return_exceptions=True)]
        if False in answers:
            return None
        errors = [error for error in answers if isinstance(error, BaseException)]
        for error in errors:
            if isinstance(error, Exception) and is_waited_out(error):
                raise error
        if errors:
            # What could not be brought to its end keeps no node from jobs.
            await asyncio.gather(*(one.forget(key) for one in sessions), return_exceptions=True)
        await self._lease.give_back()
        for error in errors:
            raise error
        return True

    async def _take_lease(self, now: datetime, is_alive: IsAlive | None) -> bool | None:
        async def forget(key: str) -> None:
            for session in self._sessions.values():
                await session.forget(key)

        holder = await self._lease.take(now, is_alive, forget)
        has_begun = self._lease.is_displaced or (holder is None and self._lease.record.before)
        if self._is_over(now) and not has_begun:
            raise Superseded(f"the time for {self._order.why or 'this shift'} was over before anything was moved")
        if holder is None:
            await self._lease.begin(await self.look(), now)
            # What other processes have summed up.
            self._meter = Meter(self._gpus, self._lease.record.sums)
            return True
        if not self._order.wait_for_lease:
            said = f"{holder} is moving block {self._order.block}"
            raise CapacityBusy(said, f"wait until it ends; {holder.how_to_end}")
        self._lease.tell(holder)
        return None

    def _is_over(self, now: datetime) -> bool:
        return self._order.ends_at is not None and now >= self._order.ends_at

    async def _there_or_back(self) -> ShiftOutcome:
        record = self._lease.record
        if not record.undone:
            try:
                return await self._until(self._forward, renews=True)
            except LeaseLost:
                # The block now belongs to another shift.
                raise
            except CapacityError as error:
                if self._order.rollback == "none":
                    raise await self._failed(str(error), "what was moved stays where it is") from error
                self._log.warning("The shift has failed, rolling back: %s", error)
                record = replace(self._lease.record, undone=str(error)[:_MOST_OF_A_CAUSE])
                self._progress = self._timer()
                await self._until(lambda now: self._lease.keep(record))
        try:
            await self._until(lambda now: self._back(now, record), renews=True)
        except LeaseLost:
            raise
        except CapacityError as error:
            raise await self._failed(record.undone, f"the rollback failed: {error}") from error
        failure = await self._failed(record.undone, "it was rolled back")
        failure.is_rolled_back = True
        raise failure

    async def _see(self, now: datetime) -> World:
        await self._lease.renew(now)
        world = await self.look()
        record, given = self._lease.record, self._given
        due = record.before if record.undone else given.desired if now >= given.leaves_at else {}
        self._meter.see(world, now, due)
        self._lease.note(self._meter.sums)
        return world

    async def _forward(self, now: datetime) -> ShiftOutcome | None:
        """Observe, and do what is possible now; the outcome, once nothing more is, or the window is over."""
        stop = await self._why_to_stop(now)
        world, order = await self._see(now), self._order
        if stop:
            return await self._end(world, now, stop)
        has = {name: max(seen.held, seen.allowed) for name, seen in world.holdings.items()}
        goal = world.goal({name: order.allowed(name, order.desired[name], units) for name, units in has.items()})
        try:
            is_there, why = await self._move(now, world, goal, order.release(now), {}), ""
        except PartTookTooLong as error:
            if order.rollback == "all":
                raise
            # What does not come may be bought, which has its time.
            is_there, why = True, str(error)
        return await self._end(world, now, why) if await self._buy(world, now) and is_there else None

    async def _buy(self, world: World, now: datetime) -> bool:
        """Buy what the block lacks after the handover, if the user allows it; True once nothing is to come."""
        order, is_done = self._order, True
        most = may_have(self._lease.counted(world), order.desired) if order.buys else {}
        for name, fallback in order.buys.items():
            seen, lacks = world.holdings[name], order.desired[name] - most[name] if order.may_buy else 0
            is_time = now >= order.wanted_at + fallback.after
            is_there = is_time or lacks <= 0
            # What was bought in the window before is paid for until its end, as other units stay until they leave.
            if now >= order.leaves_at:
                to_buy, keeps = lacks if is_time else 0, order.desired[name] - seen.ready
                is_there &= await self._sessions[name].buy(to_buy, keeps, now, order.until)
            is_done &= is_there and (now >= order.leaves_at or not seen.bought)
        return is_done

    async def _back(self, now: datetime, record: ShiftRecord) -> bool | None:
        """Take a step back: what serves goes only as the place of what went before it is taken."""
        if stop := await self._why_to_stop(now):
            raise CapacityError(stop)
        world = await self._see(now)
        goal = world.goal(record.before)
        goal = Goal(goal.units, {name: min(ready, record.ready[name]) for name, ready in goal.ready.items()})
        least = may_leave(self._lease.counted(world), goal, lingering=self._has_lingering(world))
        return await self._move(now, world, goal, self._order.release(now, back=True), least) or None

    async def _move(self, now: datetime, world: World, goal: Goal, release: Release, least: Mapping[str, int]) -> bool:
        """Take a step towards a goal, with at ``least`` so many units left; True once it is reached."""
        donors, receivers = world.donors(goal.units), world.receivers(goal.units, goal.ready)
        if not donors and not receivers and self._is_settled(world, goal.units):
            return True
        has_begun = release.mode is not None
        self._is_in_transit = has_begun and not self._is_settled(world, goal.units)
        try:
            self._progress.see(world, goal.units, now, started=has_begun, ready=goal.ready)
        except PartTookTooLong as error:
            if donors or receivers:
                raise
            # The units were only to be released, and are. Others may have taken the GPUs at once.
            self._log.warning("%s", error)
            return True
        for name in donors:
            await self._sessions[name].shrink(least.get(name, goal.units[name]), release)
        for name in world.holdings.keys() - donors:
            await self._sessions[name].relax()
        await self._tell(world, "" if has_begun else f"nodes leave from {release.leaves_at:%d %b %H:%M %Z} on")
        if has_begun:
            await self._lease.mark("leaving", now)
            await self._grow(world, goal, [name for name in receivers if name not in donors])
            if not donors:
                await self._lease.mark("released", now)
        return False

    async def _why_to_stop(self, now: datetime) -> str:
        """Why the shift is to stop where it is, if it is: a person has asked for it, or its window is over."""
        stop = await self._heed()
        if self._is_over(now):
            stop = stop or f"the window of the shift was over at {self._order.ends_at:%d %b %H:%M %Z}"
        return stop

    async def _heed(self) -> str:
        """Put into force what was asked of the shift; returns why the shift is to stop, if it is."""
        commands = await self._steering.commands(self._lease.record) if self._steering else ()
        for command in commands[len(self._commands) :]:
            self._log.warning("%s", command)
        self._commands, self._order = commands, steered(self._given, commands)
        self._progress.use(self._order.timeouts, has_window=self._order.may_wait)
        for session in self._sessions.values():
            session.leave_out(left_out(commands))
        return next((str(command) for command in commands if command.action == "stop"), "")

    async def _tell(self, world: World, *more: str, is_over: bool = False) -> None:
        """Show how far the shift has come, when that has changed."""
        state = shift_state(world, self._lease.record, self._order, more)
        sessions = () if is_over else self._sessions.values()
        state["jobs_in_the_way"] = [job for session in sessions for job in session.jobs_in_the_way]
        if state != self._state:
            if state["text"] != self._state.get("text"):
                self._log.info("%s", state["text"])
            self._state = state
            if self._steering:
                await self._steering.show(state)

    async def _grow(self, world: World, goal: Goal, names: list[str]) -> None:
        seen = world.holdings
        # Units that take no work count as well: they have their GPUs.
        to = {name: min(units, goal.ready[name] + seen[name].broken) for name, units in goal.units.items()}
        most = may_have(self._lease.counted(world), to)
        may = {name: min(most[name], to[name]) for name in names if seen[name].ready < goal.ready[name]}
        await self._lease.claim(world, may)
        for name, units in may.items():
            await self._sessions[name].grow(units)
        # Units that were allowed but not at work need nothing of the block now, but may take it: they come last.
        for name in [] if may else names:
            await self._sessions[name].allow(goal.units[name])

    def _is_settled(self, world: World, desired: Allocation) -> bool:
        """True if nothing moves any more, and the GPUs that no target takes are free: their machines are gone."""
        if not all(seen.is_settled for seen in world.holdings.values()):
            return False
        before = self._lease.record.before
        given_up = sum((before[name] - desired[name]) * self._gpus[name] for name in desired)
        return given_up <= 0 or not self._has_lingering(world)

    def _has_lingering(self, world: World) -> bool:
        """True if the block has machines that were none of others when the shift began, and are no target's."""
        before = self._lease.record.others
        return before is not None and (world.others is None or world.others > max(before, 0))

    async def _end(self, world: World, now: datetime, why: str = "") -> ShiftOutcome:
        if "leaving" in self._lease.record.marks:
            # The release may have been all there was to do, or have completed since the last observation.
            await self._lease.mark("released", now)
        await self._lease.keep_claims(world)
        await self._lease.mark("ready", now)
        figures, missing = await self._settle(now), missing_units(world, self._order, why)
        await self._tell(world, is_over=True)
        different = asked(self._commands, self._given, world)
        return ShiftOutcome("partial" if missing else "done", world.allowed, figures, missing, different)

    async def report(self, state: str) -> dict[str, Any]:
        """Tell in JSON what the shift has cost, once it has ended in this state, as far as that is known."""
        now = datetime.now(timezone.utc)
        figures = self._figures or self._meter.figures(self._lease.record.marks, self._given.wanted_at, now)
        if self._figures is None:
            with suppress(CapacityError, *FAILURES, asyncio.TimeoutError):
                async with timeout(_LAST_LOOK):
                    await self._connect()
                    figures = await self._settle(now)
        return {"state": state, "at": now.isoformat(), **figures.report(), "figures": figures.describe()}

    async def _settle(self, now: datetime) -> Figures:
        losses = [await session.losses() for session in self._sessions.values()]
        bought = await self._connections.machines.bought(self._sessions)
        marks, wanted_at = self._lease.record.marks, self._given.wanted_at
        self._figures = figures = self._meter.figures(marks, wanted_at, now, losses, bought)
        return figures

    async def _failed(self, why: str, what: str) -> ShiftFailed:
        try:
            world = await self.look()
            where = present(world, self._order)
            await self._tell(world, f"failed: {why}; {what}", is_over=True)
        except FAILURES as error:
            where = f"The present allocation is unknown: {error}"
        return ShiftFailed(f"{why}; {what}. {where}")

    def _timer(self) -> ProgressTimer:
        return ProgressTimer(self._order.timeouts, has_window=self._order.may_wait)

    async def leave_if_possible(self) -> None:
        """Leave, and wait out an outage."""
        self._progress = self._timer()
        try:
            await self._until(lambda now: self._leave())
        except CapacityError as error:
            self._log.warning("The reservations of the shift could not be removed: %s", error)

    async def _until(self, step: Callable[[datetime], Awaitable[T | None]], *, renews: bool = False) -> T:
        """Repeat a step until it returns a result; with ``renews``, the lease is renewed while a target is away, too.

        A network failure, a restarting cluster or a connection that a person has to mend is waited out: none is a
        reason to roll back.
        """
        while True:
            now, began = datetime.now(timezone.utc), asyncio.get_running_loop().time()
            try:
                answer = await (self._renewing(step, now) if renews else self._connected(step, now))
            except FAILURES as error:
                if not is_waited_out(error):
                    raise CapacityError(str(error)) from error
                self._progress.wait_out(error, now, self._log)
                if renews and not self._sessions:
                    await self._renew()
                await self._connections.close()
            else:
                self._progress.worked()
                if answer is not None:
                    return answer
            await asyncio.sleep(self._pause(now, asyncio.get_running_loop().time() - began))

    async def _connected(self, step: Callable[[datetime], Awaitable[T]], now: datetime) -> T:
        await self._connect()
        return await step(now)

    async def _renewing(self, step: Callable[[datetime], Awaitable[T]], now: datetime) -> T:
        """Take a step, which may wait for a target longer than the lease lasts; it ends if the lease is lost."""
        task = asyncio.ensure_future(self._connected(step, now))
        try:
            while not (await asyncio.wait([task], timeout=self._lease.renewed_every.total_seconds()))[0]:
                await self._renew()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _renew(self) -> None:
        # The places of the lease may be there before the targets are.
        self._lease.use(self._connections.stores)
        with suppress(*FAILURES):
            await self._lease.renew(datetime.now(timezone.utc))

    def _pause(self, now: datetime, took: float) -> float:
        """Seconds until the next step, after one that began ``now``; not later than units leave."""
        interval = self._order.poll_interval * (_IN_TRANSIT if self._is_in_transit else 1.0)
        left = (self._order.leaves_at - now).total_seconds()
        return max(left - took, 0.0) if 0 < left < interval else max(interval - took, interval * _LEAST_PAUSE)
