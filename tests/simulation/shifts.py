"""One story of shifts: what a seed makes of a block, its Slurm and its cloud, and the rules that hold whatever happens.

The shift, the choice of nodes, the reservation and the lease are those of the provider; time jumps.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from typing import Any, cast, get_args
from unittest import mock

from nebius.api.nebius.mk8s.v1 import NodeGroup

from airflow_provider_soperator.capacity import reconciliation, reservations, shift
from airflow_provider_soperator.capacity.holdings import Holding, Release
from airflow_provider_soperator.capacity.lease_store import LeaseStore, ShiftRecord
from airflow_provider_soperator.capacity.order import ShiftOrder, Superseded, Timeouts
from airflow_provider_soperator.capacity.shift import Shift
from airflow_provider_soperator.capacity.shift_plan import ShiftOutcome
from airflow_provider_soperator.capacity.steering import SteeringAction, SteeringCommand, steered
from airflow_provider_soperator.capacity.targets import (
    BoughtNodes,
    NebiusNodeGroupTarget,
    SlurmNodesTarget,
    jobs_in_the_way,
    slurm_session,
)
from airflow_provider_soperator.capacity.targets.protocol import Session, SessionContext
from airflow_provider_soperator.capacity.targets.slurm_session import SlurmNodesSession
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.errors import CapacityError
from airflow_provider_soperator.nebius.api import NebiusUnauthenticated
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.nebius.node_groups import GroupSize
from airflow_provider_soperator.slurm.requests import ListJobs, ListNodes, ListReservations, PowerDown
from airflow_provider_soperator.transports.transport_errors import ConnectionLost
from tests.simulation.clock import outside
from tests.simulation.story import Story
from tests.unit.capacity.bought import Group
from tests.unit.capacity.lease_places import KubernetesPlace
from tests.unit.capacity.nodes import MINUTE, OURS, START, Nodes, SlurmJob
from tests.unit.capacity.world import BLOCK, NEVER, Cloud, Connected, Pace, State, Units

#: What goes by between two moments of the world.
TICK = timedelta(seconds=30)
#: Ticks within which whatever is possible is there, once nothing goes wrong any more: jobs end, and machines move.
IN_TIME = 160
#: Ticks within which each request of a round has its answer, however slow.
HEEDED = 60
#: Ticks that an order is still under way which was given before something happened to its node.
UNDER_WAY = 12


class Log:
    """What a shift says becomes part of the story."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    def info(self, event: str, *args: Any) -> None:
        self._world.note(f"{self._name}: {event % args}")

    warning = error = info


class Clock:
    """In the place of ``datetime``."""

    resolution = datetime.resolution

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self, zone: tzinfo) -> datetime:
        return self._world.now


class Block(Cloud):
    """A block whose GPUs are on Slurm's nodes, on units of inference, and on what others have."""

    def __init__(self, count: int, slurm: Nodes, pace: Pace) -> None:
        super().__init__(8 * count)
        self.add("inference", pace=pace, off=count)
        self.slurm = slurm

    @property
    def taken(self) -> int:
        return self.foreign + 8 * self.slurm.machines + sum(one.machines * one.gpus for one in self.targets.values())

    @property
    def inference(self) -> Units:
        return self.targets["inference"]


class Controller:
    """A task that carries out an order, one process after the other."""

    def __init__(self, world: World, order: ShiftOrder, name: str) -> None:
        self.world, self.order, self.name = world, order, name
        self.is_over = False
        self.outcome: ShiftOutcome | None = None
        self._life: asyncio.Task[Any] | None = None
        #: What the present process remembers.
        self._memory: dict[str, Any] = {}
        #: What people have asked of it, and when.
        self._asked: list[tuple[int, SteeringCommand]] = []

    async def run(self) -> None:
        try:
            while not self.is_over:
                self._memory = {}
                self._life = asyncio.ensure_future(self._live())
                with suppress(asyncio.CancelledError):
                    await self._life
                await asyncio.sleep(self.world.dice.uniform(1, 300))
        finally:
            self.is_over = True

    async def _live(self) -> None:
        connections = Connected(self._sessions, self._agreed if self.world.place else None)
        one = Shift(self.order, self._block, connections, Log(self.world, self.name))
        try:
            self.outcome = await one.run(self.world.is_alive, self)
            self.world.note(f"{self.name}: {self.outcome.state} {self.outcome.missing}")
            self.world.counts[self.outcome.state] += 1
        except Superseded as error:
            self.world.note(f"{self.name}: {error}")
            self.world.counts["superseded"] += 1
        except CapacityError as error:
            self.world.note(f"{self.name}: {error}")
            self.world.counts["failed"] += 1
        self.is_over = True

    # People who steer it

    def steer(self, action: SteeringAction, *nodes: str) -> None:
        hour = timedelta(minutes=60 if action == "extend" else 0)
        command = SteeringCommand(action=action, at=self.world.now, by="ann", nodes=nodes, extend_by=hour)
        self.world.note(f"{self.name}: {command}")
        self._asked.append((self.world.ticks, command))

    async def commands(self, record: ShiftRecord) -> list[SteeringCommand]:
        await self.world.passes()
        return [command for _, command in self._asked]

    async def show(self, state: Mapping[str, Any]) -> None:
        await self.world.passes()

    @property
    def steered(self) -> ShiftOrder:
        return steered(self.order, [command for _, command in self._asked])

    def _check_heeded(self, request: PowerDown) -> None:
        for ticks, command in self._asked:
            if self.world.ticks - ticks > HEEDED and command.action == "stop":
                self.world.break_rule("a shift that was told to stop moves nothing", str(request.names))
            for node in map(self.world.slurm.nodes.get, command.nodes):
                is_at_work = node and node.power == "on" and not (node.is_told or node.drain or node.is_down)
                if self.world.ticks - ticks > HEEDED and node and is_at_work and node.name in request.names:
                    self.world.break_rule("a node that is left out stays", node.name)

    def die(self) -> None:
        if self._life and not self._life.done():
            self.world.note(f"{self.name}: its process is killed")
            self._life.cancel()

    # Its clients

    async def ask(self, request: Any) -> Any:
        world = self.world
        await world.passes()
        if world.is_slurm_away:
            raise ConnectionLost("slurmctld is away")
        if isinstance(request, PowerDown):
            self._check_heeded(request)
            world.told_by |= dict.fromkeys(request.names, self)
        answer = world.slurm.answer(request)
        if not isinstance(request, ListJobs | ListNodes | ListReservations):
            what = getattr(request, "names", ()) or getattr(request, "nodes", ()) or getattr(request, "name", "")
            world.note(f"{self.name}: {type(request).__name__} {what}")
        world.loses_an_answer()
        return answer

    async def statuses(self, jobs: Any) -> Mapping[Any, Any]:
        return {}

    async def _block(self) -> CapacityBlock:
        await self.world.passes()
        self.world.check_token()
        return self.world.block.block()

    async def _agreed(self, stack: Any) -> LeaseStore | None:
        await self.world.passes()
        return self.world.place.lease(self.order.key) if self.world.place else None

    async def _sessions(self, stack: Any) -> Mapping[str, Session]:
        order = self.order
        context = SessionContext(block=BLOCK, key=order.key, until=order.until, memory=self._memory)
        target = cast(SlurmNodesTarget, order.targets[0])
        client = cast(AsyncSlurmClient, self)
        training = SlurmNodesSession(target, client, "root", None, context, Log(self.world, self.name))
        return {"training": training, "inference": GroupSession(self)}


class GroupSession(Session):
    """Inference, which is asked over the cloud's API."""

    def __init__(self, controller: Controller) -> None:
        self._world, self._name = controller.world, controller.name
        self._key, self._fallback = controller.order.key, controller.order.buys.get("inference")

    async def look(self) -> Holding:
        seen: Holding = await self._do(self._world.block.inference.see)
        return replace(seen, size=None, bought=self._world.bought.nodes)

    async def buy(self, lacks: int, keeps: int, now: datetime, until: datetime | None) -> bool:
        assert self._fallback
        bought = self._world.bought.of(self._fallback, self._key, Log(self._world, self._name))
        return await bought.bring(lacks, keeps, now, until)

    async def shrink(self, to: int, release: Release) -> None:
        if (mode := release.mode) is not None:
            await self._do(lambda: self._world.block.inference.shrink(to, mode))

    async def grow(self, to: int) -> None:
        self._world.note(f"{self._name}: inference may have {to}")
        await self._do(lambda: self._world.block.inference.grow(to))

    async def _do(self, deed: Any) -> Any:
        await self._world.passes()
        self._world.check_token()
        answer = deed()
        self._world.loses_an_answer()
        return answer


class Bought(Group):
    """Nodes beside the block, and what each window has paid for them."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._cost: Counter[int] = Counter()
        self._releases: Counter[int] = Counter()

    async def read(self) -> NodeGroup:
        await self._world.passes()
        self._world.check_token()
        return await super().read()

    async def resize(self, group: NodeGroup, size: GroupSize, key: str) -> str:
        await self._world.passes()
        self._world.check_token()
        before = self.nodes
        answer = await super().resize(group, size, key)
        self._world.note(f"{self.nodes} nodes beside the block, not {before}")
        self._releases[self._window] += self.nodes < before
        self._world.check_bought(self.nodes, before)
        self._world.loses_an_answer()
        return answer

    @property
    def _window(self) -> int:
        return int(self.group.metadata.labels.get("soperator-window") or 0)

    def pass_by(self) -> None:
        """A tick has gone by; a release takes the minutes of a slow API."""
        said, window = self._world.fallback, self._window
        if said and self._world.now.timestamp() <= window:
            self._cost[window] += self.nodes * 8 * int(TICK.total_seconds())
            late = self._releases[window] * said.max_nodes * 8 * HEEDED * TICK.total_seconds() / 4
            if self._cost[window] > said.gpu_hours * 3600 + late + 1:
                self._world.break_rule("no window costs more than it may", f"{self._cost[window] / 3600:.1f} GPU-hours")


class World(Story):
    """A story that is under way, and its rules."""

    kind = "--shifts "

    def __init__(self, seed: int) -> None:
        self.seed, self.dice = seed, random.Random(f"shifts {seed}")
        self.counts: Counter[str] = Counter()
        self.ticks = 0
        self._story: list[str] = []
        roll, pick = self.dice.random, self.dice.choice
        self.count = pick((2, 3, 4, 5))
        self.slurm = Nodes(self.count, lambda: self.now)
        self.slurm.lingers = lambda: self.dice.randint(1, 8) * MINUTE / 2
        self.slurm.boots = self._boots
        self.slurm.violated = self._violated
        self.slurm.ended = self._ended
        self.slurm.has_accounting = seed % 3 > 0
        self._fails = pick((0.0, 0.0, 0.1, 0.3))
        self._loses = pick((0.0, 0.0, 0.02, 0.1))
        self._slow = pick((0.0, 0.02, 0.1))
        pace = Pace(
            machine=self._some,
            claim=self._some,
            boot=lambda unit: NEVER if roll() < self._fails else 2 + self._some(unit),
        )
        self.block = Block(self.count, self.slurm, pace)
        self.slurm.claim = lambda: self.block.has_room_for(8)
        self.is_slurm_away = self.has_no_token = self.is_quiet = False
        self._is_robbed = False
        self._limits = pick(((10,), (10, 60), (20, 120, None)))
        # Some jobs always wait: nodes that are reserved for them cannot be had.
        for limit in self._limits if seed % 2 else ():
            self.slurm.wait(timedelta(minutes=limit) if limit else None)
        self.place = pick((None, KubernetesPlace()))
        self.controllers: list[Controller] = []
        #: When something was done to a node by others.
        self._touched: dict[str, int] = {}
        #: Who was the last to tell a node to power down.
        self.told_by: dict[str, Controller] = {}
        #: Some may buy; of dice of their own, as all else is as it is without.
        extra = random.Random(f"bought {seed}")
        self._wakes = random.Random(f"woken {seed}")
        self.fallback: BoughtNodes | None = None
        if extra.random() < 0.4:
            self.fallback = BoughtNodes(
                node_group="bought",
                max_nodes=extra.choice((1, 2)),
                gpu_hours=extra.choice((4, 16, 100)),
                after=extra.choice((0, 10)) * MINUTE,
            )
        self.bought = Bought(self)
        self._least = self.count
        self._events: list[asyncio.Task[Any]] = []

    @property
    def now(self) -> datetime:
        return START + self.ticks * TICK

    def note(self, text: str) -> None:
        self._story.append(f"{self.ticks:6}  {text}")

    def told(self) -> list[str]:
        return self._story

    def _some(self, unit: int) -> int:
        return self.dice.choice((0, 1, 3, 10))

    def _boots(self) -> timedelta | None:
        return None if self.dice.random() < self._fails else self.dice.randint(1, 10) * MINUTE / 2

    async def passes(self) -> None:
        """Time goes by while something is asked."""
        slow = self._slow and self.dice.random() < self._slow
        await asyncio.sleep(self.dice.uniform(0, 90) if slow else 0)

    def loses_an_answer(self) -> None:
        if not self.is_quiet and self._loses and self.dice.random() < self._loses:
            raise ConnectionLost("the answer was lost")

    def check_token(self) -> None:
        if self.has_no_token:
            raise NebiusUnauthenticated("the token has expired")

    async def is_alive(self, record: ShiftRecord) -> bool:
        return any(one.order.key == record.key and not one.is_over for one in self.controllers)

    # The story

    @contextmanager
    def _patched(self) -> Iterator[None]:
        with ExitStack() as patched:
            for module in (reconciliation, shift, slurm_session, jobs_in_the_way, reservations):
                patched.enter_context(mock.patch.object(module, "datetime", Clock(self)))
            yield

    async def _play(self) -> None:
        world = outside(self._go_on())
        self.note(f"{self.count} nodes")
        for number in range(self.dice.choice((1, 2, 2, 3))):
            orders = [self._order(f"{number}a")]
            if self.dice.random() < 0.25:
                orders.append(self._order(f"{number}b"))
            await self._carry_out(orders, [self._event() for _ in range(self.dice.choice((0, 1, 2, 4)))])
        if not self.broken:
            await self._calm()
        world.cancel()
        with suppress(asyncio.CancelledError):
            await world

    def _order(self, name: str) -> ShiftOrder:
        pick = self.dice.choice
        training = self.dice.randint(0, self.count)
        desired = {"training": training, "inference": self.dice.randint(0, self.count - training)}
        wanted_at = self.now + pick((0, 0, 20, 45)) * MINUTE
        ends = wanted_at + pick((30, 60, 120)) * MINUTE if self.dice.random() < 0.8 else None
        mode = pick(("asap", "asap", "idle", "force"))
        return ShiftOrder(
            key=name,
            task=f"dag/{name}/shift/-1",
            block=BLOCK,
            nebius_conn_id="nebius_default",
            targets=(
                SlurmNodesTarget(name="training", nodes=self.slurm.names, order=pick(("end", "work"))),
                NebiusNodeGroupTarget(name="inference", node_group="serving", fallback=self.fallback),
            ),
            desired=desired,
            wanted_at=wanted_at,
            transfer=pick((0, 10)) * MINUTE,
            until=ends,
            stops_at=ends,
            mode=cast(Any, mode),
            force_after=pick((0, 10, 20)) * MINUTE if mode == "force" else timedelta(0),
            grace=2 * MINUTE,
            timeouts=Timeouts(release=None if ends else 60 * MINUTE, free=20 * MINUTE, ready=20 * MINUTE),
            rollback="all" if self.dice.random() < 0.2 else "none",
            # Two that ask at the same moments would never hold the block.
            poll_interval=self.dice.uniform(25, 40),
        )

    async def _carry_out(self, orders: list[ShiftOrder], events: list[Any]) -> None:
        for order in orders:
            self.note(f"{order.key}: {order.desired} at {order.wanted_at:%H:%M} until {order.until}, {order.mode}")
            least = 0 if order.rollback == "all" else order.desired["inference"]
            self._least = min(self._least, least)
            # Who goes back may ask again for what was asked for in vain before.
            self._is_robbed |= order.rollback == "all"
        self.slurm.until = min((order.until for order in orders if order.until), default=None)
        self.controllers = [Controller(self, order, order.key) for order in orders]
        work = [asyncio.ensure_future(one.run()) for one in self.controllers]
        self._events += [outside(event) for event in events]
        while not all(one.done() for one in work) and not self.broken:
            await asyncio.wait(work, timeout=600)
            if self.ticks > 5000:
                self._break("everything comes to an end", "a shift is still under way")
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(TICK.total_seconds())
            self.ticks += 1
            self._submit()
            self.slurm.advance()
            self.block.tick()
            self.bought.pass_by()
            self._check()

    def _submit(self) -> None:
        for name in self.slurm.nodes:
            limit = self.dice.choice(self._limits) if not self.is_quiet else 10
            span = timedelta(minutes=limit) if limit else None
            if self.dice.random() < 0.15 and self.slurm.may_start(name, span):
                lasts = self.dice.randint(1, limit or 200) * MINUTE
                may_requeue = self.dice.random() < 0.8
                self.slurm.run(name, span, lasts=lasts, may_requeue=may_requeue, has_script=self.dice.random() < 0.9)
            elif self._wakes.random() < 0.2 and self.slurm.may_wake(name, span):
                self._wake(name, span, self._wakes.randint(1, limit or 200) * MINUTE)

    def _wake(self, name: str, limit: timedelta | None, lasts: timedelta) -> None:
        """Slurm powers a node up that is off, for a job."""
        self.note(f"{name} is powered up for a job")
        self.counts["woken"] += 1
        # An order that is over has left behind what was still to go, as it had jobs; one that only takes idle nodes
        # reserves none, and one that goes back gives up what it has reserved.
        teller = self.told_by.get(name)
        is_kept = teller and not (teller.is_over or teller.order.mode == "idle" or teller.order.rollback == "all")
        if is_kept and self.slurm.nodes[name].reason.startswith("airflow:") and name not in self._touched:
            self._break("no job takes a node that has gone for a shift", name)
        self.slurm.run(name, limit, lasts=lasts)

    def check_bought(self, nodes: int, before: int) -> None:
        orders = [one.order for one in self.controllers if not one.is_over]
        if nodes > before and (self.fallback is None or nodes > self.fallback.max_nodes):
            self._break("no more is bought than the user allows", f"{nodes} nodes")
        if nodes > before and not any(self.now >= one.wanted_at + one.buys["inference"].after for one in orders):
            self._break("nothing is bought before the block had its time", f"{nodes} nodes")
        if nodes > before:
            self.counts["bought"] += 1

    # What happens

    async def _event(self) -> None:
        await asyncio.sleep(self.dice.uniform(0, self.dice.choice((300, 4000))))
        happens = self.dice.choice(self._happenings())
        self.counts[happens.__name__] += 1
        await happens()

    def _happenings(self) -> Sequence[Callable[[], Awaitable[None]]]:
        faults = (self._slurm_away, self._token_expires, self._killed, self._killed)
        return (*faults, self._robbed, self._drained, self._reserved, self._steered, self._steered)

    async def _slurm_away(self) -> None:
        self.is_slurm_away = True
        self.note("slurmctld is away")
        await asyncio.sleep(self.dice.uniform(10, 2400))
        self.is_slurm_away = False
        self.note("slurmctld is back")

    async def _token_expires(self) -> None:
        self.has_no_token = True
        self.note("the token expires")
        await asyncio.sleep(self.dice.uniform(10, 3000))
        self.has_no_token = False
        self.note("there is a new token")

    async def _killed(self) -> None:
        self.dice.choice(self.controllers).die()

    async def _robbed(self) -> None:
        if self.block.taken + 8 <= self.block.limit:
            self._is_robbed = True
            self.block.foreign += 8
            self.note("somebody takes 8 GPUs")
            await asyncio.sleep(self.dice.uniform(60, 4000))
            self.block.foreign -= 8
            self.note("somebody gives 8 GPUs back")

    async def _drained(self) -> None:
        node = self.slurm.nodes[self.dice.choice(list(self.slurm.nodes))]
        if not node.drain and not node.is_told:
            self._touch(node.name, "is drained by somebody")
            node.drain, node.drained_at = "disk", self.now
            if self.dice.random() < 0.5:
                await asyncio.sleep(self.dice.uniform(60, 4000))
                if node.drain == "disk":
                    self._touch(node.name, "is undrained by somebody")
                    node.drain = ""

    async def _reserved(self) -> None:
        node, start = self.dice.choice(list(self.slurm.nodes)), self.now + self.dice.choice((0, 15)) * MINUTE
        self._touch(node, f"is reserved from {start:%H:%M} on")
        self.slurm.reserve(f"team-{len(self._touched)}", node, start, start + self.dice.choice((20, 300)) * MINUTE)

    async def _steered(self) -> None:
        action = self.dice.choice(get_args(SteeringAction))
        nodes = self.dice.sample(sorted(self.slurm.nodes), self.dice.choice((1, 1, 2)))
        self.dice.choice(self.controllers).steer(action, *(nodes if action == "leave_out" else ()))
        self.counts[action] += 1

    def break_rule(self, rule: str, how: str) -> None:
        self._break(rule, how)

    def _touch(self, node: str, what: str) -> None:
        self._touched[node] = self.ticks
        self.note(f"{node} {what}")

    # The rules

    def _violated(self, what: str, node: str) -> None:
        if self.ticks - self._touched.get(node, -NEVER) > UNDER_WAY or "is ended with" in what:
            self._break("nobody's drained or reserved node is taken, and no job fails with its node", what)

    def _ended(self, job: SlurmJob) -> None:
        self.note(f"job {job.number} is ended")
        orders = [one.steered for one in self.controllers if one.steered.mode == "force"]
        if not any(self.now >= order.wanted_at + order.force_after - TICK for order in orders):
            self._break("no job is ended that need not be", f"job {job.number}")
        if not job.signals:
            self._break("a job is warned before it is ended", f"job {job.number}")

    def _check(self) -> None:
        if self.block.refused and not self._is_robbed:
            self._break("never more GPUs are claimed than are free", f"{self.block.refused} claims were turned down")
        if self.block.inference.least < self._least:
            self._break("what serves stays", f"inference was shrunk to {self.block.inference.least}")

    async def _calm(self) -> None:
        """Nothing goes wrong any more: what is possible has to come, and nothing may be left behind."""
        self._mend()
        order = replace(
            self._order("last"), wanted_at=self.now, until=None, stops_at=None, mode="asap", rollback="none"
        )
        order = replace(order, timeouts=Timeouts())
        self._least = 0
        begun = self.ticks
        await self._carry_out([order], [])
        if self.broken:
            return
        spent = self.ticks - begun
        if spent > IN_TIME:
            self._break("what is possible comes in time", f"it took {spent * TICK}")
        self._check_arrived(order)
        self._check_rest()

    def _mend(self) -> None:
        """All that was begun with a fault, or by others, comes to its end."""
        self.is_quiet, self._fails, self._slow = True, 0.0, 0.0
        for event in self._events:
            event.cancel()
        # What was begun with a fault that is over.
        self.is_slurm_away = self.has_no_token = False
        self.block.foreign, self._is_robbed, self.block.refused = 0, True, 0
        for number, unit in enumerate(self.block.inference.units):
            if unit.state is State.BOOTING:
                self.block.inference._set(number, State.BOOTING, self.block.now)
        for node in self.slurm.nodes.values():
            node.will_fail = False
        for job in self.slurm.jobs.values():
            job.lasts = min(job.lasts, (self.now - (job.began or self.now)) + 20 * MINUTE)
        for name, one in self.slurm.reservations.known.items():
            if not name.startswith(OURS) and one.end and one.end > self.now:
                self.slurm.reservations.known[name] = replace(one, end=None)
        self.note("from now on nothing goes wrong")

    def _possible(self, desired: Mapping[str, int]) -> tuple[int, int, int]:
        """What is possible of an allocation: nodes of training, units of inference; and the nodes that take no work."""
        reserved = {
            one.nodelist
            for one in self.slurm.reservations.known.values()
            if not one.name.startswith(OURS) and (not one.end or one.end > self.now)
        }
        stuck, broken, away, kept = 0, 0, 0, 0
        for node in self.slurm.nodes.values():
            is_theirs = bool(node.drain) and not node.drain.startswith("airflow:")
            away += is_theirs and node.power == "off"
            # One that has not booted, and that somebody has drained since.
            kept += is_theirs and node.is_down and node.has_machine
            broken += is_theirs and node.power != "off"
            stuck += (is_theirs and node.power != "off") or (node.name in reserved and not node.drain)
        training = max(min(desired["training"], self.count - away), stuck)
        return training, min(desired["inference"], self.count - training - kept), broken

    def _check_arrived(self, order: ShiftOrder) -> None:
        training, inference, broken = self._possible(order.desired)
        got = (self.slurm.usable, self.block.inference.count(State.READY))
        if got != (training - broken, inference):
            self._break(
                "what is possible comes", f"{got}, and not {(training - broken, inference)}, of {order.desired}"
            )
        [controller] = self.controllers
        is_done = order.desired == {"training": training, "inference": got[1]} and not broken
        state = controller.outcome.state if controller.outcome else "nothing"
        if state != ("done" if is_done else "partial"):
            self._break("a shift says how it has ended", f"{state} with {got} of {order.desired}")

    def _check_rest(self) -> None:
        left = [name for name in self.slurm.reservations.known if name.startswith(OURS)]
        left += [
            f"{node.name} drained by {node.drain!r}"
            for node in self.slurm.nodes.values()
            if node.power == "on" and node.drain.startswith("airflow:")
        ]
        left += [f"{self.bought.nodes} nodes beside the block"] if self.bought.nodes else []
        left += [f"job {job.number}: {job.admin_comment}" for job in self.slurm.jobs.values() if _is_warned(job)]
        if left:
            self._break("nothing is left behind", ", ".join(left))


def _is_warned(job: SlurmJob) -> bool:
    return not job.end and bool(job.admin_comment)
