"""Asset watcher that compares the wish for a capacity block with the world."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider_soperator.capacity.allocation import Units, bounds_of
from airflow_provider_soperator.errors import CapacityError, ConnectionMistake
from airflow_provider_soperator.triggers.base import EventTrigger, WatcherMemory, call
from airflow_provider_soperator.work.protocols import emit

#: Seconds for which wish and world must differ.
_LASTING = 300
#: Seconds of the pause after the first run that has not mended it, which doubles each time, and of the longest one.
_FIRST_PAUSE, _LONGEST_PAUSE = 600, 7200
#: A watcher that was told to stop and is back so many seconds later was paused, also if the DAG file was edited.
_PAUSED = 600


class Differences:
    """Differences between wish and world that last, and that no run works on.

    Only what was asked for is put into force: a wish that has been in force, or that has taken the place of another
    while this looked on. What was wished for when a DAG was switched on is left to the person who has switched it on.
    ``state`` has plain values, from which another process goes on.
    """

    def __init__(self, memory: Mapping[str, Any] | None = None) -> None:
        new = {"wished": None, "is_asked": False, "looked": 0, "since": None, "told": 0, "pause": 0, "stopped": False}
        self.state: dict[str, Any] = {**new, **(memory or {})}

    def look(
        self,
        wished: Mapping[str, Units],
        now: datetime,
        *,
        is_different: bool,
        is_busy: bool,
        lasting: float = _LASTING,
    ) -> bool:
        """Note what is wished for, if the world differs from it, and if a run is at it; True if one shall begin."""
        state, at = self.state, now.timestamp()
        if state["stopped"] and at - state["looked"] > _PAUSED:
            state["wished"] = None
        said = json.dumps({target: bounds_of(units) for target, units in wished.items()}, sort_keys=True)
        if said != state["wished"]:
            state |= {"wished": said, "is_asked": state["wished"] is not None, "since": None, "pause": 0}
        is_due = at - state["told"] >= state["pause"]
        state |= {"looked": at, "stopped": False}
        if is_busy or not is_different:
            state |= {"since": None} if is_busy else {"since": None, "is_asked": True}
            state["pause"] = 0 if is_due and not is_different else state["pause"]
            return False
        state["since"] = state["since"] or at
        if not state["is_asked"] or not is_due or at - state["since"] < lasting:
            return False
        state |= {"told": at, "pause": min(max(2 * state["pause"], _FIRST_PAUSE), _LONGEST_PAUSE)}
        return True


@dataclass(eq=False, repr=False)
class CapacityDifferenceTrigger(EventTrigger):
    """Fires when what targets have of a block has differed for some minutes from what is wished for and possible.

    It does not fire while a run of the DAG is under way, and less and less often while runs do not mend it. What was
    wished for when the DAG was switched on is not put into force. The event has what is ``wished`` for, what each
    target ``has``, and the ``name`` of the window. ``order``, which names the targets, and ``schedule`` are JSON;
    ``overrides`` is the key of an Airflow Variable. ``demand``, if given, decides within ranges; its decisions are kept
    in the Variable ``demanded``.

    Of each window that is over it reports what targets could use, as metrics and in another Variable.
    """

    dag_id: str
    order: str
    schedule: str
    overrides: str
    demand: str = ""
    demanded: str = ""
    poll_interval: float = 60.0

    def prepare(self) -> None:
        self.remember(None)

    def identity(self) -> dict[str, Any]:
        # An edited schedule is a new wish, and not another watcher.
        return {"dag_id": self.dag_id}

    def open(self) -> AbstractAsyncContextManager[Any]:
        from airflow_provider_soperator.hooks.cluster_clients import ShiftClients

        return nullcontext(ShiftClients())

    async def look(self, client: Any) -> Sequence[dict[str, Any]]:
        try:
            return await self._look(client)
        except (CapacityError, AirflowRuntimeError) as error:
            # It is said once, and asked again.
            raise ConnectionMistake(str(error)) from error

    async def _look(self, client: Any) -> Sequence[dict[str, Any]]:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        from airflow_provider_soperator.capacity import reconciliation
        from airflow_provider_soperator.capacity.figures import gauges, keep_report, note_window
        from airflow_provider_soperator.capacity.order import ShiftOrder, headed_for
        from airflow_provider_soperator.capacity.schedule import CapacitySchedule

        now = datetime.now(timezone.utc)
        said = json.loads(self.schedule)
        await call(reconciliation.keep_schedule, self.dag_id, said, now)
        # To read dates of many years takes a second, in which the triggerer has others to attend to.
        schedule = await call(lambda: CapacitySchedule.read(said).as_kept(self.overrides, now))
        wish = schedule.at(now)
        order = ShiftOrder.read(json.loads(self.order))
        world = await reconciliation.look(order, client, self.log)
        demanded = await self._demanded(world, wish, schedule, order, client, now) if self.demand else None
        goal = reconciliation.goal_in(world, wish.allocation, schedule.limit, demanded)
        if report := note_window(self._window, world, wish, goal, now):
            emit(gauges(report), dag_id=self.dag_id)
            await call(keep_report, self.dag_id, report)
        # Demand has waited for what it had to wait for. What has come about otherwise may pass.
        is_moved = bool(demanded) and goal != reconciliation.goal_in(world, wish.allocation, schedule.limit)
        if (at := headed_for(schedule, now, demanded)) > now:
            # The shift to what comes has the block, also once it is over ahead of the handover, and is asked for.
            wish, is_moved = schedule.at(at), False
            self._differences.state["is_asked"] = True
            goal = reconciliation.goal_in(world, wish.allocation, schedule.limit, demanded)
        # What cannot be moved at present is no difference that a run could mend.
        possible = world.possible(goal)
        is_different = bool(world.donors(possible.units) or world.receivers(possible.units, possible.ready))
        # And what was bought goes once the block has enough.
        is_different |= any(seen.bought > max(0, goal[name] - seen.ready) for name, seen in world.holdings.items())
        runs = await call(RuntimeTaskInstance.get_dr_count, dag_id=self.dag_id, states=["queued", "running"])
        said, lasting = goal if demanded else wish.allocation, 0.0 if is_moved else float(_LASTING)
        if not self._differences.look(said, now, is_different=is_different, is_busy=runs > 0, lasting=lasting):
            return []
        has = {target: seen.there for target, seen in world.holdings.items()}
        return [{"wished": goal, "has": has, "name": wish.name}]

    async def _demanded(
        self, world: Any, wish: Any, schedule: Any, order: Any, client: Any, now: datetime
    ) -> dict[str, int] | None:
        """The units by demand, which are kept for runs and for people; None if it only observes."""
        from airflow_provider_soperator.capacity.demand import Demand, DemandMemory, decide, keep_decision

        demand = Demand.read(json.loads(self.demand))
        needs = await demand.measure(world, wish.allocation, client, now, order.targets)
        bought, most = {name: seen.bought for name, seen in world.holdings.items()}, world.most(schedule.limit)
        memory = DemandMemory.read(self._demand)
        decision = decide(demand, needs, wish.allocation, world.allowed, world.gpus, most, memory, now, bought)
        self._demand |= decision.memory.write()
        if decision.is_new:
            self.log.info("%s %s", "Observed only: demand would have" if demand.observe else "Demand has", decision)
        await call(keep_decision, self.demanded, decision, demand.observe, now)
        return None if demand.observe else decision.units

    def memory(self) -> Any:
        return {**self._differences.state, "window": dict(self._window), "demand": dict(self._demand)}

    def remember(self, memory: Any) -> None:
        memory = dict(memory or {})
        self._window: dict[str, Any] = memory.pop("window", {})
        self._demand: dict[str, Any] = memory.pop("demand", {})
        # Airflow has told it to stop, and nothing was edited: the DAG was paused, however shortly.
        if memory.get("stopped") == self.serialize()[1]:
            memory["wished"] = None
        self._differences = Differences(memory)

    async def on_kill(self) -> None:
        """Note that the DAG was paused, or its file edited: no outage comes this way."""
        await WatcherMemory(self).write({**self.memory(), "stopped": self.serialize()[1]})
