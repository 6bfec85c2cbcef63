"""Asset watcher that compares the wish for a capacity block with the world."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow_provider_soperator.capacity.differences import Differences
from airflow_provider_soperator.errors import CapacityError
from airflow_provider_soperator.triggers.base import EventTrigger, WatcherMemory, call


@dataclass(eq=False, repr=False)
class CapacityDifferenceTrigger(EventTrigger):
    """Fires when what targets have of a block has differed for some minutes from what is wished for.

    It does not fire while a run of the DAG is under way, and less and less often while runs do not mend it. What was
    wished for when the DAG was switched on is not put into force. The event has what is ``wished`` for, what each
    target ``has``, and the ``name`` of the window.

    :param dag_id: id of the DAG that mends it
    :param block: id of the capacity block
    :param schedule: text of the schedule: what ``describe()`` says, as JSON
    :param targets: text of the targets, as ``write_targets`` has it
    :param overrides: key of the Airflow Variable with overrides
    :param nebius_conn_id: Airflow connection to the Nebius API
    :param poll_interval: seconds between two polls
    """

    dag_id: str
    block: str
    schedule: str
    targets: str
    overrides: str
    nebius_conn_id: str = "nebius_default"
    poll_interval: float = 60.0

    def __post_init__(self) -> None:
        super().__init__()
        self._trouble = ""
        self.remember(None)

    def identity(self) -> dict[str, Any]:
        # An edited schedule is a new wish, and not another watcher.
        return {"dag_id": self.dag_id}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        from airflow_provider_soperator.hooks.cluster_clients import ShiftClients

        yield ShiftClients()

    async def look(self, client: Any) -> Sequence[dict[str, Any]]:
        try:
            events = await self._look(client)
        except CapacityError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self.log.warning("Wish and world cannot be compared at present: %s", error)
            return []
        self._trouble = ""
        return events

    async def _look(self, client: Any) -> Sequence[dict[str, Any]]:
        from airflow.sdk import Variable
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        from airflow_provider_soperator.capacity import reconciliation
        from airflow_provider_soperator.capacity.order import ShiftOrder
        from airflow_provider_soperator.capacity.overrides import read_overrides
        from airflow_provider_soperator.capacity.schedule import CapacitySchedule
        from airflow_provider_soperator.capacity.targets import read_targets

        now = datetime.now(timezone.utc)
        text = await call(Variable.get, self.overrides, default=None)
        overrides = read_overrides(text, f"the Airflow Variable {self.overrides}")
        schedule = CapacitySchedule.read(json.loads(self.schedule)).overridden(overrides)
        wish = schedule.at(now)
        order = ShiftOrder(
            key="watch",
            task=f"{self.dag_id}/watch",
            block=self.block,
            nebius_conn_id=self.nebius_conn_id,
            targets=read_targets(self.targets),
            desired={},
            wanted_at=now,
        )
        world = await reconciliation.look(order, client, self.log)
        goal = reconciliation.goal_in(
            world, wish.allocation, min(world.block.limit, schedule.limit or world.block.limit)
        )
        under_way = await call(RuntimeTaskInstance.get_dr_count, dag_id=self.dag_id, states=["queued", "running"])
        is_new = self._differences.look(
            wish.allocation, now, is_different=reconciliation.differs(world, goal), is_busy=under_way > 0
        )
        has = {target: seen.ready for target, seen in world.holdings.items()}
        return [{"wished": goal, "has": has, "name": wish.name}] if is_new else []

    def memory(self) -> Any:
        return self._differences.memory()

    def remember(self, memory: Any) -> None:
        self._differences = Differences(memory)

    async def on_kill(self) -> None:
        """Note that the DAG was paused, or its file edited: no outage comes this way."""
        await WatcherMemory(self).write(self._differences.memory(is_stopped=True))
