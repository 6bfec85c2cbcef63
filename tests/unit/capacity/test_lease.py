"""Never two shifts have a block at once, whoever comes when, and dies where; and what a shift has written stays."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from dataclasses import replace
from datetime import datetime, timezone
from types import coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_soperator.capacity.lease import Lease, LeaseHolder, LeaseLost, ShiftRecord
from airflow_provider_soperator.slurm.requests import CreateReservation, ListReservations, Request
from tests.unit.capacity.world import Reservations

BLOCK = "capacityblockgroup-1"
KEYS = ("monday", "tuesday", "wednesday")
#: Questions to Slurm. None takes as many as the most.
steps = st.sampled_from([1, 2, 3, 9])


@coroutine
def pause() -> Generator[None, None, None]:
    yield


def lease(slurm: Reservations, key: str, block: str = BLOCK) -> Lease:
    async def ask(request: Request[Any]) -> Any:
        # Here others may come in between, and here a process may end.
        await pause()
        return slurm.answer(request)

    return Lease(ask, block, key, "worker-0", "root")


def record(key: str, **marks: float) -> ShiftRecord:
    return ShiftRecord(key=key, task=f"shifts/scheduled/{key}/-1", marks=marks)


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """All of it, with nobody in between."""
    while True:
        try:
            work.send(None)
        except StopIteration as done:
            return done.value


class Shifts(RuleBasedStateMachine):
    """Shifts that take the block and give it back, one question to Slurm at a time, and may die before any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.slurm = Reservations()
        self.work: dict[str, tuple[str, Coroutine[Any, Any, Any]]] = {}
        #: What those have written down that have the block, be they alive or not.
        self.having: dict[str, ShiftRecord] = {}
        self.written = 0.0

    @property
    def idle(self) -> set[str]:
        """Whoever has the block, unless it is busy."""
        return set(self.having) - set(self.work)

    @rule(data=st.data(), steps=steps)
    def come(self, data: st.DataObject, steps: int) -> None:
        if free := sorted(set(KEYS) - set(self.work)):
            key = data.draw(st.sampled_from(free))
            self.written += 1
            self.work[key] = ("take", lease(self.slurm, key).take(record(key, came=self.written)))
            self._step(key, steps)

    @precondition(lambda self: self.idle)
    @rule()
    def write(self) -> None:
        (key,) = self.idle
        self.written += 1
        self.work[key] = ("keep", self._keep(key, replace(self.having[key], marks={"wrote": self.written})))

    async def _keep(self, key: str, new: ShiftRecord) -> None:
        await lease(self.slurm, key).keep(new)
        self.having[key] = new

    @precondition(lambda self: self.idle)
    @rule()
    def give_back(self) -> None:
        (key,) = self.idle
        # Whoever is about to give it back moves nothing any more.
        del self.having[key]
        self.work[key] = ("drop", lease(self.slurm, key).drop())

    @precondition(lambda self: self.work)
    @rule(data=st.data(), steps=steps)
    def go_on(self, data: st.DataObject, steps: int) -> None:
        self._step(data.draw(st.sampled_from(sorted(self.work))), steps)

    def _step(self, key: str, steps: int) -> None:
        what, work = self.work[key]
        for _ in range(steps):
            try:
                work.send(None)
            except StopIteration as done:
                del self.work[key]
                if what == "take":
                    self._has_taken(key, done.value)
                return

    def _has_taken(self, key: str, answer: ShiftRecord | LeaseHolder) -> None:
        if isinstance(answer, LeaseHolder):
            assert key not in self.having, f"{key} had the block, and was told that {answer} has it"
            assert answer.record is not None
            assert answer.record.key != key
            return
        assert answer.key == key
        if key in self.having:
            assert answer == self.having[key]
        self.having[key] = answer

    @precondition(lambda self: self.work)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.work)))
        _, work = self.work.pop(key)
        work.close()

    @invariant()
    def never_two_have_the_block(self) -> None:
        assert len(self.having) <= 1

    def teardown(self) -> None:
        for _, work in self.work.values():
            work.close()
        for key in self.having:
            assert at_once(lease(self.slurm, key).take(record(key))) == self.having[key]
        # Once all who have come are gone, it can be had again.
        for key in KEYS:
            at_once(lease(self.slurm, key).drop())
        assert self.slurm.known == {}
        assert isinstance(at_once(lease(self.slurm, KEYS[0]).take(record(KEYS[0]))), ShiftRecord)


Shifts.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestShifts = Shifts.TestCase


def take(slurm: Reservations, key: str, block: str = BLOCK) -> ShiftRecord | LeaseHolder:
    answer: ShiftRecord | LeaseHolder = at_once(lease(slurm, key, block).take(record(key)))
    return answer


def test_a_claim_that_was_left_behind_is_nobodys_right() -> None:
    slurm = Reservations()
    late = lease(slurm, "tuesday").take(record("tuesday"))
    # It has seen nobody, and is about to make its reservation.
    late.send(None)
    late.send(None)
    assert take(slurm, "monday") == record("monday")
    # It makes it, and dies before it looks again.
    late.send(None)
    late.close()
    assert len(slurm.known) == 2
    assert isinstance(take(slurm, "tuesday"), LeaseHolder)
    assert take(slurm, "monday") == record("monday")


def test_of_two_who_come_at_the_same_moment_not_both_have_it() -> None:
    slurm = Reservations()
    works = {key: lease(slurm, key).take(record(key)) for key in KEYS[:2]}
    answers: dict[str, Any] = {}
    while works:
        for key, work in list(works.items()):
            try:
                work.send(None)
            except StopIteration as done:
                answers[key] = done.value
                del works[key]
    assert sum(isinstance(answer, ShiftRecord) for answer in answers.values()) <= 1
    # Whoever then comes alone has it.
    assert [isinstance(take(slurm, key), ShiftRecord) for key in KEYS[:2]] == [True, False]


def test_whoever_waits_is_told_for_whom() -> None:
    slurm = Reservations()
    take(slurm, "monday")
    taken = take(slurm, "tuesday")
    assert isinstance(taken, LeaseHolder)
    assert taken.record == record("monday")
    assert str(taken).startswith("task shifts/scheduled/monday/-1 (reservation airflow-shift-")
    # Waiting leaves nothing behind.
    assert len(slurm.known) == 1


def test_blocks_do_not_get_in_each_others_way() -> None:
    slurm = Reservations()
    assert isinstance(take(slurm, "monday"), ShiftRecord)
    assert isinstance(take(slurm, "monday", "capacityblockgroup-2"), ShiftRecord)
    assert isinstance(take(slurm, "tuesday", "capacityblockgroup-3"), ShiftRecord)


def test_a_shift_that_is_no_more_can_be_put_out_with_its_handover() -> None:
    slurm = Reservations()
    take(slurm, "monday")
    waiting = lease(slurm, "tuesday")
    taken = at_once(waiting.take(record("tuesday")))
    at_once(waiting.evict(taken))
    assert slurm.known == {}
    assert isinstance(take(slurm, "tuesday"), ShiftRecord)


def test_whoever_has_lost_the_block_is_told_so() -> None:
    slurm = Reservations()
    take(slurm, "monday")
    mine = lease(slurm, "monday")
    at_once(mine.confirm())
    slurm.known.clear()
    with pytest.raises(LeaseLost, match="was deleted"):
        at_once(mine.confirm())
    with pytest.raises(LeaseLost, match="was deleted"):
        at_once(mine.keep(record("monday", leaving=1)))


def test_where_comments_cannot_be_seen_it_is_known_all_the_same_who_has_it() -> None:
    """As over slurmrestd."""
    slurm = Reservations()

    async def ask(request: Request[Any]) -> Any:
        await asyncio.sleep(0)
        answer = slurm.answer(request)
        return tuple(replace(one, comment="") for one in answer) if isinstance(request, ListReservations) else answer

    mine, other = (Lease(ask, BLOCK, key, "worker-0", "root") for key in KEYS[:2])

    async def go() -> None:
        assert await mine.take(record("monday", came=1)) == record("monday", came=1)
        assert await mine.take(record("monday", came=2)) == record("monday", came=2)
        taken = await other.take(record("tuesday"))
        assert isinstance(taken, LeaseHolder)
        assert str(taken).startswith("a task that this connection cannot identify")

    asyncio.run(go())


FULL = ShiftRecord(
    key="shifts/scheduled__2026-11-21T20:00:00+00:00/shift/-1",
    task="shifts/scheduled__2026-11-21T20:00:00+00:00/shift/-1",
    before={"training": 8, "inference": 0},
    ready={"training": 7, "inference": 0},
    others=8,
    undone='inference is "not" ready\nafter 0:45:00',
    marks={"began": 1795291200.5, "leaving": 1795291201.0},
)


def test_a_record_comes_back_as_it_was_written() -> None:
    assert ShiftRecord.read(FULL.write()) == FULL


@pytest.mark.parametrize("said", ["", "null", "[]", "{}", "lent by Ann", '{"key": "a", "task": "b", "colour": "red"}'])
def test_what_is_no_record_is_not_taken_for_one(said: str) -> None:
    assert ShiftRecord.read(said) is None


@pytest.mark.parametrize("letter", ["x", "é", "漢", "\n"])
def test_a_long_cause_is_cut_to_what_slurm_keeps(letter: str) -> None:
    written = replace(FULL, undone=letter * 2000).write()
    start = datetime(2099, 1, 1, tzinfo=timezone.utc)
    CreateReservation(name="x", nodes=("n",), start=start, end=None, users=("root",), comment=written).command()
    found = ShiftRecord.read(written)
    assert found is not None
    assert found.undone
    assert set(found.undone) == {letter}
    assert replace(found, undone=FULL.undone) == FULL


def test_a_part_is_marked_the_first_time() -> None:
    first = record("monday").marked("leaving", datetime.fromtimestamp(100, timezone.utc))
    assert first.marks == {"leaving": 100}
    assert first.marked("leaving", datetime.fromtimestamp(200, timezone.utc)) is first
