"""What happens to the work of a trigger when somebody ends its task, and when it only looks like that."""

from __future__ import annotations

from airflow_provider_soperator.triggers import task_sdk
from airflow_provider_soperator.triggers.base import WorkTrigger


class EndedWithItsTask(WorkTrigger):
    """A trigger whose work is cancelled with its task: marked, cleared, or in a run that takes too long."""

    async def on_kill(self) -> None:
        # The triggerer cancels whoever is being killed once more in each of its rounds.
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
        """What Airflow has the task in."""
        ti = self.task_instance
        if ti is None:
            return None
        states = await task_sdk.states(ti, [ti.task_id])
        return states[ti.task_id].get(-1 if ti.map_index is None else ti.map_index)
