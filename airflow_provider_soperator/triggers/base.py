"""Bases of triggers: of tasks, which end with them, and of asset watchers, with a memory that outlives a triggerer."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from airflow.sdk import conf
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.xcom import XCom
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.pace import polled
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.pipelines.graph import states_of
from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.slurm.submission_keys import region_of
from airflow_provider_soperator.triggers.log_channel import written
from airflow_provider_soperator.values import storable

T = TypeVar("T")

#: Scheduler rounds to wait for: with many tasks at once, one was not enough.
_ROUNDS = 2
#: Seconds before Airflow is asked again for what it could not tell.
_AIRFLOW_AWAY = 30.0
#: ``made`` of a trigger that no Airflow worker came before.
NO_WORKER = 1.0
#: Default seconds between two looks of an asset watcher.
POLL_INTERVAL = 30.0
#: Part of an interval for which another watcher's answer is used. It is less than 1, so that each look is fresh.
_AS_GOOD_AS_NEW = 0.9

_UNDER_WAY: set[asyncio.Future[Any]] = set()


def _begin(work: Awaitable[T]) -> asyncio.Future[T]:
    task = asyncio.ensure_future(work)
    # The event loop keeps only weak references to tasks.
    _UNDER_WAY.add(task)
    task.add_done_callback(_UNDER_WAY.discard)
    return task


async def complete(work: Awaitable[T]) -> T:
    """Bring something to its end, also when the waiting task is cancelled."""
    return await asyncio.shield(_begin(work))


async def endure(work: Awaitable[T]) -> T:
    """Await the end of something, however often the waiting task is cancelled.

    In each of its rounds Airflow cancels a trigger that it needs no more. It closes the task's log when that ends.
    """
    task = _begin(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()


async def call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function of Airflow's task SDK, which blocks.

    A call that has begun is completed. ``sync_to_async`` alone would end a cancelled one with a new ``CancelledError``:
    Airflow recognizes by the message of the first one that the user has ended the task, and does not call ``on_kill``
    without it. The supervisor, too, would send an answer that no call waits for.
    """
    return await complete(sync_to_async(function)(*args, **kwargs))


class TriggerMistake(TypeError, ValueError):
    """Arguments that this version cannot use. Airflow 3.3 takes a ``TypeError``; any other error ends its triggerer."""


class SlurmTrigger(BaseTrigger):
    """Keeps each argument in an attribute of the same name, for serialization."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        try:
            self.prepare()
        except Exception as error:
            # A DAG file makes only watchers; what a task waits with is always read from Airflow's database.
            stored = "" if isinstance(self, BaseEventTrigger) else "stored by another version of this provider: "
            raise TriggerMistake(f"{stored}{error}") from error

    def prepare(self) -> None:
        """Read the arguments. Another version of this provider may have stored them."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Do nothing: the worker that deferred the task has rendered them, and no script is rendered twice."""


@dataclass(eq=False, repr=False)
class TaskTrigger(SlurmTrigger):
    """Waits for a task.

    With ``end_from_trigger`` no Airflow worker is started after a success, with ``fail_from_trigger`` none after a
    failure. ``made`` is the time of the deferral, in seconds since 1970, also in another triggerer.
    """

    made: float | None = field(default=None, kw_only=True)
    end_from_trigger: bool = field(default=False, kw_only=True)
    fail_from_trigger: bool = field(default=False, kw_only=True)
    #: True in an Airflow worker, where no other task shares its connections.
    is_in_worker = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.made = self.made or time.time()

    async def conclude(self, event: dict[str, Any]) -> AsyncIterator[TriggerEvent]:
        """The last that the trigger yields, and what it does after that."""
        yield await self.end(event)
        # Airflow goes on meanwhile. dag.test() has no triggerer, and gives no task instance.
        if self.task_instance is not None:
            await endure(written())

    async def end(self, event: dict[str, Any]) -> TriggerEvent:
        """What Airflow is told: how the task has ended, if nothing is left to do for a worker, or the event for one."""
        event = storable(event)
        if self.task_instance is not None:
            if self.has_succeeded(event):
                if self.end_from_trigger and await self._is_returned(event):
                    return TaskSuccessEvent()
            # Only a worker can raise what Airflow takes for the end of a task's time.
            elif self.fail_from_trigger and event["status"] != "timeout":
                if "message" in event:
                    self.log.error("%s", event["message"])
                return TaskFailedEvent()
        return await self.resume(event)

    def has_succeeded(self, event: dict[str, Any]) -> bool:
        return bool(event["status"] == "success")

    def returned(self, event: dict[str, Any]) -> dict[str, Any]:
        """The XComs of a task that has succeeded."""
        return {} if event["result"] is None else {XCom.XCOM_RETURN_KEY: event["result"]}

    async def _is_returned(self, event: dict[str, Any]) -> bool:
        """Store what the task returns; False if only an Airflow worker can do that."""
        try:
            for key, value in self.returned(event).items():
                await self.push(key, value)
        except Exception as error:
            # An XCom backend of one's own may have its rights and its packages in workers only.
            self.log.warning("The result could not be stored from here, so a worker does it: %s", error)
            return False
        return True

    async def push(self, key: str, value: Any, backend: type[BaseXCom] = XCom) -> None:
        """Push an XCom. Airflow stores XComs that come with an event as text, and they are pulled as text."""
        ti: Any = self.task_instance
        # dag.test() runs triggers without their task instance.
        if ti is not None:
            await call(
                backend.set,
                key=key,
                value=value,
                dag_id=ti.dag_id,
                task_id=ti.task_id,
                run_id=ti.run_id,
                map_index=ti.map_index,
            )

    async def resume(self, payload: Any) -> TriggerEvent:
        """The event with which a worker goes on, when it may.

        Airflow up to 3.3 fails a task that goes on before the scheduler has seen the end of the part that deferred it
        (apache/airflow #72716). A supervisor may notice that end as late as this, and a scheduler some rounds later.
        """
        # dag.test() has neither supervisor nor scheduler, and gives no task instance.
        if self.task_instance is not None:
            late = conf.getfloat("workers", "min_heartbeat_interval", fallback=5)
            late += _ROUNDS * conf.getfloat("scheduler", "scheduler_heartbeat_sec", fallback=5)
            # The clock of the worker that deferred it may be ahead.
            await asyncio.sleep(min(late, (self.made or 0) + late - time.time()))
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]


class KillableTrigger(TaskTrigger):
    """Ends its work with its task: when that is marked, cleared, or in a run that takes too long.

    It yields one event, in the triggerer, or in the Airflow worker of a task that does not defer.
    """

    _is_over = False

    @abstractmethod
    async def event(self) -> dict[str, Any]:
        """The event with which the task goes on."""

    @abstractmethod
    async def cancel(self) -> None:
        """End all work that must not outlast the task."""

    @property
    @abstractmethod
    def fate(self) -> str:
        """The result of the cancellation, as the rest of a sentence."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async for end in self.conclude(await self.event()):
            self._is_over = True
            yield end

    async def on_kill(self) -> None:
        if not self._is_over:
            await endure(self._kill())
            await endure(written())

    async def _kill(self) -> None:
        # Airflow ends the triggers of a triggerer that it takes for dead as if the user had asked for it. A new try
        # after a clear, which may be deferred by now, takes over the work of this one. Airflow 3.4 does so no more, and
        # of a task in a loop it tells the state of the newest iteration, which may be deferred.
        if not region_of(self.task_instance) and await self.state() == "deferred":
            self.log.info("Another triggerer goes on with this: nothing is cancelled")
            return
        await self.cancel()
        self.log.info("The task was told to end%s", self.fate)

    async def state(self) -> str | None:
        """The state that Airflow has the task in."""
        ti = self.task_instance
        if ti is None:
            return None
        states = await self.states([ti.task_id])
        return states[ti.task_id].get(-1 if ti.map_index is None else ti.map_index)

    async def states(self, task_ids: Sequence[str]) -> dict[str, dict[int, str | None]]:
        """States of the instances of these tasks of the run, by task and map index, once Airflow tells them."""
        while True:
            try:
                return await call(states_of, self.task_instance, task_ids)
            except AirflowRuntimeError as error:
                # Without an answer a job would be neither cancelled nor let go, and nobody would ask anew.
                self.log.warning("Airflow does not tell the states of tasks at present, asking again: %s", error)
            await asyncio.sleep(_AIRFLOW_AWAY)


class EventTrigger(SlurmTrigger, BaseEventTrigger):
    """Watches a cluster for as long as there is an active DAG that is scheduled on its asset."""

    poll_interval: float
    _is_told = False

    @abstractmethod
    def open(self) -> AbstractAsyncContextManager[Any]:
        """Open the clients that the looks need."""

    @abstractmethod
    async def look(self, client: Any) -> Sequence[dict[str, Any]]:
        """Look for events; returns the payloads of those since the last look."""

    def identity(self) -> dict[str, Any]:
        """What tells this watcher's memory from that of others of its asset; an interval does not.

        Nor does a default, so that a watcher keeps its memory when a release adds a parameter.
        """
        known, given = inspect.signature(type(self)).parameters, self.serialize()[1]
        needed = {name: value for name, value in given.items() if known[name].default is inspect.Parameter.empty}
        plain = {**type(self)(**needed).serialize()[1], "poll_interval": given.get("poll_interval")}
        return needed | {name: value for name, value in given.items() if value != plain[name]}

    def memory(self) -> Any:
        """State from which another process goes on, as JSON; by default, whether there was an event of the episode."""
        return self._is_told

    def remember(self, memory: Any) -> None:
        """Go on from a memory; None at a first start."""
        self._is_told = bool(memory)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        store = WatcherMemory(self)
        memory = await store.read()
        self.remember(memory)
        # No failure is raised: Airflow would restart the watcher a second later, and for ever.
        async for events in polled(self.open, self.look, self.poll_interval, self.log):
            # By now Airflow has stored the events of the last look. Sooner they could be lost, later repeated.
            await store.write(memory)
            for payload in events:
                yield TriggerEvent(storable(payload))  # type: ignore[no-untyped-call]
            memory = self.memory()
            if not events:
                await store.write(memory)

    @property
    def max_age(self) -> float:
        """Maximum age of another watcher's answer, in seconds."""
        return self.poll_interval * _AS_GOOD_AS_NEW


class SlurmEventTrigger(EventTrigger):
    """Watches Slurm."""

    slurm_conn_id: str

    def open(self) -> AbstractAsyncContextManager[AsyncSlurmClient]:
        return SlurmHook(self.slurm_conn_id).async_client()

    def shared(self, client: AsyncSlurmClient, request: Request[T]) -> Awaitable[T]:
        """The answer that all watchers of the cluster share in an interval."""
        return client.ask_shared(request, self.max_age)


class WatcherMemory:
    """The memory of a watcher, which Airflow keeps beside the asset; its first versions with one have no ``aget``."""

    def __init__(self, trigger: EventTrigger) -> None:
        self._store = getattr(trigger, "asset_state_store", None)
        told = json.dumps([trigger.serialize()[0], trigger.identity()], sort_keys=True)
        self._key = f"soperator-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
        self._log = trigger.log
        self._written: Any = None

    async def read(self) -> Any:
        if self._store is None:
            return None
        try:
            self._written = await call(self._store.get, self._key)
        except ValueError:
            self._log.warning("Nothing is remembered over a restart: give each asset a watcher with other arguments")
            self._store = None
        return self._written

    async def write(self, memory: Any) -> None:
        if self._store is not None and memory != self._written:
            await call(self._store.set, self._key, memory)
            self._written = memory
