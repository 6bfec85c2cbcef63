"""Base of triggers: serialization, the resumption of their task, and its end by the user."""

from __future__ import annotations

import asyncio
import inspect
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_soperator.work import task_sdk

#: Scheduler rounds to wait for: with many tasks at once, one was not enough.
_ROUNDS = 2
#: Seconds that a line may need on its way to the task's log. Airflow closes that when the trigger ends, and drops what
#: comes later.
_LOG_LAG = 1.0


class SlurmTrigger(BaseTrigger):
    """Keeps each argument in an attribute of the same name, for serialization."""

    def __init__(self, made: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: Time of the deferral, in seconds since 1970. With it a trigger need not wait again in another triggerer.
        self.made = made or time.time()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Do nothing: the worker that deferred the task has rendered them, and no script is rendered twice."""

    async def resume(self, payload: Any) -> TriggerEvent:
        """The event with which a worker goes on, when it may.

        Airflow up to 3.3 fails a task that goes on before the scheduler has seen the end of the part that deferred it
        (apache/airflow #72716). A supervisor may notice that end as late as this, and a scheduler some rounds later.
        """
        # dag.test() has neither supervisor nor scheduler, and gives no task instance.
        if self.task_instance is not None:
            late = conf.getfloat("workers", "min_heartbeat_interval", fallback=5)
            late += _ROUNDS * conf.getfloat("scheduler", "scheduler_heartbeat_sec", fallback=5)
            await asyncio.sleep(self.made + late - time.time())
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def flush(self) -> None:
        """Wait until all lines so far are in the task's log."""
        if self.task_instance is not None:
            await asyncio.sleep(_LOG_LAG)


class KillableTrigger(SlurmTrigger):
    """Ends its work with its task: when that is marked, cleared, or in a run that takes too long.

    It yields one event, in the triggerer, or in the Airflow worker of a task that does not defer.
    """

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
        event = await self.event()
        await self.flush()
        yield await self.resume(event)

    async def on_kill(self) -> None:
        # The triggerer cancels a trigger that is being killed once more in each of its rounds.
        await task_sdk.complete(self._kill())

    async def _kill(self) -> None:
        # Airflow ends the triggers of a triggerer that it takes for dead as if the user had asked for it. A new try
        # after a clear, which may be deferred by now, takes over the work of this one.
        if await self.state() == "deferred":
            self.log.info("Another triggerer goes on with this: nothing is cancelled")
            return
        await self.cancel()
        self.log.info("The task was told to end%s", self.fate)

    async def state(self) -> str | None:
        """The state that Airflow has the task in."""
        ti = self.task_instance
        if ti is None:
            return None
        states = await task_sdk.states(ti, [ti.task_id])
        return states[ti.task_id].get(-1 if ti.map_index is None else ti.map_index)
