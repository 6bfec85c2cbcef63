"""Brings nodes where they shall be, and waits in the triggerer for nodes that somebody else moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from airflow.triggers.base import TriggerEvent
from async_timeout import timeout

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.slurm.node_conditions import MISTAKES, NodesInState
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.triggers.base import SlurmTrigger, WorkTrigger
from airflow_provider_soperator.triggers.moves import Journey, NodesLost, TooFewNodes, Wish
from airflow_provider_soperator.triggers.rounds import FAILURES, is_final, rounds, slurm_client, stepped


class NodeMoveTrigger(WorkTrigger):
    """Fires with the ``result``; with ``late`` or ``lost``, which another try may mend, or with a ``mistake``.

    ``wish`` has the fields of a ``Wish``, ``since`` is when the task began, and ``deadline`` when its time is over, in
    seconds since 1970.
    """

    def __init__(
        self,
        slurm_conn_id: str,
        wish: dict[str, Any],
        since: str,
        deadline: float,
        poll_interval: float,
        made: float | None = None,
    ) -> None:
        super().__init__(made)
        self.slurm_conn_id = slurm_conn_id
        self.wish = wish
        self.since = since
        self.deadline = deadline
        self.poll_interval = poll_interval
        self._journey: Journey | None = None

    async def event(self) -> dict[str, Any]:
        """What the task goes on with."""
        journey = self._journey = Journey(Wish.read(self.wish), datetime.fromisoformat(self.since), self.log)
        try:
            async with timeout(max(0.0, self.deadline - time.time())):
                return {"result": await self._travel(journey)}
        except asyncio.TimeoutError:
            return {"late": journey.place}
        except NodesLost as error:
            return {"mistake" if isinstance(error, TooFewNodes) else "lost": str(error)}
        except FAILURES as error:
            return {"mistake" if is_final(error) else "lost": str(error)}

    async def _travel(self, journey: Journey) -> dict[str, Any]:
        return await stepped(
            lambda: slurm_client(self.slurm_conn_id),
            lambda client: journey.step(client, self.poll_interval / 2),
            self.poll_interval,
            self.log,
        )

    async def on_kill(self) -> None:
        self.log.info("The task was told to end%s", self.fate)

    async def cancel(self) -> None:
        """Nothing is undone: Slurm takes no power order back, and half way back is no better than half way there."""

    @property
    def fate(self) -> str:
        """What becomes of the nodes of a task that was killed."""
        place = self._journey.place if self._journey else "nothing has been done"
        return f". What Slurm has been told it goes on with, and nothing is undone. Nodes: {place}"


class NodeStateTrigger(SlurmTrigger):
    """Fires when all, any or so many of some nodes are in a state."""

    def __init__(self, slurm_conn_id: str, watched: dict[str, Any], poll_interval: float) -> None:
        super().__init__()
        self.slurm_conn_id = slurm_conn_id
        self.watched = watched
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        watched = NodesInState.read(self.watched)

        async def look(client: AsyncSlurmClient) -> dict[str, Any]:
            nodes = await client.ask_shared(ListNodes(), self.poll_interval / 2)
            return watched.look(nodes)

        told: list[str] | None = None
        try:
            async for found in rounds(self.slurm_conn_id, look, self.poll_interval, self.log, must_work=True):
                if found["nodes"] != told:
                    told = found["nodes"]
                    self.log.info("%d of %d nodes: %s", len(told or ()), found["of"], watched.state)
                if found.pop("is_reached"):
                    yield await self.resume(found)
                    return
        except MISTAKES as error:
            yield await self.resume({"mistake": str(error)})
