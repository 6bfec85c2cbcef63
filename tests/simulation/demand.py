"""One story of demand: loads that jump, metrics that lie, and a DAG that moves what is wished for by the watcher.

On top of the stories of shifts: ranges, the watcher, the decision, its runs and their triggers are those of the
provider as well.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from airflow.sdk import Variable
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_soperator.capacity import demand, overrides, reconciliation, schedule, shift
from airflow_provider_soperator.capacity.allocation import Units, bounds_of, units_text
from airflow_provider_soperator.capacity.demand import Decision, Demand, kept_demand
from airflow_provider_soperator.capacity.holdings import Release
from airflow_provider_soperator.capacity.loads import Load, MetricLoad, Need, QueueLoad, ServiceLoad
from airflow_provider_soperator.capacity.order import ShiftOrder, Superseded, Timeouts, headed_for, scheduled_allocation
from airflow_provider_soperator.capacity.overrides import keep_override
from airflow_provider_soperator.capacity.reconciliation import begin, ordered
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, ScheduleSegment, Window
from airflow_provider_soperator.capacity.targets.protocol import Session
from airflow_provider_soperator.errors import CapacityError, CapacityMistake
from airflow_provider_soperator.health.metrics import Sample
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.hooks.prometheus import PrometheusHook
from airflow_provider_soperator.slurm.requests import CancelJobs, ListJobs
from airflow_provider_soperator.transports.transport_errors import ConnectionLost, Unreachable
from airflow_provider_soperator.triggers import base, capacity_watch
from airflow_provider_soperator.triggers import shift as shift_trigger
from airflow_provider_soperator.triggers.capacity_watch import CapacityDifferenceTrigger
from airflow_provider_soperator.triggers.shift import ShiftTrigger
from tests.simulation import shifts
from tests.simulation.clock import outside
from tests.simulation.demand_rules import BEARS, HEARD, MAX_REQUESTS, SERVICE_TIME, Rules
from tests.simulation.shifts import HEEDED, IN_TIME, TICK, Clock, Controller, GroupSession, Log
from tests.unit.capacity.nodes import MINUTE, SlurmJob, SlurmNode
from tests.unit.capacity.world import BLOCK, State

DAG_ID, OVERRIDES, DEMANDED = "shifts", "shifts_overrides", "shifts_demand"
NAMES = ("training", "inference")
GPUS = dict.fromkeys(NAMES, 8)
#: Ticks of the longest pause between two runs that have not mended a difference.
PAUSE = 240


class Metrics:
    """A Prometheus, whose answers may be lies."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Units of inference that are of use, and what was so lately, a value for each tick.
        self.needed = 0.0
        self._lately: deque[float] = deque(maxlen=120)
        self.is_away, self._lags = False, 0
        #: The query of which it is; None: of all.
        self._of: str | None = None
        self._lie: Callable[[float], list[float]] = self._truth
        #: What each query has had as an answer last; None if that said nothing.
        self.told: dict[str, float | None] = {}

    def pass_by(self) -> None:
        self._lately.append(self.needed)

    @staticmethod
    def _truth(value: float) -> list[float]:
        return [value / 2, value / 2]

    def lies(self) -> dict[str, Callable[[float], list[float]]]:
        factor = self._world.dice.choice((0.1, 0.5, 2.0, 10.0))
        return {
            f"wrong by {factor:g}": lambda value: [value * factor],
            "of another unit": lambda value: [value * 1000],
            "negative": lambda value: [-1.0 - value],
            "no number": lambda value: [value, math.nan],
            "more than there is": lambda value: [1e308],
            "more than can be counted": lambda value: [1e308, 1e308],
            "missing": lambda value: [],
        }

    async def lie(self) -> None:
        """Something is wrong for a while."""
        dice, lies = self._world.dice, self.lies()
        what, self._of = dice.choice((*lies, "away", "away", "late")), dice.choice(self._world.wrong)
        self._world.note(f"metrics are {what}" + (f", those of {self._of}" if self._of else ""))
        self._world.counts[f"metrics {what}"] += 1
        if what == "away":
            self.is_away = True
        elif what == "late":
            self._lags = dice.randint(10, 120)
        else:
            self._lie = lies[what]
        await asyncio.sleep(dice.uniform(60, dice.choice((600, 3000, 9000))))
        self.mend()
        self._world.note("metrics are true again")

    def mend(self) -> None:
        self.is_away, self._lags, self._lie = False, 0, self._truth

    async def query(self, expression: str) -> list[Sample]:
        self.told[expression] = None
        await self._world.passes()
        is_true = self._of not in (None, expression)
        if self.is_away and not is_true:
            raise Unreachable("Prometheus does not answer", "")
        lags = 0 if is_true else min(self._lags, len(self._lately))
        needed = self._lately[-lags] if lags else self.needed
        true = 0.7 * needed / max(1, self._world.ready) if expression == "use" else needed * BEARS[expression]
        values = (self._truth if is_true else self._lie)(true)
        said = sum(values) if values else math.nan
        self.told[expression] = said if math.isfinite(said) and said >= 0 else None
        return [Sample({}, value) for value in values]


class Clients(ShiftClients):
    """The clients of a process, to what is in memory."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def slurm(self, conn_id: str) -> AbstractAsyncContextManager[Any]:
        return nullcontext(Queue(self._controller))

    async def block(self, conn_id: str, block: str) -> Any:
        return await self._controller._block()

    def connected(self, order: ShiftOrder) -> shifts.Connected:
        one = self._controller
        one.order = order
        return shifts.Connected(one._sessions, one._agreed if one.world.place else None)


class Queue:
    """Slurm, as a load asks it: over a connection of its own."""

    def __init__(self, controller: Controller) -> None:
        self._controller, self._world = controller, cast(World, controller.world)

    async def ask(self, request: ListJobs) -> Any:
        self._world.is_queue_known = False
        if self._world.is_queue_away:
            raise ConnectionLost("the login node does not answer")
        answer = await self._controller.ask(request)
        self._world.is_queue_known = True
        return answer


class RangedGroup(GroupSession):
    """Inference, of which no range is left."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._run = run

    async def shrink(self, to: int, release: Release) -> None:
        if release.mode is not None:
            self._run.check_moves("inference", to, is_less=True)
            if to < self._run.order.desired["inference"]:
                self._run.world.break_rule("what serves stays", f"{self._run.name} shrinks inference to {to}")
        await super().shrink(to, release)

    async def grow(self, to: int) -> None:
        self._run.check_moves("inference", to)
        await super().grow(to)


class Run(Controller):
    """A run of the DAG, which plans and moves."""

    world: World

    def __init__(self, world: World, name: str, at: datetime | None) -> None:
        super().__init__(world, replace(world.seen, key=name, task=f"{DAG_ID}/{name}/shift/-1"), name)
        self._at, self._clients = at, Clients(self)
        #: What targets had before the look by which it was planned, and after it.
        self._had: Sequence[Mapping[str, int]] = ()
        #: What its task is deferred with.
        self._written: dict[str, Any] = {}

    async def run(self) -> None:
        await super().run()
        self.world.controllers.remove(self)

    async def _live(self) -> None:
        log = Log(self.world, self.name)
        try:
            if not self._written:
                waits = (Timeouts(), self.order.poll_interval)
                order, _ = await begin(self._order_for, BLOCK, "nebius_default", self._clients, log, *waits)
                self._written = order.write()
                self.world.planned(self, order, self._had)
        except Superseded as error:
            self.world.note(f"{self.name}: {error}")
            self.is_over = True
            return
        except CapacityError as error:
            self.world.note(f"{self.name}: {error}")
            self.world.counts["failed"] += 1
            self.is_over = True
            return
        wish = {"schedule": self.world.schedule.describe(), "overrides": OVERRIDES, "demanded": DEMANDED}
        trigger = ShiftTrigger(self._written, wish=wish)
        trigger._log = log  # type: ignore[assignment]
        trigger._open = lambda: shift.Shift.open(ShiftOrder.read(trigger.order), self._clients, log)  # type: ignore[method-assign, arg-type]
        event = await trigger.event()
        how = event.get("message") or event["result"].get("superseded") or event["result"]["state"]
        self.world.note(f"{self.name}: {how}")
        self.world.counts["superseded" if "superseded" in event.get("result", {}) else event["status"]] += 1
        self.is_over = True

    async def _order_for(self, limit: int) -> ShiftOrder:
        world, now, schedule = self.world, self.world.now, self.world.schedule
        at = self._at or now
        scheduled_allocation(schedule, at, now)
        demanded, had, kept = kept_demand(DEMANDED, now), world.has, schedule.as_kept(OVERRIDES, now)
        wanted = scheduled_allocation(kept, max(at, headed_for(kept, now, demanded)), now)
        when = {name: getattr(wanted, name) for name in ("until", "stops_at", "why")}
        order = replace(self.order, wanted_at=wanted.at, **world.means, **when)
        order = await ordered(order, wanted.units, None, self._clients, Log(world, self.name), demanded)
        self._had = had, world.has
        return order

    async def _sessions(self, stack: Any) -> Mapping[str, Session]:
        return {**await super()._sessions(stack), "inference": RangedGroup(self)}

    async def ask(self, request: Any) -> Any:
        if isinstance(request, CancelJobs) and request.signal:
            self.world.warned |= {one.job: self.world.now for one in request.ids}
        before = self.world.working
        answer = await super().ask(request)
        after = self.world.working
        if any(node not in before for node in after):
            self.check_moves("training", len(after))
        # One that has not booted, by now, is nothing that was taken.
        if any(node not in after and not node.is_down for node in before):
            self.check_moves("training", len(after), is_less=True)
        return answer

    def check_moves(self, target: str, to: int, *, is_less: bool = False) -> None:
        """The rules for a move: of ranges, and of what demand wishes for by now."""
        self.world.rules.check_range(self.order, target, to, is_less=is_less)
        if is_less:
            self.world.rules.check_wished(self)


class World(shifts.World):
    """A story that is under way, and its rules."""

    kind = "--demand "
    controllers: list[Run]  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.dice = random.Random(f"demand {seed}")
        pick = self.dice.choice
        self.metrics = Metrics(self)
        self.is_queue_away, self.is_queue_known = False, True
        self.fallback = None
        #: Jobs that have had a signal, and when.
        self.warned: dict[int, datetime] = {}
        self._arrives = pick((0.0, 0.05, 0.3))
        self.schedule = self._schedule()
        self.demand = Demand(
            self._loads(),
            calm=pick((0, 5, 15)) * MINUTE,
            max_moves=pick((2, 4, 48)),
            observe=self.dice.random() < 0.08,
        )
        queries = [load.query for load in self.demand.loads if isinstance(load, MetricLoad)]
        #: What a lie is of.
        self.wrong = (None, "waiting") if "waiting" in queries else (None,)
        mode = pick(("asap", "force", "force"))
        self.seen = replace(self._order("watch"), mode="asap", force_after=timedelta(0), rollback="none")
        #: How the DAG moves.
        self.means: dict[str, Any] = {
            "mode": mode,
            "transfer": pick((0, 10)) * MINUTE,
            "force_after": pick((0, 0, 10)) * MINUTE if mode == "force" else timedelta(0),
            "grace": pick((2, 5)) * MINUTE,
            "timeouts": Timeouts(free=20 * MINUTE, ready=20 * MINUTE),
        }
        self.variables: dict[str, str] = {}
        self.rules = Rules(self)
        self._watcher: CapacityDifferenceTrigger | None = None
        self._watching: asyncio.Task[Any] | None = None
        self._asleep: asyncio.Task[Any] | None = None
        self._watcher_is_back = 0.0
        self._memory: dict[str, Any] = {}
        self._runs, self._is_over = 0, False
        #: Jobs always wait.
        self.is_busy = False
        self._tasks: list[asyncio.Task[Any]] = []

    def _schedule(self) -> CapacitySchedule:
        pick, otherwise = self.dice.choice, self._ranges()
        evening = Window(f"daily 20:00 - {pick(('21:00', '22:00', '08:00'))}", self._ranges(), name="evening")
        return CapacitySchedule(timezone="UTC", windows=[evening], otherwise=otherwise, lead=pick(("0m", "20m")))

    def _ranges(self) -> dict[str, Units]:
        dice, left, units = self.dice, self.count, dict[str, Units]()
        for name in NAMES:
            low = dice.choice((0, 0, dice.randint(0, left)))
            high = dice.choice((self.count, dice.randint(low, self.count)))
            units[name] = low if low == high else {"min": low, "max": high}
            left -= low
        return units

    def _loads(self) -> list[Load]:
        pick = self.dice.choice
        serving: list[Load] = [
            pick(
                (
                    MetricLoad(target="inference", query="requests", per_unit=BEARS["requests"]),
                    ServiceLoad(
                        target="inference",
                        arrivals="rate",
                        service_time=SERVICE_TIME,
                        max_requests=MAX_REQUESTS,
                        headroom=pick((0, 1)),
                    ),
                    MetricLoad(target="inference", query="use", keep_at=0.7),
                )
            )
        ]
        if self.dice.random() < 0.4:
            serving.append(MetricLoad(target="inference", query="waiting", per_unit=BEARS["waiting"]))
        queue = QueueLoad(target="training", min_wait=pick((0, 5)) * MINUTE, min_work=pick((0, 30)) * MINUTE)
        return pick(([*serving, queue], [*serving, queue], [queue, *serving], serving))

    # The story

    @contextmanager
    def _patched(self) -> Iterator[None]:
        with ExitStack() as patched, super()._patched():
            # A story has one schedule, which is read and laid out each minute.
            read = cache(lambda said: CapacitySchedule.read(json.loads(said)))
            lay_out, laid = schedule._lay_out, dict[Any, list[ScheduleSegment]]()
            clock = Clock(self)
            schedules = SimpleNamespace(read=lambda said: read(json.dumps(said)))

            def laid_out(windows: Any, otherwise: Any, first: date, last: date, zone: Any) -> list[ScheduleSegment]:
                if (first, last) not in laid:
                    laid[first, last] = lay_out(windows, otherwise, first, last, zone)
                return [*laid[first, last]]

            async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
                await asyncio.sleep(0)
                return function(*args, **kwargs)

            async def query(hook: PrometheusHook, expression: str) -> list[Sample]:
                return await self.metrics.query(expression)

            def connections(order: ShiftOrder, clients: Clients, log: Any) -> Any:
                return clients.connected(order)

            for module in (reconciliation, capacity_watch, shift_trigger):
                patched.enter_context(mock.patch.object(module, "datetime", clock))
            for module in (base, capacity_watch, shift_trigger):
                patched.enter_context(mock.patch.object(module, "call", call))
            for what, name, stands in (
                (reconciliation, "ShiftConnections", connections),
                (shift_trigger, "_is_under_way", self.is_alive),
                (shift_trigger, "CapacitySchedule", schedules),
                (capacity_watch, "emit", lambda *args, **tags: None),
                (PrometheusHook, "query", query),
                (Variable, "get", lambda key, default=None: self.variables.get(key, default)),
                (Variable, "set", lambda key, value: self.variables.__setitem__(key, value)),
                (RuntimeTaskInstance, "get_dr_count", lambda **asked: len(self.controllers)),
                (demand, "decide", self._deciding(demand.decide)),
                (overrides, "_SETTLED", 0),
                (schedule, "CapacitySchedule", schedules),
                (schedule, "_lay_out", laid_out),
            ):
                patched.enter_context(mock.patch.object(what, name, stands))
            yield

    async def _play(self) -> None:
        self.note(f"{self.count} nodes, {self.schedule.windows[0].allocation}, {self.schedule.otherwise}, {self.means}")
        self.note(f"{self.demand}")
        for work in (self._go_on(), self._watch(), self._hand_over()):
            self._do(work)
        jumping = self._do(self._jump())
        self._events = [self._do(self._event()) for _ in range(self.dice.choice((0, 1, 2, 4, 6)))]
        try:
            await self._pass(self.dice.choice((60, 120, 360)))
            jumping.cancel()
            if not self.broken:
                await self._calm()
        finally:
            self._is_over = True
            for run in self.controllers:
                run.is_over = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self._tasks.append(outside(work))
        return self._tasks[-1]

    async def _pass(self, ticks: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time go by; True once something is so."""
        end = self.ticks + ticks
        while self.ticks < end and not self.broken and not until():
            await asyncio.sleep(TICK.total_seconds())
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.result()
        return until()

    async def _jump(self) -> None:
        """Loads jump."""
        while True:
            self.metrics.needed = self.dice.choice((0, 0.4, 1, 2, 3, self.count, self.count + 2))
            self._arrives = self.dice.choice((0.0, 0.0, 0.05, 0.3))
            self.note(f"{self.metrics.needed} units are of use to inference, and jobs arrive at {self._arrives}")
            await asyncio.sleep(self.dice.choice((2, 5, 15, 40)) * 60)

    def _submit(self) -> None:
        self.metrics.pass_by()
        if self.dice.random() < self._arrives:
            limit = self.dice.choice(self._limits) if not self.is_quiet else 10
            lasts = self.dice.randint(1, limit or 100) * MINUTE
            how = {"lasts": lasts, "submitted": self.now, "may_requeue": self.dice.random() < 0.8}
            self.slurm.wait(timedelta(minutes=limit) if limit else None, **how)
        waiting = [job for job in self.slurm.jobs.values() if not job.end and not job.node]
        for _ in range(self.count - len(waiting) if self.is_busy else 0):
            waiting.append(self.slurm.wait(timedelta(hours=24), submitted=self.now, lasts=20 * MINUTE))
        for job in waiting:
            name = next((one for one in self.slurm.nodes if self.slurm.may_start(one, job.limit)), None)
            if name is None:
                break
            self.slurm.start(job, name)

    async def _hand_over(self) -> None:
        """The timetable's runs."""
        while following := self.schedule.next_change(self.now):
            begins = max(following.begins, self.now)
            await asyncio.sleep((begins - self.now).total_seconds() + 1)
            self._begin(following.at)
            await asyncio.sleep((following.at - begins).total_seconds() + 60)

    def _begin(self, at: datetime | None) -> None:
        self._runs += 1
        run = Run(self, f"run-{self._runs}", at)
        self.note(f"{run.name} begins" + (f", for {at:%H:%M}" if at else ""))
        self.counts["runs"] += 1
        self.controllers.append(run)
        self._do(run.run())

    # The watcher

    async def _watch(self) -> None:
        while not self._is_over:
            self._watcher_is_back = self.dice.uniform(1, 180)
            self._watching = asyncio.ensure_future(self._look())
            with suppress(asyncio.CancelledError):
                await self._watching
            self._asleep = asyncio.ensure_future(asyncio.sleep(self._watcher_is_back))
            with suppress(asyncio.CancelledError):
                await self._asleep

    def _wake_watcher(self) -> None:
        self._watcher_is_back = 0.0
        if self._asleep:
            self._asleep.cancel()

    async def _look(self) -> None:
        fields = {"order": json.dumps(self.seen.write()), "schedule": json.dumps(self.schedule.describe())}
        watcher = CapacityDifferenceTrigger(
            DAG_ID, overrides=OVERRIDES, demand=json.dumps(self.demand.write()), demanded=DEMANDED, **fields
        )
        watcher._log = Log(self, "watcher")  # type: ignore[assignment]
        watcher.asset_state_store = self  # type: ignore[assignment]
        clients = Clients(Controller(self, self.seen, "watcher"))
        watcher.open = lambda: nullcontext(clients)  # type: ignore[method-assign]
        memory = watcher.memory
        watcher.memory = lambda: {**memory(), "number": self.rules.note_memory()}  # type: ignore[method-assign]
        self._watcher = watcher
        try:
            async for _ in watcher.run():
                self._begin(None)
        except Exception as error:
            self._break("the watcher goes on, whatever it is told", repr(error))

    def get(self, key: str) -> Any:
        memory = deepcopy(self._memory.get(key))
        self.rules.go_on_from(memory and memory["number"])
        return memory

    def set(self, key: str, value: Any) -> None:
        self._memory[key] = json.loads(json.dumps(value))

    def _deciding(self, decide: Callable[..., Decision]) -> Callable[..., Decision]:
        def decided(said: Demand, needs: Mapping[str, Need], wished: Any, has: Any, *more: Any) -> Decision:
            decision = decide(said, needs, wished, has, *more)
            self.rules.check_decision(decision, needs, wished, has, more[3])
            return decision

        return decided

    # What happens

    def _happenings(self) -> Sequence[Callable[[], Awaitable[None]]]:
        faults = (self._slurm_away, self._token_expires, self._killed, self._robbed, self._drained, self._reserved)
        watching = (self._watcher_killed, self._watcher_away, self._paused, self._queue_away, self._overridden)
        return (*faults, *watching, self._by_hand, *[self.metrics.lie] * 6)

    async def _by_hand(self) -> None:
        self.note("ann triggers the DAG")
        self._begin(None)

    async def _killed(self) -> None:
        for run in self.controllers[:1]:
            run.die()

    async def _watcher_killed(self) -> None:
        self.note("the watcher is killed")
        if self._watching:
            self._watching.cancel()

    async def _watcher_away(self) -> None:
        self.note("the watcher is away")
        if self._watching:
            self._watcher_is_back = self.dice.uniform(200, 6000)
            self._watching.cancel()
            await asyncio.sleep(self.dice.uniform(0, self._watcher_is_back))
            await self._by_hand()

    async def _paused(self) -> None:
        self.note("the DAG is paused")
        if self._watching and self._watcher:
            self._watcher_is_back = self.dice.uniform(60, 3000)
            await self._watcher.on_kill()
            self._watching.cancel()

    async def _queue_away(self) -> None:
        self.is_queue_away = True
        self.note("the queue cannot be asked")
        await asyncio.sleep(self.dice.uniform(60, 6000))
        self.is_queue_away = False

    async def _overridden(self) -> None:
        units, until = self._ranges(), self.now + self.dice.choice((20, 90)) * MINUTE
        try:
            made = self.schedule.override(units, self.now, until, "ann", "")
        except CapacityMistake as error:
            self.note(f"ann is told: {error}")
            return
        keep_override(OVERRIDES, made, self.now, self.schedule.zone)
        self.rules.overridden_at = self.ticks
        self.note(f"ann wishes for {units_text(units)} until {until:%H:%M}")

    # The rules

    @property
    def working(self) -> list[SlurmNode]:
        """Nodes that are at work, or on their way."""
        return [one for one in self.slurm.nodes.values() if one.power in ("on", "coming") and not one.is_told]

    def wish(self, at: datetime) -> Mapping[str, Units]:
        return self.schedule.as_kept(OVERRIDES, self.now).at(at).allocation

    @property
    def is_heard_in(self) -> int:
        """Ticks within which what was said is heard."""
        return HEEDED if self._slow else HEARD

    @property
    def has(self) -> dict[str, int]:
        """What targets may have."""
        return {"training": len(self.working), "inference": self.block.inference.allowed}

    @property
    def ready(self) -> int:
        return self.block.inference.count(State.READY)

    def jobs(self) -> tuple[int, int]:
        """Nodes with jobs, and jobs that wait."""
        jobs = [job for job in self.slurm.jobs.values() if not job.end]
        return len({job.node for job in jobs if job.node}), sum(not job.node for job in jobs)

    def loads_of(self, target: str) -> list[Load]:
        return [load for load in self.demand.loads if load.target == target]

    def planned(self, run: Run, order: ShiftOrder, had: Sequence[Mapping[str, int]]) -> None:
        self.note(f"{run.name}: {order.desired} at {order.wanted_at:%H:%M}, until {order.until}")
        self.slurm.until = min((one.order.until for one in self.controllers if one.order.until), default=None)
        self.rules.check_planned(run, order, had)

    def _ended(self, job: SlurmJob) -> None:
        super()._ended(job)
        graces = [one.order.grace for one in self.controllers if one.order.mode == "force"]
        warned = self.warned.pop(job.number, None)
        if warned is None or (graces and self.now - warned < min(graces) - TICK):
            self._break("no job is ended without its grace", f"job {job.number} was warned at {warned}")

    def _check(self) -> None:
        self._least = 0
        super()._check()

    async def _calm(self) -> None:
        """Nothing goes wrong any more: what demand wishes for has to come, and nothing may be left behind."""
        for event in self._events:
            event.cancel()
        self._mend()
        self.metrics.mend()
        self.is_queue_away = False
        self.variables.pop(OVERRIDES, None)
        self.rules.overridden_at = self.ticks
        self.metrics.needed = self.dice.choice((0, 1, 2, self.count))
        self._arrives = 0.0
        for job in self.slurm.jobs.values():
            if not job.node and not job.end:
                job.end = "CANCELLED"
        self.is_busy = self.dice.random() < 0.7
        self.note(f"{self.metrics.needed} units are of use to inference, and jobs {'always' * self.is_busy} wait")
        self._let_a_day_go_by()
        self._wake_watcher()
        # Until what was needed before is forgotten, and jobs have waited for long enough.
        await self._pass(int(max(self.demand.calm, 5 * MINUTE) / TICK) + HEARD)
        self.rules.settle()
        if not await self._pass(HEARD, lambda: self.rules.has_looked) and not self.broken:
            self._break("the watcher goes on, whatever it is told", "it looks at nothing any more")
        if not await self._pass(IN_TIME, self._is_there):
            if self._watcher and not self._watcher._differences.state["is_asked"]:
                # It was wished for when the DAG was switched on, so a person begins it.
                self._begin(None)
            if not await self._pass(PAUSE + IN_TIME, self._is_there) and not self.broken:
                self._break("what is of use comes", f"{self._got}, and not {self.rules.oracle.units}")
        if not self.broken and not await self._pass(IN_TIME, lambda: not self.controllers) and not self.broken:
            self._break("everything comes to an end", "a shift is still under way")
        if not self.broken:
            self._check_rest()

    def _let_a_day_go_by(self) -> None:
        """No move of before counts any more."""
        self.rules.let_a_day_go_by()
        demands = [memory["demand"] for memory in self._memory.values()]
        for one in (*demands, *([self._watcher._demand] if self._watcher else ())):
            one["moves"] = []

    @property
    def _got(self) -> tuple[int, int]:
        return self.slurm.usable, self.ready

    def _is_there(self) -> bool:
        """True once all have what the decision says, as far as that is possible."""
        units = self.rules.oracle.units
        if self.demand.observe or units is None:
            return not self.controllers
        if "training" not in self.demand.targets:
            most = bounds_of(self.wish(self.now)["training"])[1]
            units = {**units, "training": min(most, self.count - units["inference"])}
        training, inference, broken = self._possible(units)
        return self._got == (training - broken, inference)
