"""Trigger that carries out a shift of capacity, or goes on with one that another triggerer has begun."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

from airflow.sdk import BaseNotifier, Context
from airflow.sdk.exceptions import AirflowRuntimeError
from async_timeout import timeout

from airflow_provider_soperator.capacity.allocation import is_within, units_text
from airflow_provider_soperator.capacity.demand import kept_demand
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.order import ShiftFailed, ShiftOrder, Superseded
from airflow_provider_soperator.capacity.reconciliation import edited_schedule
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, ScheduleSegment
from airflow_provider_soperator.capacity.shift import Shift
from airflow_provider_soperator.capacity.shift_plan import ShiftOutcome
from airflow_provider_soperator.capacity.steering import ShiftAtWork, SteeringCommand
from airflow_provider_soperator.errors import AirflowAway, CapacityError, CapacityMistake, ConnectionMistake
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.pipelines.graph import is_ended, states_of
from airflow_provider_soperator.transports.transport_errors import FAILURES
from airflow_provider_soperator.triggers.base import KillableTrigger, call
from airflow_provider_soperator.work.protocols import failed, refused, succeeded, timed_out

#: Seconds between two looks at what is wished for, and those that a callback may take.
_LOOK = 60.0
#: Airflow does not tell, or does not take, what it is asked to keep.
_UNANSWERED = (AirflowAway, AirflowRuntimeError)


@dataclass(eq=False, repr=False)
class ShiftTrigger(KillableTrigger):
    """One shift; ``order`` has the fields of a ``ShiftOrder``, ``deadline`` is in seconds since 1970.

    ``is_last_try``: no further try of the task can go on with the shift once its time is over. ``wish`` has the
    ``schedule``, the DAG that may have been ``edited`` and since when, and the keys of the Airflow Variables with its
    ``overrides`` and with what is ``demanded``: once these wish for something else, or for it sooner, the shift stops
    where it is, and leaves the block to the run that carries that out.
    ``callbacks`` are told of jobs that are in the way: the ``path`` and ``kwargs`` of each.
    See ``work.protocols`` for its events.
    """

    order: dict[str, Any]
    deadline: float | None = None
    is_last_try: bool = True
    wish: dict[str, Any] | None = None
    callbacks: Sequence[dict[str, Any]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_given_up = True
        self._at_work: ShiftAtWork | None = None
        self._commands: tuple[SteeringCommand, ...] = ()
        #: Why commands cannot be read, once it was told.
        self._unheard = ""
        #: Jobs of which the callbacks know.
        self._told: set[str] = set()

    async def event(self) -> dict[str, Any]:
        left = None if self.deadline is None else max(0.0, self.deadline - time.time())
        try:
            async with self._open() as shift:
                state, event = await self._carry_out(shift, left)
                event["report"] = await shift.report(state)
        except (CapacityError, *FAILURES) as error:
            event = _failure(error)
        if self._is_given_up:
            result = event.get("result") or {}
            await self._note_end(str(event.get("message") or result.get("superseded") or result.get("state")))
        return event

    async def _carry_out(self, shift: Shift, left: float | None) -> tuple[str, dict[str, Any]]:
        """The state in which the shift has ended, and the event of that."""
        try:
            async with timeout(left):
                outcome = await self._while_wished(shift.run(_is_under_way, self))
            return outcome.state, succeeded(outcome.describe())
        except Superseded as error:
            await shift.leave_if_possible()
            return "superseded", succeeded({"superseded": str(error)})
        except asyncio.TimeoutError:
            if left is None:
                raise
            self._is_given_up = self.is_last_try
            if self._is_given_up:
                await shift.leave()
            return "timed_out", timed_out("the time of the task was over" + self.fate)
        except (CapacityError, *FAILURES) as error:
            is_back = isinstance(error, ShiftFailed) and error.is_rolled_back
            return "rolled_back" if is_back else "failed", _failure(error)

    async def _while_wished(self, run: Coroutine[Any, Any, ShiftOutcome]) -> ShiftOutcome:
        """Await a shift; raises ``Superseded`` once something else is wished for."""
        shift = asyncio.ensure_future(run)
        try:
            while not (await asyncio.wait([shift], timeout=_LOOK))[0]:
                # The next plan fails with a mistake in the overrides; Airflow may answer the next time.
                with suppress(CapacityMistake, *_UNANSWERED):
                    await self._check_wish()
            return shift.result()
        finally:
            shift.cancel()
            await asyncio.wait([shift])

    async def _check_wish(self) -> None:
        if self.wish is not None:
            order, now = ShiftOrder.read(self.order), datetime.now(timezone.utc)
            edited = await call(edited_schedule, *self.wish["edited"]) if "edited" in self.wish else None
            given = await call(CapacitySchedule.read, self.wish["schedule"])
            schedule, end = await call((edited or given).as_kept, self.wish["overrides"], now), order.ends_at
            # When its window is over it ends by itself, at its next poll, and tells what it has moved.
            if end is not None and end <= now < end + timedelta(seconds=2 * order.poll_interval):
                return
            wish = schedule.at(max(order.wanted_at, now))
            if not is_within(order.desired, wish.allocation):
                said = f"{wish.name} wishes for {units_text(wish.allocation)}"
            elif sooner := self._wished_sooner(order, schedule, given, now):
                said = f"{sooner.name} wishes for it sooner"
            else:
                demanded = await call(kept_demand, self.wish.get("demanded"), now)
                if not demanded or demanded == order.desired or not is_within(demanded, wish.allocation):
                    return
                said = f"demand is {units_text(demanded)}"
            raise Superseded(f"{said} by now; what was moved stays where it is")

    def _wished_sooner(
        self, order: ShiftOrder, schedule: CapacitySchedule, given: CapacitySchedule, now: datetime
    ) -> ScheduleSegment | None:
        """What wishes for the goal before the handover that the shift still waits for, if that was asked for since."""
        wish, due = self.wish or {}, schedule.due(now)
        if now >= order.leaves_at or due is None or due.at >= order.wanted_at:
            return None
        # Of what came before its run began another run has had the turn; an edit of the schedule may change the past.
        _, begun = wish.get("edited", ("", now.timestamp()))
        is_new = due.begins.timestamp() > begun or schedule.planned != given
        return due.after if is_new and is_within(order.desired, due.after.allocation) else None

    async def commands(self, record: ShiftRecord) -> Sequence[SteeringCommand]:
        try:
            if self._at_work is None:
                order = ShiftOrder.read(self.order)
                self._at_work = await call(ShiftAtWork.begin, order, record, order.until if self.wish else None)
            known = await call(self._at_work.commands)
            # A Variable that a secrets backend cannot read is missing.
            self._commands = max(known, self._commands, key=len)
        except _UNANSWERED:
            pass
        except Exception as error:
            # A shift does not end because a Variable was edited, or may not be read.
            if str(error) != self._unheard:
                self._unheard = str(error)
                self.log.warning("What is asked of the shift cannot be read: %s", error)
        return self._commands

    async def show(self, state: Mapping[str, Any]) -> None:
        # Airflow may not take it, nor an XCom backend of one's own: the shift goes on.
        with suppress(Exception):
            await self.push("state", state)
        jobs = [job for job in state["jobs_in_the_way"] if job["id"] not in self._told]
        self._told |= {job["id"] for job in jobs}
        for callback in self.callbacks if jobs else ():
            try:
                told = {"jobs": jobs, "block": self.order["block"], "ti": self.task_instance}
                async with timeout(_LOOK):
                    await _notify(callback, told)
            except Exception as error:
                # A shift does not end because a callback fails.
                self.log.warning("%s could not be told of the jobs in the way: %r", callback["path"], error)

    async def _note_end(self, how: str) -> None:
        """Note that this shift can be steered no more."""
        with suppress(*_UNANSWERED):
            at_work = self._at_work or await call(ShiftAtWork.find, self.order["block"])
            if at_work and at_work.key == self.order["key"]:
                await call(at_work.end, how, datetime.now(timezone.utc))

    async def cancel(self) -> None:
        # A task with another try goes on with this shift, and needs its start.
        self._is_given_up = _will_rest(self.task_instance, await self.state())
        if self._is_given_up:
            await self._note_end("its task was told to end")
            async with self._open() as shift:
                await shift.leave()

    @property
    def fate(self) -> str:
        if self._is_given_up:
            return "; what the shift has moved by now stays where it is, and the next one goes on from there"
        return "; its next try goes on with the shift"

    def _open(self) -> AbstractAsyncContextManager[Shift]:
        return Shift.open(ShiftOrder.read(self.order), ShiftClients(), self.log)


def _will_rest(ti: Any, state: str | None) -> bool:
    """True if a task that is being ended has no further try. A task that was marked is in that state by now."""
    if state == "running":
        # The instance of a trigger has no such number: its task was cleared, and its new try runs by now.
        return bool(ti.try_number > getattr(ti, "max_tries", ti.try_number))
    return is_ended(state)


def _failure(error: Exception) -> dict[str, Any]:
    can_never_be = isinstance(error, (CapacityMistake, ConnectionMistake))
    return (refused if can_never_be else failed)(str(error))


async def _notify(callback: Mapping[str, Any], context: dict[str, Any]) -> None:
    """Call an asynchronous function or notifier, as Airflow does it for an ``AsyncCallback``."""
    module, _, name = callback["path"].rpartition(".")
    made = getattr(import_module(module), name)
    if isinstance(made, type) and issubclass(made, BaseNotifier):
        notifier = made(**callback["kwargs"])
        notifier.context = cast(Context, context)
        await notifier
    else:
        await made(**callback["kwargs"], context=context)


async def _is_under_way(record: ShiftRecord) -> bool:
    try:
        return await call(is_under_way, record.task)
    except AirflowRuntimeError:
        # As long as Airflow does not answer, the term of the lease decides.
        return True


def is_under_way(task: str) -> bool:
    """True if the task of this Airflow that has a block can still give it back, as far as is known."""
    if task.endswith("…"):
        return True
    # Only a run's id may have slashes.
    dag_id, _, rest = task.partition("/")
    run_id, task_id, map_index = rest.rsplit("/", 2)
    run = SimpleNamespace(dag_id=dag_id, run_id=run_id)
    state = states_of(run, [task_id])[task_id].get(int(map_index))
    # A cleared task does nothing before it is scheduled again; then it waits for its turn. The DAG of an unknown one
    # was deleted or renamed.
    return state is not None and not is_ended(state)
