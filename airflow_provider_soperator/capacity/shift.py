"""A shift: moves capacity to the desired allocation, in steps that any process can continue.

A shift keeps no progress in memory. Each round observes the world and does what is possible now, so a process that
takes over from one that has died does the same. The state before the shift cannot be observed: the lease keeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar

from airflow_provider_soperator.capacity.figures import Figures, Meter
from airflow_provider_soperator.capacity.holdings import Allocation, World, may_have
from airflow_provider_soperator.capacity.kubernetes_lease import KubernetesLease
from airflow_provider_soperator.capacity.lease import IsAlive, JointLease, LeaseLost, ShiftDisplaced
from airflow_provider_soperator.capacity.lease_store import LeaseStore
from airflow_provider_soperator.capacity.order import PartTookTooLong, ProgressTimer, ShiftOrder
from airflow_provider_soperator.capacity.shift_plan import ShiftPlan, plan
from airflow_provider_soperator.capacity.targets.protocol import Clients, Session, SessionContext
from airflow_provider_soperator.errors import CapacityError, CapacityMistake, ConnectionMistake
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.errors import SlurmError
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, TransportError

T = TypeVar("T")

#: Reads a block from the cloud.
BlockReader = Callable[[], Awaitable[CapacityBlock]]
#: Characters of an error that a lease has room for.
_MOST_OF_A_CAUSE = 200


class ShiftFailed(CapacityError):
    """A shift has failed; the message says why, what was rolled back, and the present allocation."""


@dataclass(frozen=True)
class ShiftOutcome:
    """The result of a finished shift."""

    allocation: dict[str, int]
    figures: Figures

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {"allocation": self.allocation, "figures": self.figures.describe()}


class Shift:
    """A shift at work, with its targets open.

    async with Shift.open(order, clients, log) as shift:
        print(await shift.plan(await shift.check()))
        outcome = await shift.run()
    """

    def __init__(
        self,
        order: ShiftOrder,
        block: BlockReader,
        sessions: Mapping[str, Session],
        log: Logger,
        agreed: LeaseStore | None = None,
    ) -> None:
        self._order, self._block, self._sessions, self._log = order, block, sessions, log
        self._gpus = {target.name: target.gpus_per_unit for target in order.targets}
        self._agreed = agreed
        self._leases = [agreed] if agreed else [lease for session in sessions.values() if (lease := session.lease())]
        self._lease = JointLease(order, log)
        self._lease.use(self._leases)
        self._meter = Meter(self._gpus)
        self._progress = ProgressTimer(order.timeouts)

    @classmethod
    @asynccontextmanager
    async def open(cls, order: ShiftOrder, clients: Clients, log: Logger) -> AsyncIterator[Shift]:
        """A shift with its targets open."""
        context = SessionContext(block=order.block, key=order.key, why=order.why)
        async with AsyncExitStack() as opened:
            sessions = {
                target.name: await opened.enter_async_context(target.open(context, clients, log))
                for target in order.targets
            }
            place = await opened.enter_async_context(clients.leases(order.nebius_conn_id))
            agreed = KubernetesLease(place, order.block, order.key) if place else None
            yield cls(order, partial(clients.block, order.nebius_conn_id, order.block), sessions, log, agreed)

    # Before anything is moved

    async def look(self) -> World:
        """Read the present holdings of all targets."""
        seen = await asyncio.gather(*(session.look() for session in self._sessions.values()))
        # The block last: it then accounts for all that a target was seen to hold.
        return World(await self._block(), dict(zip(self._sessions, seen, strict=True)), self._gpus)

    async def check(self) -> World:
        """Return the present world, or raise ``CapacityMistake`` if the order could never be carried out."""
        block = await self._block()
        self._check_block(block)
        for name, session in self._sessions.items():
            await session.check(self._order.desired[name], block)
        return await self.look()

    def _check_block(self, block: CapacityBlock) -> None:
        wanted = sum(units * self._gpus[name] for name, units in self._order.desired.items())
        if block.state == "allocating":
            raise CapacityError(f"block {block.id} is being allocated", "retry once it is active")
        if block.state != "active":
            raise CapacityMistake(f"block {block.id} is {block.state}, expected active", "use an active block")
        if wanted > block.limit:
            raise CapacityMistake(
                f"{wanted} GPUs are desired, but block {block.id} has {block.limit}",
                "ask for less, or extend the block",
            )
        # The next window begins at ``until``, so that moment itself does not count.
        last = self._order.until - datetime.resolution if self._order.until else self._order.wanted_at
        later = block.limit_at(max(last, datetime.now(timezone.utc)))
        if wanted > later:
            raise CapacityMistake(
                f"{wanted} GPUs are desired, but block {block.id} has only {later} from {block.next_change_at} on",
                "extend the block, or ask for less",
            )

    async def plan(self, world: World) -> ShiftPlan:
        """The plan in words, for approval."""
        desired = self._order.desired
        reasons = {name: await self._sessions[name].explain(desired[name]) for name in world.donors(desired)}
        notes = await self._lease.notes(datetime.now(timezone.utc))
        if self._agreed is None and (world.others != 0 or not self._leases):
            notes.append(
                "others may move GPUs of the block at the same time: lease_conn_id of the connection "
                f"{self._order.nebius_conn_id} names no cluster in which all shifts of the block wait for each other"
            )
        return plan(world, self._order, reasons, notes)

    # Moving

    async def run(self, is_alive: IsAlive | None = None) -> ShiftOutcome:
        """Move everything; on failure roll back, and raise ``ShiftFailed`` with the present allocation."""
        try:
            outcome = await self._with_lease(is_alive)
        # Not if this process is stopped: then another one continues.
        except Exception:
            await self._leave_if_possible()
            raise
        await self._leave_if_possible()
        return outcome

    async def _with_lease(self, is_alive: IsAlive | None) -> ShiftOutcome:
        while True:
            try:
                await self._until(lambda now: self._take_lease(now, is_alive))
                return await self._there_or_back()
            except ShiftDisplaced as error:
                self._log.warning("This process waits: %s", error)
                self._lease.step_aside()
                self._progress = ProgressTimer(self._order.timeouts)

    async def leave(self) -> None:
        """Remove what existed only for the shift. What has been moved stays where it is."""
        for session in self._sessions.values():
            await session.finish()
        await self._lease.give_back()

    async def _take_lease(self, now: datetime, is_alive: IsAlive | None) -> bool | None:
        holder = await self._lease.take(now, is_alive, self._forget)
        if holder is None:
            await self._lease.begin(await self.look(), now)
            return True
        if not self._order.wait_for_lease:
            raise self._lease.refuse(holder, self._order.block)
        self._lease.tell(holder)
        return None

    async def _forget(self, key: str) -> None:
        for session in self._sessions.values():
            await session.forget(key)

    async def _there_or_back(self) -> ShiftOutcome:
        record = self._lease.record
        if not record.undone:
            try:
                return await self._until(lambda now: self._round(now, self._order.desired))
            except LeaseLost:
                # The block now belongs to another shift.
                raise
            except CapacityError as error:
                if not self._order.rollback:
                    raise await self._failed(str(error), "it was not rolled back") from error
                self._log.warning("The shift has failed, rolling back: %s", error)
                record = replace(self._lease.record, undone=str(error)[:_MOST_OF_A_CAUSE])
                self._progress = ProgressTimer(self._order.timeouts)
                await self._until(lambda now: _done(self._lease.keep(record)))
        try:
            await self._until(lambda now: self._round(now, record.before, back=record.ready))
        except LeaseLost:
            raise
        except CapacityError as error:
            raise await self._failed(record.undone, f"the rollback failed: {error}") from error
        raise await self._failed(record.undone, "it was rolled back")

    async def _round(
        self, now: datetime, desired: Allocation, *, back: Allocation | None = None
    ) -> ShiftOutcome | None:
        """Observe, and do what is possible now; ``back`` has the units to be ready after a rollback."""
        await self._lease.renew(now)
        world = await self.look()
        self._meter.see(world, now)
        has_begun = back is not None or self._order.release(now).mode is not None
        donors, receivers = world.donors(desired), world.receivers(desired, back)
        if not donors and not receivers and self._is_settled(world, desired):
            return await self._end(world, now)
        try:
            self._progress.see(world, desired, now, started=has_begun, ready=back)
        except PartTookTooLong as error:
            if donors or receivers:
                raise
            # The units were only to be released, and are. Others may have taken the GPUs at once.
            self._log.warning("%s", error)
            return await self._end(world, now)
        for name in donors:
            await self._sessions[name].shrink(desired[name], self._order.release(now, back=back is not None))
        if has_begun:
            await self._lease.mark("leaving", now)
            await self._grow(world, desired, [name for name in receivers if name not in donors], back)
            if not donors:
                await self._lease.mark("released", now)
        return None

    async def _grow(self, world: World, desired: Allocation, names: list[str], back: Allocation | None) -> None:
        ready = desired if back is None else back
        may = may_have(self._lease.counted(world), ready)
        late = [name for name in names if world.holdings[name].ready < ready[name]]
        await self._lease.claim(world, {name: min(may[name], ready[name]) for name in late})
        for name in late:
            await self._sessions[name].grow(min(may[name], ready[name]))
        # Units that were allowed but not at work need nothing of the block now, but may take it: they come last.
        for name in [] if late else names:
            await self._sessions[name].allow(desired[name])

    def _is_settled(self, world: World, desired: Allocation) -> bool:
        """True if nothing moves any more, and the GPUs that no target takes are free: their machines are gone."""
        if not all(seen.is_settled for seen in world.holdings.values()):
            return False
        before, others = self._lease.record.before, self._lease.record.others
        given_up = sum((before[name] - desired[name]) * self._gpus[name] for name in desired)
        return given_up <= 0 or others is None or (world.others is not None and world.others <= max(others, 0))

    async def _end(self, world: World, now: datetime) -> ShiftOutcome:
        if "leaving" in self._lease.record.marks:
            # The release may have been all there was to do, or have completed since the last observation.
            await self._lease.mark("released", now)
        await self._lease.claim(world, {})
        await self._lease.mark("ready", now)
        losses = [await session.losses() for session in self._sessions.values()]
        figures = self._meter.figures(self._lease.record.marks, self._order.wanted_at, losses)
        return ShiftOutcome({name: seen.allowed for name, seen in world.holdings.items()}, figures)

    async def _failed(self, why: str, what: str) -> ShiftFailed:
        try:
            where = self._describe(await self.look())
        except (SlurmError, TransportError) as error:
            where = f"The present allocation is unknown: {error}"
        return ShiftFailed(f"{why}; {what}. {where}")

    def _describe(self, world: World) -> str:
        lines = [
            f"{name} may have {seen.allowed} {self._order.units(name)}, {seen.ready} ready"
            + (f" ({', '.join(seen.problems)})" if seen.problems else "")
            for name, seen in world.holdings.items()
        ]
        free = "an unknown number of" if world.block.free is None else world.block.free
        return f"Now {'; '.join(lines)}; {free} GPUs of the block are free"

    async def _leave_if_possible(self) -> None:
        if self._lease.is_displaced:
            return
        self._progress = ProgressTimer(self._order.timeouts)
        try:
            await self._until(lambda now: _done(self.leave()))
        except CapacityError as error:
            self._log.warning("The reservations of the shift could not be removed: %s", error)

    async def _until(self, step: Callable[[datetime], Awaitable[T | None]]) -> T:
        """Repeat a step until it returns a result.

        A network failure or a restarting cluster is waited out: neither is a reason to roll back.
        """
        while True:
            now = datetime.now(timezone.utc)
            try:
                answer = await step(now)
            except (SlurmError, TransportError) as error:
                if not error.retryable and not isinstance(error, ConnectFailed):
                    raise CapacityError(str(error)) from error
                self._progress.wait_out(error, now, self._log)
            else:
                self._progress.worked()
                if answer is not None:
                    return answer
            await asyncio.sleep(self._pause(now))

    def _pause(self, now: datetime) -> float:
        """Seconds until the next step, which is not later than the moment at which units leave."""
        left = (self._order.leaves_at - now).total_seconds()
        return min(self._order.poll_interval, left) if left > 0 else self._order.poll_interval


async def _done(work: Awaitable[None]) -> bool:
    await work
    return True


async def begin(
    order_for: Callable[[int], Awaitable[ShiftOrder]], block: str, nebius_conn_id: str, clients: Clients, log: Logger
) -> tuple[ShiftOrder, ShiftPlan]:
    """The order for a block, checked, and its plan; ``order_for`` makes it from the block's number of GPUs.

    Raises ``CapacityMistake`` if a retry cannot help, and otherwise ``CapacityError``.
    """
    try:
        order = await order_for((await clients.block(nebius_conn_id, block)).limit)
        async with Shift.open(order, clients, log) as shift:
            return order, await shift.plan(await shift.check())
    except ConnectionMistake as error:
        raise CapacityMistake(str(error)) from error
    except (SlurmError, TransportError) as error:
        # A host that does not answer now may answer later.
        may_pass = error.retryable or isinstance(error, ConnectFailed)
        raise (CapacityError if may_pass else CapacityMistake)(str(error)) from error
