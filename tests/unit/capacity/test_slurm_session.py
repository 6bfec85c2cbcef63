"""What Slurm's nodes are told when more or fewer of them are to be at work, from what they are at that moment."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from airflow_provider_soperator.capacity import reservations
from airflow_provider_soperator.capacity.holdings import Release, World
from airflow_provider_soperator.capacity.lease_store import TERM, ShiftRecord
from airflow_provider_soperator.capacity.node_choice import NodeLoad
from airflow_provider_soperator.capacity.reconciliation import goal_in
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget, jobs_in_the_way, slurm_session
from airflow_provider_soperator.capacity.targets.protocol import SessionContext
from airflow_provider_soperator.capacity.targets.slurm_session import SlurmNodesSession
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.errors import CapacityMistake, ClusterError
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.cluster_records import Node, Reservation
from airflow_provider_soperator.slurm.errors import AccountingUnreachable, InvalidStateTransition
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    CancelJobs,
    CreateReservation,
    ListJobs,
    ListNodes,
    ListReservations,
    PowerDown,
    PowerDownMode,
    PowerUp,
    RequeueJobs,
    Undrain,
    UpdateReservation,
)
from airflow_provider_soperator.slurm.states import JobState, NodeState
from airflow_provider_soperator.transports.transport_errors import CommandTimedOut, OutputTooLarge
from tests.unit.capacity.nodes import Nodes, SlurmNode
from tests.unit.capacity.world import Log
from tests.unit.clock import StoppedClock

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.targets.nebius_session import GroupMachines

WHOSE = {"why": "night (shifts)", "airflow": "3f2a9c01d7e4"}
ASAP = PowerDownMode.ASAP
OURS = "airflow:capacity/block-1: lent"
IDLE, GOING = ("IDLE+CLOUD", ""), ("MIXED+CLOUD+POWER_DOWN+DRAIN", OURS)
OFF, ANOTHERS = ("IDLE+CLOUD+POWERED_DOWN+DRAIN", OURS), ("IDLE+CLOUD+DRAIN", "new driver")


class FixedNodes:
    """Answers with the same nodes, and notes what they are told."""

    def __init__(self, states: list[tuple[str, str]]) -> None:
        self.nodes = tuple(
            Node(name=f"worker-{number}", state=NodeState.parse(state), reason=reason, gres="gpu:8")
            for number, (state, reason) in enumerate(states)
        )
        self.told: list[Any] = []
        self.reserved: tuple[Reservation, ...] = ()

    async def ask(self, request: Any) -> Any:
        if isinstance(request, ListNodes):
            return tuple(node for node in self.nodes if not request.names or node.name in request.names)
        if isinstance(request, ListJobs):
            return ()
        if isinstance(request, ListReservations):
            return self.reserved
        if isinstance(request, (CreateReservation, UpdateReservation)):
            self.reserved = (Reservation(name=request.name, nodelist=",".join(request.nodes)),)
        self.told.append(request)
        return None

    def session(self, nodes: str, machines: int | None = None) -> SlurmNodesSession:
        """Some of them at work, on node groups with so many machines."""
        target = SlurmNodesTarget(name="training", nodes=nodes)
        client, purpose = cast(AsyncSlurmClient, self), SessionContext(block="block-1", key="shift", **WHOSE)
        counted = None if machines is None else cast("GroupMachines", Counted(machines))
        return SlurmNodesSession(target, client, "root", counted, purpose, logging.getLogger(__name__))

    def grow(self, to: int) -> list[str]:
        """The nodes that are powered up."""
        session = self.session(f"worker-[0-{len(self.nodes) - 1}]")
        holding = asyncio.run(session.look())
        assert holding.held == sum("POWERED_DOWN" not in str(node.state) for node in self.nodes)
        asyncio.run(session.grow(to))
        return [name for order in self.told if isinstance(order, PowerUp) for name in order.names]


class Counted:
    """Node groups with so many machines."""

    def __init__(self, machines: int) -> None:
        self._machines = machines

    async def count(self) -> int:
        return self._machines


@pytest.mark.parametrize(
    ("others", "machines", "held"),
    [
        pytest.param([], 2, 2, id="the machine of one that is off is there yet"),
        pytest.param([], 1, 1, id="it is gone"),
        pytest.param([IDLE, IDLE], 4, 2, id="other nodes stand on the same groups"),
        pytest.param([OFF, OFF], 4, 3, id="machines of others that are off cannot be told from its own"),
        pytest.param([IDLE, IDLE], 1, 1, id="other nodes stand elsewhere"),
    ],
)
def test_machines_count_as_far_as_they_can_be_those_of_its_nodes(
    others: list[tuple[str, str]], machines: int, held: int
) -> None:
    nodes = FixedNodes([IDLE, OFF, OFF, *others])
    assert asyncio.run(nodes.session("worker-[0-2]", machines).look()).held == held


def test_nodes_are_of_a_block_that_is_named() -> None:
    session = FixedNodes([IDLE]).session("worker-0")
    with pytest.raises(CapacityMistake, match="training: the capacity block of its machines is unknown"):
        asyncio.run(session.check(1, CapacityBlock(id="", limit=64, usage=None)))


def test_two_targets_in_one_slurm_reserve_their_nodes_together() -> None:
    nodes = FixedNodes([IDLE] * 4)
    ahead = Release(leaves_at=NOW, mode=None)
    for _ in range(2):
        for names in ("worker-[0-1]", "worker-[2-3]"):
            asyncio.run(nodes.session(names).shrink(1, ahead))
    [reservation] = nodes.reserved
    assert reservation.nodelist == "worker-0,worker-2"
    assert len(nodes.told) == 2, "nothing is done again"
    made = nodes.told[0]
    assert made.comment == "night (shifts) of Airflow 3f2a9c01d7e4"


@pytest.mark.parametrize("held", [[IDLE], [GOING], [ANOTHERS], [GOING, ANOTHERS]], ids=str)
def test_what_has_its_gpus_yet_counts(held: list[tuple[str, str]]) -> None:
    """The block has none for another node until it is gone."""
    nodes = [IDLE] * 3 + held + [OFF] * 2
    assert FixedNodes(nodes).grow(3 + len(held)) == []
    assert FixedNodes(nodes).grow(4 + len(held)) == [f"worker-{3 + len(held)}"]


# What goes, and what stays


NOW = datetime.now(timezone.utc)
CLOCK = StoppedClock(NOW)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (jobs_in_the_way, reservations, slurm_session):
        monkeypatch.setattr(module, "datetime", CLOCK)


class Slurm(Nodes):
    """A Slurm with the clock of those who ask it."""

    def __init__(self, count: int) -> None:
        super().__init__(count, CLOCK.now)
        self.log = Log()
        self.memory: dict[str, Any] = {}

    def session(self, *, nodes: str = "", **approved: Any) -> SlurmNodesSession:
        context = SessionContext(block="block-1", key="shift", memory=self.memory, **approved)
        target = SlurmNodesTarget(name="training", nodes=nodes or self.names)
        return SlurmNodesSession(target, cast(AsyncSlurmClient, self), "root", None, context, self.log)

    def shrink(self, to: int, mode: PowerDownMode | None = ASAP, at: datetime | None = None, **how: Any) -> list[str]:
        """The nodes that are told to go."""
        before, release = len(self.asked), Release(leaves_at=at or NOW, mode=mode, **how)
        asyncio.run(self.session().shrink(to, release))
        return [name for order in self.asked[before:] if isinstance(order, PowerDown) for name in order.names]

    def grow(self, to: int) -> list[str]:
        """The nodes that are powered up."""
        before = len(self.asked)
        asyncio.run(self.session().grow(to))
        return [name for order in self.asked[before:] if isinstance(order, PowerUp) for name in order.names]

    @property
    def reserved(self) -> list[str]:
        return [name for one in self.reservations.known.values() for name in one.nodelist.split(",")]

    def handover(self) -> list[str]:
        """The reserved nodes that have not been told to go yet."""
        return [name for name in self.reserved if not self.nodes[name].is_told]


def test_what_is_idle_goes_and_what_has_jobs_is_kept_free_until_it_is() -> None:
    slurm = Slurm(4)
    jobs = [slurm.run(f"worker-{number}", (number + 1) * HOUR) for number in range(3)]
    assert slurm.shrink(2) == ["worker-3"]
    assert slurm.handover() == ["worker-0"]
    assert "training: worker-0 powers down after its jobs: runs 1 (job1) until" in "\n".join(slurm.log.said)
    slurm.finish(jobs[0])
    assert slurm.shrink(2) == ["worker-0"]
    assert not slurm.handover()


def test_no_job_powers_a_node_up_before_it_is_drained_again() -> None:
    """The drain that comes with a power down ends with it: a shift whose process has died drains the node later."""
    slurm, now = Slurm(2), CLOCK.now()
    slurm.now = lambda: now
    slurm.run("worker-0")
    assert slurm.shrink(1) == ["worker-1"]
    assert "reserved" not in "\n".join(slurm.log.said)
    for _ in range(2):
        slurm.advance()
        now += 2 * slurm.power_down_time
    gone = slurm.nodes["worker-1"]
    assert (gone.power, gone.drain) == ("off", "")
    assert not slurm.may_wake("worker-1", None)
    slurm.shrink(1)
    assert (gone.drain.partition(":")[0], slurm.reserved) == ("airflow", ["worker-1"])
    slurm.shrink(1)
    assert (slurm.reserved, slurm.may_wake("worker-1", None)) == ([], False)


def test_a_node_that_falls_idle_takes_the_place_of_a_busy_one() -> None:
    slurm = Slurm(4)
    jobs = [slurm.run(f"worker-{number}", (number + 1) * HOUR) for number in range(4)]
    assert slurm.shrink(3) == []
    assert slurm.handover() == ["worker-0"]
    slurm.finish(jobs[2])
    assert slurm.shrink(3) == ["worker-2"]
    assert (slurm.handover(), slurm.nodes["worker-0"].drain) == ([], "")


def test_ahead_nodes_are_reserved_and_none_is_told() -> None:
    slurm = Slurm(3)
    slurm.run("worker-0", HOUR)
    assert slurm.shrink(1, None, NOW + 2 * HOUR) == []
    assert slurm.handover() == ["worker-1", "worker-2"]
    # What is kept free stays so, as all that are free in time are the same.
    slurm.finish(slurm.jobs[1])
    assert slurm.shrink(1, None, NOW + 2 * HOUR) == []
    assert slurm.handover() == ["worker-1", "worker-2"]


def with_jobs_of_ten_minutes(nodes: int) -> Slurm:
    """Jobs without limits on all nodes; the queue shows as many that have ended, and two that wait."""
    slurm = Slurm(nodes)
    for name in slurm.nodes:
        ended, runs = slurm.run(name), slurm.run(name)
        slurm.finish(ended)
        ended.began, ended.ended, runs.began = NOW - 11 * MINUTE, NOW - MINUTE, NOW - MINUTE
    slurm.wait()
    slurm.wait()
    return slurm


def test_ahead_no_node_is_reserved_while_another_job_fits_by_how_long_jobs_last() -> None:
    slurm = with_jobs_of_ten_minutes(3)
    for at in (2 * HOUR, HOUR):
        assert slurm.shrink(1, None, NOW + at) == []
        assert slurm.handover() == []
    [said] = [line for line in slurm.log.said if "no node is reserved yet" in line]
    assert said.endswith("jobs last about 0:10:00")
    # Another job would run past it, as those that run do: the first of all that falls idle is wanted.
    assert slurm.shrink(1, None, NOW + 5 * MINUTE) == []
    assert slurm.handover() == ["worker-0", "worker-1", "worker-2"]
    # As nothing waits any more, nothing is kept off them.
    for job in list(slurm.jobs.values())[-2:]:
        slurm.finish(job, "CANCELLED")
    assert slurm.shrink(1, None, NOW + 2 * HOUR) == []
    assert slurm.handover() == ["worker-0", "worker-1"]


@pytest.mark.parametrize(
    "error", [AccountingUnreachable("slurmdbd: Connection refused", "sacct"), CommandTimedOut("sacct", 150)], ids=str
)
def test_accounting_that_does_not_answer_is_asked_again_after_a_pause(error: ClusterError) -> None:
    slurm = Slurm(2)
    for name in slurm.nodes:
        slurm.run(name)
    slurm.wait()
    answer, asked = slurm.answer, list[Any]()

    def at_first_without(request: Any) -> Any:
        if isinstance(request, Accounting):
            asked.append(request)
            if len(asked) < 3:
                raise error
        return answer(request)

    slurm.answer = at_first_without  # type: ignore[method-assign]
    for _ in range(4):
        slurm.shrink(1, None, NOW + 2 * HOUR)
        before = len(asked)
        slurm.shrink(1, None, NOW + 2 * HOUR)
        assert len(asked) == before
        notes = slurm.memory["training"]
        notes.asks_at = notes.asks_at and notes.asks_at - HOUR
    assert len(asked) == 3
    assert sum("only the queue tells" in line for line in slurm.log.said) == 1


def test_a_shift_goes_on_without_accounting_that_is_slow_or_says_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_session, "_PATIENCE", 0)

    async def never(request: Any) -> None:
        await asyncio.Event().wait()

    async def too_much(request: Any) -> None:
        raise OutputTooLarge("sacct", 64)

    for ask, is_asked_again in ((never, True), (too_much, False)):
        session = Slurm(2).session()
        session._client = cast(AsyncSlurmClient, SimpleNamespace(ask=ask))
        asyncio.run(session._history())
        assert bool(session._notes.asks_at) is is_asked_again


def test_ahead_nodes_are_reserved_if_nothing_is_known_of_the_jobs() -> None:
    slurm = Slurm(3)
    for name in slurm.nodes:
        slurm.run(name)
    slurm.wait()
    assert slurm.shrink(1, None, NOW + 2 * HOUR) == []
    assert slurm.handover() == ["worker-0", "worker-1"]


def test_of_late_nodes_the_first_to_fall_idle_goes() -> None:
    slurm = with_jobs_of_ten_minutes(3)
    assert slurm.shrink(2) == []
    assert slurm.handover() == ["worker-0", "worker-1", "worker-2"]
    slurm.finish(next(iter(slurm.on("worker-2"))))
    assert slurm.shrink(2) == ["worker-2"]
    assert slurm.handover() == []


def test_idle_nodes_that_are_told_now_take_no_place_among_those_that_are_kept_free() -> None:
    slurm = with_jobs_of_ten_minutes(4)
    for name in ("worker-2", "worker-3"):
        slurm.finish(next(iter(slurm.on(name))))
    assert slurm.shrink(1) == ["worker-2", "worker-3"]
    assert slurm.handover() == ["worker-0", "worker-1"]


def test_nodes_that_are_to_go_sooner_than_they_were_are_kept_free_from_then_on() -> None:
    slurm = Slurm(1)
    slurm.run("worker-0", 4 * HOUR)
    slurm.shrink(0, None, NOW + 2 * HOUR)
    assert [one.start for one in slurm.reservations.known.values()] == [NOW + 2 * HOUR]
    force(slurm, 0, grace=HOUR)
    [now] = slurm.reservations.known.values()
    assert now.start
    assert now.start < NOW + HOUR


def test_for_a_late_node_no_other_is_kept_from_small_jobs() -> None:
    slurm = with_jobs_of_ten_minutes(3)
    slurm.gpus_used = "gpu:1"
    assert slurm.shrink(2) == []
    assert len(slurm.handover()) == 1


def test_nodes_are_told_apart_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands, each compared with all others as a value takes seconds, in which no other trigger goes on."""
    slurm = Slurm(4)
    slurm.run("worker-0", HOUR)
    slurm.run("worker-1", HOUR)
    monkeypatch.setattr(NodeLoad, "__eq__", lambda *_: pytest.fail("two nodes are compared"))
    assert slurm.shrink(1) == ["worker-2", "worker-3"]
    assert slurm.handover() == ["worker-0"]


def test_where_only_idle_nodes_go_a_busy_one_is_neither_told_nor_reserved() -> None:
    slurm = Slurm(2)
    slurm.run("worker-0", HOUR)
    slurm.run("worker-1", HOUR)
    assert slurm.shrink(1, PowerDownMode.IDLE) == []
    assert not slurm.reservations.known
    slurm.finish(slurm.jobs[2])
    assert slurm.shrink(1, PowerDownMode.IDLE) == ["worker-1"]


@pytest.mark.parametrize("start", [NOW - HOUR, NOW + HOUR])
def test_what_others_have_reserved_is_not_touched(start: datetime) -> None:
    slurm = Slurm(2)
    slurm.reserve("teamA", "worker-0", start)
    slurm.reserve("next-month", "worker-1", NOW + timedelta(days=30))
    slurm.reserve("yesterday", "worker-1", NOW - 2 * HOUR, NOW - HOUR)
    assert slurm.shrink(0) == ["worker-1"]
    seen = asyncio.run(slurm.session().look())
    assert list(seen.stuck) == ["worker-0"]
    assert seen.stuck["worker-0"].startswith("is reserved as teamA")
    assert (seen.possible(0), seen.broken) == (1, 0)


def test_what_others_have_reserved_for_later_than_its_window_may_go() -> None:
    slurm = Slurm(1)
    slurm.reserve("teamA", "worker-0", NOW + 3 * HOUR)
    session = slurm.session(until=NOW + 2 * HOUR)
    assert not asyncio.run(session.look()).stuck


def test_what_others_have_drained_is_counted_apart() -> None:
    slurm = Slurm(4)
    slurm.nodes["worker-0"].drain = "disk"
    slurm.nodes["worker-1"].drain, slurm.nodes["worker-1"].power = "disk", "off"
    seen = asyncio.run(slurm.session().look())
    assert (seen.stuck, seen.away) == ({"worker-0": "is drained: disk"}, {"worker-1": "is drained: disk"})
    assert (seen.broken, seen.size, seen.possible(4), seen.possible(0)) == (1, 4, 3, 1)
    assert slurm.shrink(1) == ["worker-2", "worker-3"]
    assert "1 more cannot go: each of worker-[0-1] is drained: disk" in _problems(slurm, 0)


def test_nodes_that_are_gone_stay_away_and_are_no_mistake() -> None:
    slurm = Slurm(3)
    slurm.run("worker-0", HOUR)
    session = slurm.session(nodes="worker-[0-4]")
    asyncio.run(session.check(5, CapacityBlock(id="block-1", limit=64, usage=24)))
    seen = asyncio.run(session.look())
    assert seen.away == {"worker-3": "does not exist", "worker-4": "does not exist"}
    assert (seen.allowed, seen.ready, seen.size, seen.possible(5), seen.possible(1)) == (3, 3, 5, 3, 1)
    asyncio.run(session.shrink(1, Release(leaves_at=NOW, mode=ASAP)))
    assert [one.names for one in slurm.asked if isinstance(one, PowerDown)] == [("worker-1", "worker-2")]


def test_the_lease_is_kept_with_a_node_that_exists() -> None:
    slurm = Slurm(3)
    store, now = slurm.session(nodes="gpu-[0-4],worker-[1-2]").lease(), CLOCK.now()
    lease = asyncio.run(store.write(ShiftRecord(key="shift", task="t"), now, TERM, None))
    assert lease is not None
    assert lease.is_mine
    assert [one.nodelist for one in slurm.reservations.known.values()] == ["worker-1"]


def test_if_none_of_its_nodes_exists_it_is_a_mistake() -> None:
    session = Slurm(3).session(nodes="gpu-[0-4]")
    with pytest.raises(CapacityMistake, match=r"there is no node gpu-\[0-4\]"):
        asyncio.run(session.check(1, CapacityBlock(id="block-1", limit=64, usage=24)))


def test_idle_nodes_that_are_reserved_for_the_shift_are_told_apart() -> None:
    slurm = Slurm(4)
    slurm.run("worker-0", HOUR)
    slurm.reserve("teamA", "worker-3", NOW)
    slurm.shrink(1, None, NOW + 2 * HOUR)
    assert slurm.handover() == ["worker-3", "worker-0", "worker-1", "worker-2"]
    assert asyncio.run(slurm.session().look()).idle == 2


def test_what_is_known_of_its_machines() -> None:
    slurm = FixedNodes([IDLE, IDLE, OFF, IDLE])
    known = {"worker-0": "computeinstance-0", "worker-3": "computeinstance-3"}
    slurm.nodes = tuple(replace(node, instance=known.get(node.name, "")) for node in slurm.nodes)
    clues = asyncio.run(slurm.session("worker-[0-1]").machines())
    assert (clues.machines, clues.neighbours) == ({"computeinstance-0"}, ("computeinstance-3",))
    assert (clues.nodesets, clues.count, clues.are_units) == ({"worker"}, 2, True)
    assert asyncio.run(slurm.session("worker-2").machines()).count == 0


def _problems(slurm: Slurm, to: int) -> tuple[str, ...]:
    session = slurm.session()
    asyncio.run(session.shrink(to, Release(leaves_at=NOW, mode=ASAP)))
    return asyncio.run(session.look()).problems


def test_only_approved_nodes_go_and_only_approved_jobs_are_ended() -> None:
    slurm = Slurm(3)
    slurm.run("worker-1", HOUR)
    session = slurm.session(may_take=frozenset({"worker-1", "worker-2"}), may_end=frozenset({"8"}))
    force = Release(leaves_at=NOW, mode=PowerDownMode.FORCE, ends_jobs=True)
    asyncio.run(session.shrink(0, force))
    assert [one.names for one in slurm.asked if isinstance(one, PowerDown)] == [("worker-2",)]
    assert slurm.jobs[1].node == "worker-1"
    assert list(asyncio.run(session.look()).stuck) == ["worker-0"]


def test_a_plan_has_the_nodes_that_go_and_their_jobs() -> None:
    slurm = Slurm(3)
    slurm.run("worker-0", HOUR, may_requeue=False)
    slurm.run("worker-1", 2 * HOUR)
    session, now = slurm.session(), {"leaves_at": NOW, "mode": ASAP}
    goes = asyncio.run(session.explain(1, Release(**now, ends_jobs=True)))
    assert (list(goes), goes["worker-2"]) == (["worker-2", "worker-1"], "idle")
    assert asyncio.run(session.jobs(goes)) == ("2",)
    assert list(asyncio.run(session.explain(1, Release(**now)))) == ["worker-2", "worker-0"]
    assert slurm.asked == []


def test_a_target_that_gives_none_after_all_leaves_what_is_reserved_of_another_for_later_as_it_is() -> None:
    slurm, later = Slurm(4), NOW + HOUR
    one, other = slurm.session(nodes="worker-[0-1]"), slurm.session(nodes="worker-[2-3]")
    for session in (one, other):
        asyncio.run(session.shrink(1, Release(leaves_at=later, mode=None)))
    assert slurm.handover() == ["worker-0", "worker-2"]
    asyncio.run(other.look())
    asyncio.run(other.relax())
    (reserved,) = slurm.reservations.known.values()
    assert (reserved.nodelist, reserved.start) == ("worker-0", later)
    asyncio.run(other.finish())
    assert slurm.reserved == ["worker-0"]
    asyncio.run(one.finish())
    assert slurm.reserved == []


def test_a_node_that_was_told_to_go_as_the_shift_ended_is_kept_off() -> None:
    slurm = Slurm(3)
    slurm.shrink(0)
    # It begins on one of them at this moment.
    slurm.run("worker-1", HOUR)
    assert asyncio.run(slurm.session().finish()) is False, "it is called again"
    slurm.advance()
    assert slurm.nodes["worker-0"].power == "going"
    assert slurm.reserved == ["worker-0", "worker-1", "worker-2"], "no job may have it before it is drained again"
    assert asyncio.run(slurm.session().finish()) is True, "none is waited for that has a job"
    assert slurm.reserved == []
    drained = {node.name: (node.power, node.drain) for node in slurm.nodes.values()}
    ours = "airflow:capacity/block-1"
    assert drained == {"worker-0": ("going", ours), "worker-1": ("on", ours), "worker-2": ("going", ours)}


def test_a_node_that_has_gone_off_before_the_shift_could_look_again_is_kept_off() -> None:
    slurm = Slurm(2)
    slurm.power_down_time = timedelta()
    (gone,) = slurm.shrink(1)
    slurm.advance()
    assert (slurm.nodes[gone].power, slurm.nodes[gone].drain) == ("off", "")
    assert asyncio.run(slurm.session().finish()) is True
    assert slurm.nodes[gone].drain == "airflow:capacity/block-1"


@pytest.mark.parametrize("has_accounting", [True, False])
def test_a_node_that_may_come_for_jobs_again_is_no_longer_ours(has_accounting: bool) -> None:
    slurm = Slurm(1)
    slurm.has_accounting = has_accounting
    slurm.power_down_time = timedelta()
    slurm.shrink(0)
    slurm.advance()
    asyncio.run(slurm.session().finish())
    session = slurm.session()
    asyncio.run(session.allow(1))
    assert asyncio.run(session.look()).leaving == 0
    assert asyncio.run(session.finish()) is True
    assert slurm.nodes["worker-0"].drain == ""


def test_a_node_that_others_have_undrained_since_is_theirs() -> None:
    slurm = Slurm(1)
    slurm.power_down_time = timedelta()
    slurm.shrink(0)
    slurm.advance()
    asyncio.run(slurm.session().finish())
    slurm.answer(Undrain(("worker-0",)))
    assert asyncio.run(slurm.session().finish()) is True
    assert slurm.nodes["worker-0"].drain == ""


def test_a_node_that_powers_down_much_later_than_it_was_told_is_not_waited_for() -> None:
    slurm = Slurm(1)
    slurm.shrink(0)
    slurm.nodes["worker-0"].drained_at -= HOUR
    assert asyncio.run(slurm.session().finish()) is True


def test_a_range_keeps_no_node_that_was_told_to_go() -> None:
    slurm, block = Slurm(3), CapacityBlock(id="block-1", limit=24, usage=24)
    slurm.shrink(1)
    for _ in range(2):
        world = World(block, {"training": asyncio.run(slurm.session().look())}, {"training": 8})
        assert goal_in(world, {"training": {"min": 0, "max": 3}}, None) == {"training": 1}
        slurm.advance()


# Jobs that are ended


def force(slurm: Slurm, to: int, grace: timedelta = timedelta(0)) -> list[str]:
    return slurm.shrink(to, PowerDownMode.FORCE, signal="USR1", grace=grace, ends_jobs=True)


def test_jobs_are_requeued_by_name_and_then_their_nodes_go() -> None:
    slurm = Slurm(2)
    job = slurm.run("worker-0", HOUR)
    other = slurm.run("worker-1", HOUR, may_requeue=False)
    assert force(slurm, 0) == []
    assert (job.restarts, job.signals, job.end) == (1, ["USR1"], "")
    assert (other.restarts, other.end) == (0, "CANCELLED")
    assert force(slurm, 0) == ["worker-0", "worker-1"]
    assert (job.restarts, job.signals) == (1, ["USR1"])


def test_what_slurm_does_not_requeue_is_cancelled() -> None:
    slurm = Slurm(1)
    job = slurm.run("worker-0", HOUR, has_script=False)
    force(slurm, 0)
    assert job.end == "CANCELLED"


@pytest.mark.parametrize("state", ["COMPLETED+COMPLETING", "COMPLETING"])
def test_a_job_that_completes_beside_one_that_is_ended_does_not_run_again(state: str) -> None:
    slurm = Slurm(1)
    done, runs = slurm.run("worker-0", HOUR), slurm.run("worker-0", HOUR)
    answer = slurm.answer

    def completing(request: Any) -> Any:
        found = answer(request)
        if isinstance(request, ListJobs):
            return [replace(found[0], state=JobState.parse(state)), found[1]]
        return found

    slurm.answer = completing  # type: ignore[method-assign]
    force(slurm, 0)
    assert (done.restarts, done.signals, runs.restarts, runs.signals) == (0, [], 1, ["USR1"])


def test_what_others_have_requeued_is_not_cancelled_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(1)
    job = slurm.run("worker-0", HOUR)

    def end(request: Any) -> None:
        assert isinstance(request, RequeueJobs) or request.signal
        if isinstance(request, RequeueJobs):
            raise InvalidStateTransition("Job is pending execution")

    monkeypatch.setattr(slurm, "_end", end)
    force(slurm, 0)
    assert job.end == ""


def test_jobs_get_their_grace_also_over_a_new_connection() -> None:
    slurm = Slurm(1)
    job = slurm.run("worker-0", HOUR)
    for _ in range(2):
        assert force(slurm, 0, grace=HOUR) == []
    assert (job.signals, job.restarts) == (["USR1"], 0)
    slurm.memory["training"].jobs.warned[JobId(1)] -= HOUR
    force(slurm, 0, grace=HOUR)
    assert (job.signals, job.restarts) == (["USR1"], 1)


def test_a_signal_that_is_slow_to_send_takes_none_of_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, now = Slurm(1), NOW
    monkeypatch.setattr(jobs_in_the_way, "datetime", SimpleNamespace(now=lambda _: now))
    job, answer = slurm.run("worker-0", HOUR), slurm.answer

    def answer_late(request: Any) -> Any:
        nonlocal now
        now += MINUTE if isinstance(request, CancelJobs) else timedelta(0)
        return answer(request)

    monkeypatch.setattr(slurm, "answer", answer_late)
    for _ in range(2):
        force(slurm, 0, grace=MINUTE)
        assert (job.signals, job.restarts) == (["USR1"], 0)
    now += MINUTE
    force(slurm, 0, grace=MINUTE)
    assert job.restarts == 1


def test_a_job_that_was_requeued_to_another_node_that_goes_gets_its_signal_and_grace_again() -> None:
    slurm = Slurm(2)
    slurm.nodes["worker-1"].drain = "new driver"
    job = slurm.run("worker-0", HOUR)
    force(slurm, 0)
    slurm.nodes["worker-1"].drain = ""
    slurm.start(job, "worker-1")
    assert force(slurm, 0, grace=HOUR) == ["worker-0"]
    assert (job.signals, job.restarts) == (["USR1", "USR1"], 1)


def test_no_job_is_ended_beside_one_that_has_begun_since_the_plan_was_approved() -> None:
    slurm = Slurm(1)
    job, other = slurm.run("worker-0", 2 * HOUR), slurm.run("worker-0", HOUR)

    def shrink() -> tuple[int, int, str]:
        now = Release(leaves_at=NOW, mode=PowerDownMode.FORCE, ends_jobs=True, signals_at=NOW)
        asyncio.run(slurm.session(may_end=frozenset({"1"})).shrink(0, now))
        return job.restarts, other.restarts, job.admin_comment[:8]

    assert shrink() == (0, 0, ""), "its node would not go"
    slurm.finish(other)
    assert shrink() == (1, 0, "airflow:")


def test_no_job_is_ended_while_an_idle_node_can_go_in_place_of_a_told_one() -> None:
    slurm = Slurm(2)
    job = slurm.run("worker-0", HOUR)
    slurm.answer(PowerDown(("worker-0",), ASAP, OURS))
    assert force(slurm, 1) == ["worker-1"]
    assert (job.restarts, job.signals) == (0, [])


# What comes


def test_another_comes_for_a_node_that_does_not_boot_and_without_one_it_is_missing() -> None:
    slurm = Slurm(3)
    for name in ("worker-1", "worker-2"):
        slurm.nodes[name] = SlurmNode(name, power="off", has_machine=False, drain=OURS)
    assert slurm.grow(2) == ["worker-1"]
    broken = slurm.nodes["worker-1"]
    broken.power, broken.is_down, broken.down_since = "off", True, slurm.now()
    # Up to Soperator 4.1 its Pod keeps its machine: no other node has it before this one has been powered down.
    assert slurm.grow(2) == []
    assert broken.power == "going"
    assert slurm.grow(2) == []
    assert broken.drain == "airflow:capacity/block-1"
    broken.power, broken.is_down = "off", False
    assert slurm.grow(2) == ["worker-2"]
    session = slurm.session()
    asyncio.run(session.grow(3))
    assert asyncio.run(session.look()).problems == ("worker-1: ResumeTimeout reached",)
    assert (broken.power, slurm.nodes["worker-2"].power) == ("off", "coming")
