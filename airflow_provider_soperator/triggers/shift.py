"""Trigger that carries out a shift of capacity, or goes on with one that another triggerer has begun."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

from async_timeout import timeout

from airflow_provider_soperator.capacity.lease import ShiftRecord
from airflow_provider_soperator.capacity.order import ShiftOrder, Superseded
from airflow_provider_soperator.capacity.shift import Shift
from airflow_provider_soperator.errors import CapacityError, CapacityMistake, ConnectionMistake
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.pipelines.member import states_of
from airflow_provider_soperator.triggers.base import KillableTrigger, call
from airflow_provider_soperator.work.polling import FAILURES
from airflow_provider_soperator.work.protocols import failed, refused, succeeded, timed_out

#: States of tasks that have ended, unless they are cleared.
_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class ShiftTrigger(KillableTrigger):
    """One shift; ``order`` has the fields of a ``ShiftOrder``, ``deadline`` is in seconds since 1970.

    ``is_last_try``: no further try of the task can go on with the shift once its time is over.
    See ``work.protocols`` for its events.
    """

    def __init__(
        self,
        order: dict[str, Any],
        deadline: float | None = None,
        is_last_try: bool = True,
        made: float | None = None,
    ) -> None:
        super().__init__(made)
        self.order = order
        self.deadline = deadline
        self.is_last_try = is_last_try
        self._is_given_up = True

    async def event(self) -> dict[str, Any]:
        left = None if self.deadline is None else max(0.0, self.deadline - time.time())
        try:
            async with self._open() as shift:
                try:
                    async with timeout(left):
                        outcome = await shift.run(_is_under_way)
                except asyncio.TimeoutError:
                    if left is None:
                        raise
                    self._is_given_up = self.is_last_try
                    if self._is_given_up:
                        await shift.leave()
                    return timed_out("the time of the task was over" + self.fate)
            return succeeded(outcome.describe())
        except Superseded as error:
            return succeeded({"superseded": str(error)})
        except (CapacityError, *FAILURES) as error:
            can_never_be = isinstance(error, (CapacityMistake, ConnectionMistake))
            return (refused if can_never_be else failed)(str(error))

    async def cancel(self) -> None:
        # A task with another try goes on with this shift, and needs its start.
        self._is_given_up = _will_rest(self.task_instance, await self.state())
        if self._is_given_up:
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
        return bool(ti.try_number > ti.max_tries)
    return state in _ENDED


async def _is_under_way(record: ShiftRecord) -> bool:
    """True if the task that has a block can still give it back, or belongs to another Airflow."""
    # Only a run's id may have slashes.
    dag_id, _, rest = record.task.partition("/")
    run_id, task_id, map_index = rest.rsplit("/", 2)
    run = SimpleNamespace(dag_id=dag_id, run_id=run_id)
    states = (await call(states_of, run, [task_id]))[task_id]
    # A cleared task does nothing before it is scheduled again; then it waits for its turn.
    return states.get(int(map_index), "unknown") not in {*_ENDED, None}
