"""Never two processes have a block at once, whoever comes when, and dies where; and a lease ends by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import starmap
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from airflow_provider_soperator.capacity.holdings import Holding, World
from airflow_provider_soperator.capacity.lease import JointLease, LeaseLost, ShiftDisplaced, beside
from airflow_provider_soperator.capacity.lease_store import TERM, LeaseStore, ShiftRecord, StoredLease
from airflow_provider_soperator.capacity.order import ShiftOrder
from airflow_provider_soperator.capacity.reservations import handover_name
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget, Target
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.requests import CreateReservation
from tests.unit.capacity.lease_places import BLOCK, PLACES, KubernetesPlace, Place, SlurmPlace
from tests.unit.capacity.world import START, Log

KEYS = ("monday", "tuesday", "wednesday")
HERE, STAGING = "0a1b2c", "ffffff"
MINUTE = timedelta(minutes=1)
#: Questions to the place. None takes as many as the most.
steps = st.sampled_from([1, 2, 3, 9])


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """All of it, with nobody in between."""
    while True:
        try:
            work.send(None)
        except StopIteration as done:
            return done.value


def in_step(*works: Coroutine[Any, Any, Any]) -> list[Any]:
    """All of them, each one question at a time."""
    answers: dict[int, Any] = {}
    while len(answers) < len(works):
        for number, work in enumerate(works):
            if number not in answers:
                try:
                    work.send(None)
                except StopIteration as done:
                    answers[number] = done.value
    return [answers[number] for number in range(len(works))]


def target(name: str, place: str) -> Target:
    conn_id, _, nodes = place.partition("/")
    if nodes:
        return SlurmNodesTarget(name=name, nodes=nodes, slurm_conn_id=conn_id)
    return NebiusNodeGroupTarget(name=name, node_group=place)


class Process:
    """A process that drives the shift of a key, with a clock of its own."""

    def __init__(
        self,
        key: str,
        *stores: LeaseStore,
        airflow: str = HERE,
        ahead: timedelta = timedelta(0),
        poll_interval: float = 10,
        **targets: str,
    ) -> None:
        self.key, self.ahead, self.log = key, ahead, Log()
        self.forgotten: list[str] = []
        self.asked: list[str] = []
        self.dead: set[str] = set()
        order = ShiftOrder(
            key=key,
            task=f"shifts_{key}/scheduled/shift/-1",
            airflow=airflow,
            block=BLOCK,
            nebius_conn_id="nebius_default",
            targets=tuple(starmap(target, targets.items() or [("training", "slurm/worker-[0-7]")])),
            desired={},
            wanted_at=START,
            poll_interval=poll_interval,
        )
        self.lease = JointLease(order, self.log)
        self.lease.use(stores)

    async def _is_alive(self, record: ShiftRecord) -> bool:
        self.asked.append(record.key)
        return record.key not in self.dead

    async def _forget(self, key: str) -> None:
        self.forgotten.append(key)

    def taking(self, now: datetime) -> Coroutine[Any, Any, StoredLease | None]:
        return self.lease.take(now + self.ahead, self._is_alive, self._forget)

    def take(self, now: datetime = START) -> StoredLease | None:
        found: StoredLease | None = at_once(self.taking(now))
        return found

    def has_taken(self, now: datetime = START) -> bool:
        return self.take(now) is None

    def renew(self, now: datetime = START) -> None:
        at_once(self.lease.renew(now + self.ahead))


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    made: Place = request.param()
    return made


class Shifts(RuleBasedStateMachine):
    """Processes that take the block and give it back, one question to its place at a time, and may die before any."""

    place: Place
    #: Two processes of one shift never live at the same time.
    one_at_a_time = False

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        #: What each is at, and since when.
        self.work: dict[Process, tuple[str, datetime, Coroutine[Any, Any, Any]]] = {}
        #: Those who have taken the block, and have not lost it as far as they know.
        self.believers: list[Process] = []
        self.owner: Process | None = None
        self.renewed = START

    @rule(data=st.data(), steps=steps)
    def come(self, data: st.DataObject, steps: int) -> None:
        key = data.draw(st.sampled_from(KEYS))
        if self.one_at_a_time and any(one.key == key for one in (*self.work, *self.believers)):
            return
        process = Process(key, self.place.lease(key))
        self.work[process] = ("take", self.now, process.taking(self.now))
        self._step(process, steps)

    @rule(minutes=st.sampled_from([1, 3, 6, 90]))
    def wait(self, minutes: int) -> None:
        self.now += minutes * MINUTE

    @precondition(lambda self: self.believers)
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """A round of a shift: it begins with a look at the lease."""
        process = data.draw(st.sampled_from(self.believers))
        try:
            process.renew(self.now)
            at_once(process.lease.mark(f"{self.now:%H:%M}", self.now))
        except LeaseLost:
            self.believers.remove(process)
        else:
            assert process is self.owner, f"{process.key} acts, and has lost the block"
            self.renewed = self.now

    @precondition(lambda self: self.believers)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.believers))
        self.believers.remove(process)
        if process is self.owner:
            self.owner = None
        self.work[process] = ("free", self.now, process.lease.give_back())

    @precondition(lambda self: self.work)
    @rule(data=st.data(), steps=steps)
    def go_on(self, data: st.DataObject, steps: int) -> None:
        self._step(data.draw(st.sampled_from(list(self.work))), steps)

    @precondition(lambda self: self.work)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(list(self.work)))
        self.work.pop(process)[2].close()

    def _step(self, process: Process, steps: int) -> None:
        what, since, work = self.work[process]
        for _ in range(steps):
            try:
                work.send(None)
            except StopIteration as done:
                del self.work[process]
                if what == "take" and done.value is None:
                    self._has_taken(process, since)
                break
        self._look()

    def _look(self) -> None:
        """Whoever takes the block may die once the former lease is deleted, but none is deleted too early."""
        if self.owner and self.owner.key not in self.place.shifts:
            assert self.now - self.renewed >= TERM, f"the lease of {self.owner.key} is gone, which renews it"
            self.owner = None

    def _has_taken(self, process: Process, since: datetime) -> None:
        former = self.owner
        if former and former.key != process.key:
            assert self.now - self.renewed >= TERM, f"{process.key} has taken over {former.key}, which renews its lease"
        if former and former.key == process.key:
            assert {*former.lease.record.marks} <= {*process.lease.record.marks}
        self.owner, self.renewed = process, since
        self.believers.append(process)

    def teardown(self) -> None:
        for _, _, work in self.work.values():
            work.close()
        # Once all are gone, the block can be had again.
        late = Process("sunday", self.place.lease("sunday"))
        late.take(self.now)
        assert late.has_taken(self.now + TERM)
        at_once(late.lease.give_back())
        for key in KEYS:
            at_once(Process(key, self.place.lease(key)).lease.give_back())
        assert self.place.held == 0


class InKubernetes(Shifts):
    def __init__(self) -> None:
        super().__init__()
        self.place = KubernetesPlace()


class InSlurm(Shifts):
    #: Slurm has no conditional change.
    one_at_a_time = True

    def __init__(self) -> None:
        super().__init__()
        self.place = SlurmPlace()


InKubernetes.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
InSlurm.TestCase.settings = InKubernetes.TestCase.settings
TestShiftsInKubernetes = InKubernetes.TestCase
TestShiftsInSlurm = InSlurm.TestCase


# Who gets it


def test_of_two_who_come_at_one_moment_one_has_it_soon(place: Place) -> None:
    one, other = (Process(key, place.lease(key)) for key in KEYS[:2])
    first = in_step(one.taking(START), other.taking(START))
    assert first.count(None) <= 1
    # At the latest when both look again, again at one moment.
    second = first if None in first else in_step(one.taking(START), other.taking(START))
    assert second.count(None) == 1
    late = (one, other)[second.index(None) - 1]
    assert not late.has_taken()


def test_two_who_have_a_slurm_each_do_not_swap_them_for_ever() -> None:
    slurms = [SlurmPlace(), SlurmPlace()]
    one, other = (Process(key, *(slurm.lease(key) for slurm in slurms)) for key in KEYS[:2])
    for _ in range(10):
        answers = in_step(one.taking(START), other.taking(START))
        assert answers.count(None) <= 1
        if None in answers:
            return
    raise AssertionError("both have withdrawn ten times")


def test_whoever_waits_is_told_for_whom(place: Place) -> None:
    Process("monday", place.lease("monday")).take()
    late = Process("tuesday", place.lease("tuesday"))
    holder = late.take()
    assert holder is not None
    assert str(holder).startswith("task shifts_monday/scheduled/shift/-1 (")
    assert "its lease ends 5 minutes after its last renewal, which was at 21 Nov 20:00:00 UTC" in holder.how_to_end
    assert f"`{holder.remedy}` ends it now" in holder.how_to_end
    late.lease.tell(holder)
    late.lease.tell(holder)
    assert len(late.log.said) == 1
    # Waiting leaves nothing behind.
    assert place.held == 1


def test_blocks_do_not_get_in_each_others_way(place: Place) -> None:
    assert Process("monday", place.lease("monday", "capacityblockgroup-1")).has_taken()
    assert Process("monday", place.lease("monday", "capacityblockgroup-2")).has_taken()
    assert Process("tuesday", place.lease("tuesday", "capacityblockgroup-3")).has_taken()


def test_a_lease_that_is_given_back_is_anybodys_at_once(place: Place) -> None:
    first = Process("monday", place.lease("monday"))
    first.take()
    at_once(first.lease.mark("released", START))
    at_once(first.lease.give_back())
    assert place.held == 0
    assert Process("tuesday", place.lease("tuesday")).has_taken()


def test_a_shift_that_was_over_begins_afresh(place: Place) -> None:
    first = Process("monday", place.lease("monday"))
    first.take()
    at_once(first.lease.keep(replace(first.lease.record, undone="inference is not ready")))
    at_once(first.lease.give_back())
    again = Process("monday", place.lease("monday"))
    assert again.has_taken()
    assert again.lease.record.undone == ""


def test_a_later_try_continues_with_the_record(place: Place) -> None:
    first = Process("monday", place.lease("monday"))
    first.take()
    at_once(first.lease.mark("released", START))
    second = Process("monday", place.lease("monday"))
    assert second.has_taken()
    assert second.lease.record.marks == {"released": START.timestamp()}


def test_a_later_try_whose_targets_have_other_names_begins_afresh(place: Place) -> None:
    block = CapacityBlock(id=BLOCK, limit=64, usage=0)
    for name in ("training", "research"):
        one = Process("monday", place.lease("monday"), **{name: "slurm/worker-[0-7]"})
        assert one.has_taken()
        at_once(one.lease.begin(World(block, {name: Holding(allowed=4, held=0, ready=0)}, {name: 8}), START))
        assert one.lease.record.before == {name: 4}


# Its end


def test_a_lease_that_is_renewed_holds_for_days(place: Place) -> None:
    holder, waiting = (Process(key, place.lease(key)) for key in KEYS[:2])
    holder.take()
    for minute in range(0, 3 * 24 * 60, 2):
        holder.renew(START + minute * MINUTE)
        assert not waiting.has_taken(START + minute * MINUTE)


def test_a_lease_that_is_not_renewed_is_taken_over_after_its_term(place: Place) -> None:
    holder, waiting = (Process(key, place.lease(key)) for key in KEYS[:2])
    holder.take()
    assert not waiting.has_taken(START + MINUTE)
    assert not waiting.has_taken(START + 5 * MINUTE)
    assert waiting.has_taken(START + 6 * MINUTE)
    assert waiting.forgotten == ["monday"]
    assert "has not renewed its lease since 21 Nov 20:00:00 UTC" in waiting.log.said[0]
    with pytest.raises(LeaseLost, match=r"was taken over by task shifts_tuesday/scheduled/shift/-1"):
        holder.renew(START + 7 * MINUTE)


@pytest.mark.parametrize("ahead", [-40, 40])
def test_clocks_may_differ(place: Place, ahead: int) -> None:
    holder = Process("monday", place.lease("monday"), ahead=ahead * MINUTE)
    waiting = Process("tuesday", place.lease("tuesday"))
    holder.take()
    for minute in range(0, 60, 2):
        holder.renew(START + minute * MINUTE)
        assert not waiting.has_taken(START + minute * MINUTE)
    assert waiting.has_taken(START + 64 * MINUTE)


def test_a_clock_that_is_set_back_keeps_no_shift_from_its_renewals(place: Place) -> None:
    holder, rival = (Process(key, place.lease(key)) for key in KEYS[:2])
    assert holder.has_taken()
    assert rival.take() is not None
    holder.renew(START - 30 * MINUTE)
    assert not rival.has_taken(START + 6 * MINUTE)


@pytest.mark.parametrize("questions", range(1, 6))
def test_who_renews_too_late_does_not_take_it_back_from_who_takes_it(questions: int) -> None:
    """As Slurm has no conditional change, the one who takes it asks first, and the one who renews looks again."""
    place, now = SlurmPlace(), START + 61 * MINUTE
    late, heir = Process("monday", place.lease("monday")), Process("tuesday", place.lease("tuesday"))
    late.take()
    taking = heir.taking(now)
    for _ in range(questions):
        taking.send(None)
    with suppress(LeaseLost):
        late.renew(now)
    has_taken = at_once(taking) is None
    with nullcontext() if not has_taken else pytest.raises(LeaseLost):
        late.renew(now)


def test_whoever_has_not_watched_a_lease_takes_over_an_old_one(place: Place) -> None:
    Process("monday", place.lease("monday")).take()
    assert not Process("tuesday", place.lease("tuesday")).has_taken(START + 50 * MINUTE)
    assert Process("tuesday", place.lease("tuesday")).has_taken(START + 61 * MINUTE)


def test_however_many_died_while_they_asked_the_block_is_free_after_one_term() -> None:
    """The holder ends; two ask for the block, and end before they know if they have it."""
    place = SlurmPlace()
    Process("sunday", place.lease("sunday")).take()
    asking = [Process(key, place.lease(key)).taking(START + 61 * MINUTE) for key in KEYS[:2]]
    for _ in range(3):
        for one in asking:
            one.send(None)
    for one in asking:
        one.close()
    heir = Process("wednesday", place.lease("wednesday"))
    assert not heir.has_taken(START + 61 * MINUTE)
    assert heir.has_taken(START + 66 * MINUTE)
    assert place.held == 1


def test_a_block_is_anothers_once_that_has_begun(place: Place) -> None:
    """Who only asks for it may have died, and would keep a shift from cleaning up."""
    mine, other = (Process(key, place.lease(key)) for key in ("monday", "tuesday"))
    assert not at_once(mine.lease.is_anothers())
    other.take()
    assert not at_once(mine.lease.is_anothers())
    at_once(other.lease.mark("began", START))
    assert at_once(mine.lease.is_anothers())
    assert not at_once(other.lease.is_anothers())


def test_a_shift_that_comes_back_late_keeps_its_record_though_another_died_while_it_asked() -> None:
    place = SlurmPlace()
    first = Process("monday", place.lease("monday"))
    first.take()
    at_once(first.lease.mark("released", START))
    asking = Process("tuesday", place.lease("tuesday")).taking(START + 61 * MINUTE)
    for _ in range(3):
        asking.send(None)
    asking.close()
    again = Process("monday", place.lease("monday"))
    assert not again.has_taken(START + 62 * MINUTE)
    assert again.has_taken(START + 63 * MINUTE)
    assert set(again.lease.record.marks) == {"released"}


def test_a_lease_lasts_as_long_as_a_rare_poll_needs(place: Place) -> None:
    rare = Process("monday", place.lease("monday"), poll_interval=600)
    waiting = Process("tuesday", place.lease("tuesday"))
    rare.take()
    assert not waiting.has_taken()
    assert not waiting.has_taken(START + 29 * MINUTE)
    assert waiting.has_taken(START + 30 * MINUTE)


def test_a_renewal_does_not_undo_what_is_written_meanwhile() -> None:
    """A shift renews its lease while a step of it may be writing."""
    slurms = [SlurmPlace() for _ in range(3)]
    mine = Process("monday", *(slurm.lease("monday") for slurm in slurms))
    mine.take()

    async def at_a_time() -> None:
        await asyncio.gather(mine.lease.mark("began", START), mine.lease.renew(START + 2 * MINUTE))

    asyncio.run(at_a_time())
    for slurm in slurms:
        assert at_once(slurm.lease("monday").read()).record == mine.lease.record


def test_a_shift_that_this_airflow_knows_to_have_ended_is_taken_over_at_once(place: Place) -> None:
    Process("monday", place.lease("monday")).take()
    waiting = Process("tuesday", place.lease("tuesday"))
    assert not waiting.has_taken()
    waiting.dead = {"monday"}
    assert waiting.has_taken()
    assert "has ended without releasing it" in waiting.log.said[0]


def test_a_shift_of_another_airflow_is_not_asked_for_here(place: Place) -> None:
    Process("monday", place.lease("monday"), airflow=STAGING).take()
    waiting = Process("tuesday", place.lease("tuesday"))
    waiting.dead = {"monday"}
    holder = waiting.take()
    assert str(holder).startswith("task shifts_monday/scheduled/shift/-1 (")
    assert waiting.asked == []
    # Its Airflow is gone.
    assert waiting.has_taken(START + 5 * MINUTE)


def test_whoever_has_lost_the_block_is_told_so(place: Place) -> None:
    mine = Process("monday", place.lease("monday"))
    mine.take()
    mine.renew()
    at_once(Process("monday", place.lease("monday")).lease.give_back())
    for lost in (lambda: mine.renew(), lambda: at_once(mine.lease.mark("leaving", START))):
        with pytest.raises(LeaseLost, match="the lease of this shift, was deleted"):
            lost()


def test_two_processes_never_drive_one_shift(place: Place) -> None:
    """As of a triggerer that comes back from the dead, or of a copy of an Airflow with its database."""
    first, second = (Process("monday", place.lease("monday")) for _ in range(2))
    first.take()
    # That one goes on at once: it may be the next try.
    assert second.has_taken()
    with pytest.raises(ShiftDisplaced, match="another process goes on with this shift"):
        first.renew()
    first.lease.step_aside()
    assert not first.has_taken()
    second.renew()
    # Its end is nothing to the other one.
    at_once(first.lease.give_back())
    assert not first.has_taken()
    at_once(second.lease.give_back())
    assert first.has_taken()


def test_an_answer_that_is_lost_is_no_conflict() -> None:
    place = KubernetesPlace()
    mine = Process("monday", place.lease("monday"))
    mine.take()
    before = mine.lease._has.copy()
    at_once(mine.lease.mark("leaving", START))
    # As if it had never heard of that.
    mine.lease._has.update(before)
    at_once(mine.lease.mark("released", START))
    mine.renew()
    assert set(mine.lease.record.marks) == {"leaving", "released"}


def test_a_shift_keeps_its_lease_over_a_new_connection(place: Place) -> None:
    holder, waiting = Process("monday", place.lease("monday")), Process("tuesday", place.lease("tuesday"))
    holder.take()
    holder.lease.use([place.lease("monday")])
    holder.renew(START + MINUTE)
    assert not waiting.has_taken(START + MINUTE)
    # What was seen over the last one counts.
    waiting.lease.use([place.lease("tuesday")])
    assert not waiting.has_taken(START + 5 * MINUTE)
    assert waiting.has_taken(START + 6 * MINUTE)


def test_a_shift_knows_its_lease_by_its_record_whatever_a_version_before_has_called_it() -> None:
    place = SlurmPlace()
    Process("monday", place.lease("monday")).take()
    (name,) = place.slurm.known
    former = name.rpartition("-")[0].rpartition("-")[0] + "-of-a-version-before"
    place.slurm.known = {former: replace(place.slurm.known[name], name=former)}
    assert not Process("tuesday", place.lease("tuesday")).has_taken(START + MINUTE)
    assert Process("monday", place.lease("monday")).has_taken(START + MINUTE)
    assert former not in place.slurm.known


def test_where_comments_cannot_be_seen_it_is_known_all_the_same_who_has_it() -> None:
    """As over slurmrestd."""
    place = SlurmPlace()

    def blind() -> None:
        place.slurm.known = {name: replace(one, comment="") for name, one in place.slurm.known.items()}

    holder, waiting = (Process(key, place.lease(key)) for key in KEYS[:2])
    assert holder.has_taken()
    blind()
    assert str(waiting.take()).startswith("a task that this connection cannot identify")
    holder.renew(START + 4 * MINUTE)
    blind()
    handover = handover_name(BLOCK, KEYS[0])
    until = START + 48 * 60 * MINUTE
    asked = CreateReservation(name=handover, nodes=("worker-1",), users=("root",), start=START, end=until)
    at_once(place.ask(asked))
    assert not waiting.has_taken(START + 5 * MINUTE)
    assert handover in place.slurm.known
    assert waiting.has_taken(START + 10 * MINUTE)
    # It would keep jobs off those nodes for two days.
    assert handover not in place.slurm.known


# Claims


def world(usage: int, **holdings: tuple[int, int]) -> World:
    """A block of 64, and what each target may have and has."""
    seen = {name: Holding(allowed=allowed, held=held, ready=held) for name, (allowed, held) in holdings.items()}
    return World(CapacityBlock(id="b", limit=64, usage=usage), seen, dict.fromkeys(seen, 8))


def claiming(place: Place, now: datetime = START) -> Process:
    """A shift of another cluster that is about to take 16 GPUs, and ends in the midst of that."""
    mine = Process("monday", place.lease("monday"), near="slurm-a/worker-[0-7]")
    mine.take(now)
    at_once(mine.lease.claim(world(32, near=(4, 4)), {"near": 6}))
    at_once(mine.lease.give_back())
    return mine


def test_what_is_claimed_is_taken_for_others_until_it_is_there() -> None:
    place = KubernetesPlace()
    claiming(place)
    later = START + MINUTE
    mine = Process("tuesday", place.lease("tuesday"), far="slurm-b/worker-[0-7]")
    assert mine.has_taken(later)
    before = world(48, far=(2, 2))
    at_once(mine.lease.begin(before, later))
    assert mine.lease.counted(before).block.free == 0
    # One of the two nodes is there.
    assert mine.lease.counted(world(56, far=(2, 2))).block.free == 0
    # Both are; and then the own ones.
    assert mine.lease.counted(world(64, far=(2, 2))).block.free == 0
    mine.renew(later + timedelta(hours=1))
    assert mine.lease.counted(world(48, far=(2, 2))).block.free == 16


def test_what_the_shift_sees_itself_is_no_claim_of_others() -> None:
    place = KubernetesPlace()
    claiming(place)
    same = Process("tuesday", place.lease("tuesday"), training="slurm-a/worker-[0-7]")
    assert same.has_taken(START + MINUTE)
    assert same.lease.counted(world(48, training=(6, 4))).block.free == 16


def test_what_another_airflow_names_alike_may_be_another_cluster() -> None:
    place = KubernetesPlace()
    claiming(place)
    staging = Process("tuesday", place.lease("tuesday"), airflow=STAGING, near="slurm-a/worker-[0-7]")
    assert staging.has_taken(START + MINUTE)
    assert staging.lease.counted(world(48, near=(0, 0))).block.free == 0
    at_once(staging.lease.claim(world(32, near=(4, 4)), {"near": 5}))
    assert sum(staging.lease.record.owed(START + MINUTE).values()) == 24


def test_a_node_group_is_the_same_for_each_airflow() -> None:
    place = KubernetesPlace()
    here, staging = (
        Process(key, place.lease(key), airflow=airflow, near="mk8snodegroup-a")
        for key, airflow in (("monday", HERE), ("tuesday", STAGING))
    )
    here.take()
    at_once(here.lease.claim(world(32, near=(4, 4)), {"near": 6}))
    at_once(here.lease.give_back())
    assert staging.has_taken(START + MINUTE)
    assert staging.lease.counted(world(48, near=(6, 4))).block.free == 16


def test_claims_outlive_a_shift_in_between() -> None:
    place = KubernetesPlace()
    claiming(place)
    between = Process("tuesday", place.lease("tuesday"), far="slurm-b/worker-[0-7]")
    between.take(START + MINUTE)
    at_once(between.lease.give_back())
    last = Process("wednesday", place.lease("wednesday"), third="mk8snodegroup-c")
    last.take(START + 2 * MINUTE)
    assert last.lease.counted(world(48, third=(0, 0))).block.free == 0
    last.renew(START + 50 * MINUTE)
    assert last.lease.counted(world(48, third=(0, 0))).block.free == 16


def test_who_is_no_shift_counts_claims_too() -> None:
    place = KubernetesPlace()
    claiming(place)
    seen = at_once(place.lease("").read())
    block = CapacityBlock(id="b", limit=64, usage=40)
    assert beside(block, seen, START + MINUTE).free == 8
    assert beside(block, seen, START + timedelta(hours=1)).free == 24
    assert beside(block, None, START).free == 24
    assert beside(replace(block, usage=None), seen, START).free is None
    assert beside(replace(block, usage=60), seen, START).free == 0


def test_a_claim_is_written_before_it_counts(place: Place) -> None:
    mine = Process("monday", place.lease("monday"), near="slurm-a/worker-[0-7]")
    mine.take()
    work = mine.lease.claim(world(32, near=(4, 4)), {"near": 6})
    work.send(None)
    assert mine.lease.record.claims == {}
    at_once(work)
    assert mine.lease.record.owed(START) == {"0a1b2c/slurm-a/worker-[0-7]": 16}
    # As long as nothing changes, nothing is written.
    written = mine.lease.record
    mine.renew(START + MINUTE)
    at_once(mine.lease.claim(world(32, near=(4, 4)), {"near": 6}))
    assert mine.lease.record is written
    at_once(mine.lease.claim(world(48, near=(6, 6)), {"near": 6}))
    assert mine.lease.record.claims == {}


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        pytest.param(Holding(allowed=6, held=4, ready=4), 16, id="both on their way"),
        pytest.param(Holding(allowed=6, held=5, ready=4), 8, id="one is there, and boots"),
        pytest.param(Holding(allowed=8, held=4, ready=4), 16, id="two more may come"),
        pytest.param(Holding(allowed=6, held=6, ready=6), 0, id="both are there"),
        pytest.param(Holding(allowed=4, held=4, ready=4), 0, id="both were taken back"),
        pytest.param(Holding(allowed=6, held=4, ready=6), 0, id="an autoscaler may add both"),
    ],
)
def test_at_the_end_of_a_shift_its_claim_is_for_what_is_still_on_its_way(
    place: Place, seen: Holding, left: int
) -> None:
    mine = Process("monday", place.lease("monday"), near="slurm-a/worker-[0-7]", calm="slurm-a/worker-[8-9]")
    mine.take()
    before = replace(world(32, near=(4, 4), calm=(2, 0)), gpus={"near": 8, "calm": 8})
    at_once(mine.lease.claim(before, {"near": 6}))
    mine.renew(START + 30 * MINUTE)
    at_once(mine.lease.keep_claims(replace(before, holdings={**before.holdings, "near": seen})))
    near = "0a1b2c/slurm-a/worker-[0-7]"
    assert mine.lease.record.owed(START + 44 * MINUTE) == ({near: left} if left else {})
    assert mine.lease.record.owed(START + 45 * MINUTE) == {}


def test_a_claim_of_a_former_shift_on_the_same_target_is_replaced_when_that_is_to_grow() -> None:
    place = KubernetesPlace()
    claiming(place)
    same = Process("tuesday", place.lease("tuesday"), near="slurm-a/worker-[0-7]")
    assert same.has_taken(START + 40 * MINUTE)
    assert same.lease.record.owed(START + 44 * MINUTE) == {"0a1b2c/slurm-a/worker-[0-7]": 16}
    at_once(same.lease.claim(world(32, near=(4, 4)), {"near": 6}))
    assert same.lease.record.owed(START + 84 * MINUTE) == {"0a1b2c/slurm-a/worker-[0-7]": 16}


# What a plan tells


def notes(process: Process, now: datetime = START) -> list[str]:
    found: list[str] = at_once(process.lease.notes(now))
    return found


def test_a_plan_tells_of_a_shift_at_work_and_of_what_it_claims(place: Place) -> None:
    near = Process("monday", place.lease("monday"), near="slurm-a/worker-[0-7]")
    near.take()
    at_once(near.lease.claim(world(32, near=(4, 4)), {"near": 6}))
    said = notes(Process("tuesday", place.lease("tuesday")))
    assert said[0].startswith("task shifts_monday/scheduled/shift/-1 (")
    assert said[0].endswith("is moving the block at present: this shift comes after it")
    assert said[1] == "16 GPUs of the block are claimed, which may still count as free"
    assert notes(near) == []


def test_a_plan_tells_of_other_dags_and_airflows_that_move_the_block() -> None:
    place = KubernetesPlace()
    claiming(place)
    staging = Process("monday", place.lease("monday"), airflow=STAGING, training="slurm-a/worker-[0-7]")
    staging.take()
    at_once(staging.lease.give_back())
    later = START + timedelta(hours=1)
    assert notes(Process("tuesday", place.lease("tuesday")), later) == [
        "the block is also moved by shifts_monday of Airflow 0a1b2c: near (slurm-a/worker-[0-7]), on 21 Nov 2026",
        "the block is also moved by shifts_monday of Airflow ffffff: training (slurm-a/worker-[0-7]), on 21 Nov 2026",
    ]
    mine = Process("monday", place.lease("monday"), airflow=STAGING)
    assert len(notes(mine, later)) == 1


# Records


FULL = ShiftRecord(
    key="0123456789abcdef",
    task="shifts/scheduled__2026-11-21T20:00:00+00:00/shift/-1",
    airflow=HERE,
    session="12345678",
    before={"training": 8, "inference": 0},
    ready={"training": 7, "inference": 0},
    others=8,
    undone='inference is "not" ready\nafter 0:45:00',
    marks={"began": 1795291200.5, "leaving": 1795291201.0},
    claims={"slurm/worker-[0-7]": [16, 1795291300.0], "mk8snodegroup-e00": [8, 1795291200.0]},
    movers={"other (0a1b2c)": "inference (mk8snodegroup-e00), on 21 Nov 2026"},
)


def test_a_record_comes_back_as_it_was_written() -> None:
    assert ShiftRecord.read(FULL.write()) == FULL
    assert ShiftRecord.read(FULL.write(1024)) == FULL


def test_a_record_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    assert ShiftRecord.read(json.dumps({**json.loads(FULL.write()), "notes": ["new"]})) == FULL


@pytest.mark.parametrize("said", ["", "null", "[]", "{}", "lent by Ann", '{"key": "a", "colour": "red"}'])
def test_what_is_no_record_is_not_taken_for_one(said: str) -> None:
    assert ShiftRecord.read(said) is None


@pytest.mark.parametrize("letter", ["x", "é", "漢", "\n"])
def test_a_long_cause_is_cut_to_what_slurm_keeps(letter: str) -> None:
    found = ShiftRecord.read(replace(FULL, undone=letter * 2000).write(1024))
    assert found is not None
    assert found.undone
    assert set(found.undone) <= {letter, "…"}
    assert replace(found, undone=FULL.undone, movers=FULL.movers) == FULL


@pytest.mark.parametrize("letter", ["x", "漢"])
@pytest.mark.parametrize("name", ["task", "before", "claims", "marks", "movers"])
def test_a_record_that_is_too_long_is_still_valid(name: str, letter: str) -> None:
    much: dict[str, Any] = {
        "task": f"{letter * 3000}/shift/-1",
        "before": {f"{letter}{number}": number for number in range(500)},
        "claims": {f"{letter}{number}": [number, 1.0] for number in range(500)},
        "marks": {f"{letter}{number}": float(number) for number in range(500)},
        "movers": {f"{letter}{number}": letter * 10 for number in range(500)},
    }
    written = replace(FULL, **{name: much[name]}).write(1024)
    assert len(written.encode()) <= 1024
    found = ShiftRecord.read(written)
    assert found is not None
    assert (found.key, found.airflow, found.session) == (FULL.key, FULL.airflow, FULL.session)
    # Airflow cannot be asked for a task whose name was cut.
    assert found.task == FULL.task or found.task.endswith("…")


def test_a_part_is_marked_the_first_time() -> None:
    first = ShiftRecord(key="k", task="t").marked("leaving", datetime.fromtimestamp(100, timezone.utc))
    assert first.marks == {"leaving": 100}
    assert first.marked("leaving", datetime.fromtimestamp(200, timezone.utc)) is first


# The object in Kubernetes


def test_people_see_in_kubernetes_who_has_a_block() -> None:
    place = KubernetesPlace()
    Process("monday", place.lease("monday", "capacityblockgroup-E00_x"), airflow=HERE).take()
    [found] = place.namespace.leases
    assert found["metadata"]["name"] == "airflow-shift-capacityblockgroup-e00-x"
    assert found["spec"]["holderIdentity"] == "0a1b2c/shifts_monday/scheduled/shift/-1"
    assert found["spec"]["leaseDurationSeconds"] == 300
    assert found["spec"]["renewTime"] == found["spec"]["acquireTime"] == "2026-11-21T20:00:00.000000Z"


def test_a_lease_that_somebody_else_made_is_not_written_over() -> None:
    place = KubernetesPlace()
    body = {"metadata": {"name": "airflow-shift-capacityblockgroup-1"}, "spec": {"holderIdentity": "ann"}}
    place.namespace.store.create("lease", body, place.namespace.namespace)
    mine = Process("monday", place.lease("monday"))
    assert str(mine.take()).startswith("a task that this connection cannot identify (Lease capacity/airflow-shift-")


def test_a_namespace_that_is_not_there_is_told_by_its_field() -> None:
    place = KubernetesPlace()
    place.namespace.store.delete("namespace", place.namespace.namespace)
    with pytest.raises(
        CapacityMistake, match="no namespace capacity for the leases of blocks: correct lease_namespace"
    ):
        Process("monday", place.lease("monday")).take()
