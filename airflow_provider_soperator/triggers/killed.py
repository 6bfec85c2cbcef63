"""What happens to the work of a trigger when somebody ends its task, and when it only looks like that."""

from __future__ import annotations

import asyncio
from typing import Any

from asgiref.sync import sync_to_async

from airflow_provider_soperator.pipelines.states import states_of
from airflow_provider_soperator.triggers.base import WorkTrigger


class EndedWithItsTask(WorkTrigger):
    """A trigger whose work is cancelled with its task: marked, cleared, or in a run that takes too long."""

    async def on_kill(self) -> None:
        # The triggerer cancels whoever is being killed once more in each of its rounds.
        await asyncio.shield(_kept(self._kill()))

    async def _kill(self) -> None:
        # A triggerer that was taken for dead is told to end its triggers as if the user had wished it. A try that came
        # after a clear, and waits as well by now, knows what to do with what this one has begun.
        if await self.state() == "deferred":
            self.log.info("Another triggerer goes on with this: nothing is cancelled")
            return
        await self.cancel()
        self.log.info("The task was told to end%s", self.fate)

    async def state(self) -> str | None:
        """What Airflow has the task in."""
        ti = self.task_instance
        if ti is None:
            return None
        ask = sync_to_async(states_of)
        try:
            states = await ask(ti, [ti.task_id])
        except AttributeError:
            # The supervisor still answers what was being asked when the task was ended, and Airflow (3.3) takes that
            # for the answer to this question.
            states = await ask(ti, [ti.task_id])
        return states[ti.task_id].get(-1 if ti.map_index is None else ti.map_index)


_UNDER_WAY: set[asyncio.Future[None]] = set()


def _kept(work: Any) -> asyncio.Future[None]:
    """Something that goes on until it is done, also when nobody waits for it any more."""
    task: asyncio.Future[None] = asyncio.ensure_future(work)
    _UNDER_WAY.add(task)
    task.add_done_callback(_UNDER_WAY.discard)
    return task
