"""A trigger that runs in the worker, in the process of its task, for those who do not defer."""

from __future__ import annotations

import asyncio
import signal
from typing import Any, Protocol

from airflow.sdk.exceptions import AirflowException

#: Seconds for which Airflow's own alarm is put off, so that it strikes only if all else has failed.
_GRACE = 60.0


class Work(Protocol):
    """What a worker needs of a trigger to be its triggerer."""

    async def event(self) -> dict[str, Any]: ...

    async def cancel(self) -> None:
        """The task was killed: end what is to end with it."""

    @property
    def fate(self) -> str:
        """What has become of that, as the rest of a sentence."""
        ...


class Waiting:
    """Runs a trigger to its event, in a loop that a signal handler can end in good order."""

    def __init__(self, trigger: Work) -> None:
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
        """End the job and the waiting; returns at once. May be called by a signal handler."""
        if not self._is_killed and self._loop and self._work:
            self._loop.call_soon_threadsafe(self._work.cancel)
        self._is_killed = True

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
