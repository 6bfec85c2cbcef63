"""Triggers in general: how they are stored, when their task may go on, and what happens when it is killed."""

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

#: Rounds by which a scheduler may be late: where many tasks begin at once, one was not enough.
_ROUNDS = 2
#: Seconds that a line may need on its way to the task's log. Airflow closes that when the trigger ends, and drops what
#: comes later.
_LOG_LAG = 1.0


class SlurmTrigger(BaseTrigger):
    """Keeps each of its arguments in an attribute of the same name, from which it can be made anew."""

    def __init__(self, made: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: When the task was deferred, in seconds since 1970. Who keeps it need not wait again in another triggerer.
        self.made = made or time.time()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Nothing: the worker that deferred the task has done it, and a script is not to be rendered twice."""

    async def resume(self, payload: Any) -> TriggerEvent:
        """The event with which a worker goes on, when it may.

        Airflow up to 3.3 fails a task that goes on before the scheduler has seen the end of the part that deferred it
        (apache/airflow #72716). A supervisor may notice that end as late as this, and a scheduler some rounds later.
        """
        # dag.test() has neither supervisor nor scheduler, and does not say which task it is.
        if self.task_instance is not None:
            late = conf.getfloat("workers", "min_heartbeat_interval", fallback=5)
            late += _ROUNDS * conf.getfloat("scheduler", "scheduler_heartbeat_sec", fallback=5)
            await asyncio.sleep(self.made + late - time.time())
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def flush(self) -> None:
        """All that has been logged so far is in the task's log."""
        if self.task_instance is not None:
            await asyncio.sleep(_LOG_LAG)


class KillableTrigger(SlurmTrigger):
    """Has something to end with its task: one that is marked, cleared, or in a run that takes too long.

    It works towards one event, in the triggerer, or in the worker of a task that does not defer.
    """

    @abstractmethod
    async def event(self) -> dict[str, Any]:
        """The event with which the task goes on."""

    @abstractmethod
    async def cancel(self) -> None:
        """End what must not outlast the task."""

    @property
    @abstractmethod
    def fate(self) -> str:
        """What has become of it, as the rest of a sentence."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        event = await self.event()
        await self.flush()
        yield await self.resume(event)

    async def on_kill(self) -> None:
        # The triggerer cancels a trigger that is being killed once more in each of its rounds.
        await task_sdk.complete(self._kill())

    async def _kill(self) -> None:
        # A triggerer that was taken for dead is told to end its triggers as if the user had wished it. A try that came
        # after a clear, and waits as well by now, knows what to do with what this one has begun.
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
