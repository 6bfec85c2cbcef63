"""Operators that leave their work to a trigger: in the triggerer, or in the worker for those who do not defer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.triggers.base import WorkTrigger

#: Seconds for which Airflow's own alarm is put off, so that it strikes only if all else has failed.
_GRACE = 60.0


class Waiting:
    """Runs a trigger to its event, in a loop that a signal handler can end in good order."""

    def __init__(self, trigger: WorkTrigger) -> None:
        self._trigger = trigger
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Future[dict[str, Any]] | None = None
        self._is_killed = False

    def event(self) -> dict[str, Any]:
        """What the task goes on with. Raises if it was killed."""
        # The trigger knows the deadline. An exception that a signal handler raises in the midst of a callback of the
        # loop would be logged there, and lost.
        if left := signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, left + _GRACE)
        return asyncio.run(self._run())

    def kill(self) -> None:
        """End the job and the waiting; returns at once. May be called by a signal handler, or by another thread."""
        # First of all: in another thread the loop may be at the end of its work before this is.
        is_first, self._is_killed = not self._is_killed, True
        if is_first and self._loop and self._work:
            self._loop.call_soon_threadsafe(self._work.cancel)

    async def _run(self) -> dict[str, Any]:
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.ensure_future(self._trigger.event())
        if self._is_killed:
            self._work.cancel()
        try:
            return await self._work
        except asyncio.CancelledError:
            if not self._is_killed:
                raise
        await self._trigger.cancel()
        raise AirflowException("the task was told to end" + self._trigger.fate)


class WaitingOperator(BaseOperator):
    """Waits for what a trigger does."""

    deferrable: bool
    _waiting: Waiting | None = None

    def wait_for(self, trigger: WorkTrigger, context: Context, resume: Callable[[Context, dict[str, Any]], Any]) -> Any:
        """Go on with ``resume``, a method of the operator, once the trigger has come to its event."""
        if self.deferrable:
            self.defer(trigger=trigger, method_name=resume.__name__)
        trigger.task_instance = context["ti"]  # type: ignore[assignment]
        self._waiting = Waiting(trigger)
        return resume(context, self._waiting.event())

    def on_kill(self) -> None:
        """The worker is told to end the task: the trigger ends what is to end with it."""
        if self._waiting:
            self._waiting.kill()
