"""Two controllers on one block never move it at once, and never claim a GPU twice; the clock moves as they look."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_soperator.capacity import reconciliation
from airflow_provider_soperator.capacity import shift as engine
from airflow_provider_soperator.capacity.holdings import Holding
from airflow_provider_soperator.capacity.lease import LeaseLost
from airflow_provider_soperator.capacity.lease_store import TERM, LeaseStore, ShiftRecord
from airflow_provider_soperator.capacity.order import ShiftOrder, Superseded, Timeouts
from airflow_provider_soperator.capacity.shift import Shift
from airflow_provider_soperator.capacity.shift_plan import ShiftOutcome
from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.errors import CapacityBusy
from airflow_provider_soperator.transports.transport_errors import Unreachable
from tests.unit.capacity.lease_places import KubernetesPlace
from tests.unit.capacity.world import SECOND, START, Cloud, Connected, Death, Pace, Process, State, UnitsSession

A, B = (
    ShiftOrder(
        key=cluster,
        task=f"shifts_{cluster}/scheduled/shift/-1",
        airflow="0a1b2c",
        block="capacityblockgroup-1",
        nebius_conn_id="nebius_default",
        targets=(SlurmNodesTarget(name=cluster, nodes="worker-[0-7]", slurm_conn_id=f"slurm_{cluster}"),),
        desired={cluster: units},
        wanted_at=START,
        poll_interval=0,
        timeouts=Timeouts(release=200 * SECOND, free=900 * SECOND, ready=900 * SECOND, out_of_reach=200 * SECOND),
    )
    for cluster, units in (("a", 6), ("b", 4))
)


@pytest.fixture
def place() -> KubernetesPlace:
    return KubernetesPlace()


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """A block of 64 GPUs under two clusters, with 16 free: one of them can have its two nodes more."""
    made = Cloud(64)
    made.add("a", ready=4, off=4)
    made.add("b", ready=2, off=4)
    for module in (engine, reconciliation):
        monkeypatch.setattr(module, "datetime", made.clock())
    yield made
    assert made.refused == 0, "what was not free was claimed"


def shift(
    cloud: Cloud,
    place: KubernetesPlace,
    order: ShiftOrder,
    process: Process | None = None,
    away: Collection[int] = (),
) -> Shift:
    """A shift; at the moments in ``away`` its target cannot be reached."""
    process = process or Process()
    names = [target.name for target in order.targets]
    opener = cloud.sessions(process, order.key)

    async def sessions(stack: Any) -> dict[str, Any]:
        if cloud.now in away:
            raise Unreachable("the API does not answer")
        return {name: session for name, session in (await opener(stack)).items() if name in names}

    async def agreed(stack: Any) -> LeaseStore:
        return place.lease(order.key)

    return Shift(order, cloud.reader(process), Connected(sessions, agreed), cloud.log)


async def alive(record: ShiftRecord) -> bool:
    return True


async def run(made: Shift) -> ShiftOutcome:
    return await made.run(alive)


def dies_while_it_claims(cloud: Cloud, place: KubernetesPlace, order: ShiftOrder, **how: Any) -> None:
    """A shift that has told two nodes to come, which take long to do so, and then is no more."""
    cloud.targets["a"].pace = Pace(**how)
    process = Process()

    async def go() -> None:
        running = asyncio.ensure_future(run(shift(cloud, place, order, process)))
        while not cloud.targets["a"].count(State.ASKED):
            await asyncio.sleep(0)
        process._dies_at = 0
        with pytest.raises(Death):
            await running

    asyncio.run(go())


def one_after_another(cloud: Cloud, first: Shift, second: Shift) -> tuple[ShiftOutcome, ShiftOutcome]:
    """The ends of two shifts, of which the second begins once machines have come for the first."""

    async def both() -> tuple[ShiftOutcome, ShiftOutcome]:
        running = asyncio.ensure_future(run(first))
        while not cloud.targets["a"].come:
            await asyncio.sleep(0)
        later = await run(second)
        return await running, later

    return asyncio.run(both())


def test_two_clusters_do_not_claim_the_same_gpus(cloud: Cloud, place: KubernetesPlace) -> None:
    async def both() -> list[ShiftOutcome]:
        works = (run(shift(cloud, place, order)) for order in (A, B))
        return await asyncio.gather(*works, return_exceptions=True)

    first, second = sorted(asyncio.run(both()), key=lambda one: one.state)
    assert (first.state, second.state) == ("done", "partial")
    assert "only 0 GPUs of the block are free" in str(second.missing)
    assert sum("Waiting for task shifts_" in line for line in cloud.log.said) == 1
    assert cloud.taken == 64
    assert place.held == 0


def test_two_dags_on_one_target_take_turns(cloud: Cloud, place: KubernetesPlace) -> None:
    other = replace(A, key="c", task="shifts_c/scheduled/shift/-1", desired={"a": 3})
    first, second = one_after_another(cloud, shift(cloud, place, A), shift(cloud, place, other))
    assert first.allocation == {"a": 6}
    assert second.allocation == {"a": 3}
    assert cloud.targets["a"].gone[0] > cloud.targets["a"].come[-1]


def test_what_a_dead_shift_has_claimed_is_left_for_it(cloud: Cloud, place: KubernetesPlace) -> None:
    # Its machines come when the other one has the block for long.
    dies_while_it_claims(cloud, place, A, claim=lambda unit: 700)
    died = cloud.now
    outcome = asyncio.run(run(shift(cloud, place, B)))
    assert outcome.state == "partial"
    assert "only 0 GPUs" in str(outcome.missing)
    assert cloud.now - died >= TERM.total_seconds()
    assert len(cloud.targets["a"].come) == 2
    assert cloud.targets["b"].come == []


def test_what_is_on_its_way_when_a_shift_ends_is_left_for_it(cloud: Cloud, place: KubernetesPlace) -> None:
    cloud.targets["a"].pace = Pace(claim=lambda unit: 700)
    ended = asyncio.run(run(shift(cloud, place, replace(A, stops_at=START + 100 * SECOND))))
    assert (ended.state, cloud.targets["a"].count(State.ASKED)) == ("partial", 2)
    # One of the same target moves nothing, as its time is over, too.
    late = replace(A, key="c", task="shifts_c/scheduled/shift/-1", stops_at=START)
    with pytest.raises(Superseded):
        asyncio.run(run(shift(cloud, place, late)))
    outcome = asyncio.run(run(shift(cloud, place, B)))
    assert outcome.state == "partial"
    assert "only 0 GPUs" in str(outcome.missing)
    assert len(cloud.targets["a"].come) == 2
    assert cloud.targets["b"].come == []


def test_what_is_on_its_way_when_a_shift_ends_is_no_hindrance_to_the_next_one(
    cloud: Cloud, place: KubernetesPlace
) -> None:
    cloud.targets["a"].pace = Pace(claim=lambda unit: 200)
    ended = asyncio.run(run(shift(cloud, place, replace(A, desired={"a": 5}, stops_at=START + 100 * SECOND))))
    assert ended.state == "partial"
    following = replace(A, key="c", task="shifts_c/scheduled/shift/-1")
    assert asyncio.run(run(shift(cloud, place, following))).allocation == {"a": 6}
    # It is told at once, and not only when the first one has come.
    assert cloud.targets["a"].come[1] - cloud.targets["a"].come[0] < 200


def test_a_shift_that_is_gone_holds_nobody_up_for_ever(cloud: Cloud, place: KubernetesPlace) -> None:
    """As of a DAG that was deleted, or of an Airflow that is no more; nobody knows that it has ended."""
    with pytest.raises(Death):
        asyncio.run(run(shift(cloud, place, replace(A, desired={"a": 2}), Process(dies_at=12))))
    began = cloud.now
    assert asyncio.run(run(shift(cloud, place, B))).allocation == {"b": 4}
    assert cloud.now - began >= TERM.total_seconds()
    assert any("has not renewed its lease since" in line for line in cloud.log.said)


def test_who_does_not_want_to_wait_is_told_who_has_the_block(cloud: Cloud, place: KubernetesPlace) -> None:
    dies_while_it_claims(cloud, place, A, claim=lambda unit: 10)
    with pytest.raises(
        CapacityBusy, match=r"task shifts_a/scheduled/shift/-1 \(Lease capacity/airflow-shift-.*5 minut"
    ):
        asyncio.run(run(shift(cloud, place, replace(B, wait_for_lease=False))))


def test_of_two_processes_of_one_shift_the_elder_waits(cloud: Cloud, place: KubernetesPlace) -> None:
    cloud.targets["a"].pace = Pace(boot=lambda unit: 50)
    elder, newer = one_after_another(cloud, shift(cloud, place, A), shift(cloud, place, A))
    assert newer.allocation == {"a": 6}
    assert elder.allocation == {"a": 6}
    assert sum("This process waits: another process goes on" in line for line in cloud.log.said) == 1
    assert place.held == 0


def test_the_elder_does_not_end_a_shift_whose_time_is_over_for_the_newer(cloud: Cloud, place: KubernetesPlace) -> None:
    cloud.targets["a"].pace = Pace(boot=lambda unit: 200)
    order = replace(A, stops_at=START + 100 * SECOND)
    for outcome in one_after_another(cloud, shift(cloud, place, order), shift(cloud, place, order)):
        assert outcome.state == "partial"
        assert outcome.missing[-1].startswith("the window of the shift was over at ")
    assert place.held == 0


def test_who_waits_until_its_time_is_over_moves_nothing(cloud: Cloud, place: KubernetesPlace) -> None:
    cloud.targets["a"].pace = Pace(boot=lambda unit: 200)

    async def both() -> None:
        holder = asyncio.ensure_future(run(shift(cloud, place, A)))
        while not cloud.targets["a"].come:
            await asyncio.sleep(0)
        with pytest.raises(Superseded, match="was over before anything was moved"):
            await run(shift(cloud, place, replace(B, desired={"b": 1}, stops_at=START + 100 * SECOND)))
        assert (await holder).allocation == {"a": 6}

    asyncio.run(both())
    assert cloud.targets["b"].gone == []


def test_the_plan_tells_of_the_other_cluster(cloud: Cloud, place: KubernetesPlace) -> None:
    asyncio.run(run(shift(cloud, place, A)))

    async def plan() -> str:
        one = shift(cloud, place, B)
        return str(await one.plan(await one.look()))

    assert "the block is also moved by shifts_a of Airflow 0a1b2c: a (slurm_a/worker-[0-7]), on" in asyncio.run(plan())


def test_a_shift_keeps_the_block_while_a_target_cannot_be_reached(cloud: Cloud, place: KubernetesPlace) -> None:
    cloud.targets["a"].pace = Pace(boot=lambda unit: 60)
    patient = replace(A, timeouts=replace(A.timeouts, out_of_reach=2000 * SECOND))
    away = range(50, 1500)
    # What is under way fails.
    cloud.trouble = [range(50, 60)]
    done, later = one_after_another(cloud, shift(cloud, place, patient, away=away), shift(cloud, place, B))
    assert (done.state, later.state) == ("done", "partial"), "each had it to itself"


class Hanging:
    """Looks at target "a" that take until a moment."""

    def __init__(self, cloud: Cloud, monkeypatch: pytest.MonkeyPatch, since: int, until: int) -> None:
        self.is_under_way = False
        look = UnitsSession.look

        async def hangs(session: UnitsSession) -> Holding:
            if session._units is cloud.targets["a"] and since <= cloud.now:
                self.is_under_way = True
                try:
                    while cloud.now < until:
                        await asyncio.sleep(0)
                finally:
                    self.is_under_way = False
            return await look(session)

        monkeypatch.setattr(UnitsSession, "look", hangs)


def renewing(made: Shift) -> Shift:
    """A shift that renews its lease at each turn of the loop: the term goes by in an instant."""
    made._lease.renewed_every = 0 * SECOND
    return made


def test_a_shift_keeps_the_block_while_a_question_takes_longer_than_a_lease(
    cloud: Cloud, place: KubernetesPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client waits for a slurmctld that is away."""
    cloud.targets["a"].pace = Pace(boot=lambda unit: 60)
    Hanging(cloud, monkeypatch, 50, 50 + 3 * int(TERM.total_seconds()))
    done, later = one_after_another(cloud, renewing(shift(cloud, place, A)), shift(cloud, place, B))
    assert (done.state, later.state) == ("done", "partial"), "each had it to itself"


def test_a_shift_keeps_the_block_while_its_targets_take_long_to_be_reached(
    cloud: Cloud, place: KubernetesPlace
) -> None:
    cloud.targets["a"].pace = Pace(boot=lambda unit: 60)
    cloud.trouble = [range(50, 60)]
    made, until = renewing(shift(cloud, place, A)), 50 + 3 * int(TERM.total_seconds())
    opened = made._connections._open_sessions

    async def slowly(*args: Any) -> None:
        while 50 <= cloud.now < until:
            await asyncio.sleep(0)
        await opened(*args)

    made._connections._open_sessions = slowly  # type: ignore[method-assign]
    done, later = one_after_another(cloud, made, shift(cloud, place, B))
    assert (done.state, later.state) == ("done", "partial"), "each had it to itself"


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_a_shift_is_at_ends_with_its_lease_and_with_its_process(
    cloud: Cloud, place: KubernetesPlace, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    cloud.targets["a"].pace = Pace(boot=lambda unit: 60)
    question = Hanging(cloud, monkeypatch, 50, sys.maxsize)

    async def go() -> None:
        running = asyncio.ensure_future(run(renewing(shift(cloud, place, A))))
        while not question.is_under_way:
            await asyncio.sleep(0)
        if is_lost:
            place.namespace.store.delete("lease", "airflow-shift-capacityblockgroup-1", "capacity")
        else:
            running.cancel()
        with pytest.raises(LeaseLost if is_lost else asyncio.CancelledError):
            await running
        assert not question.is_under_way

    asyncio.run(go())


@pytest.mark.parametrize(("foreign", "is_told"), [(0, False), (8, True)])
def test_the_plan_tells_if_others_have_gpus_and_no_place_is_agreed_on(
    cloud: Cloud, foreign: int, is_told: bool
) -> None:
    del cloud.targets["b"]
    cloud.foreign = foreign

    async def plan() -> str:
        one = Shift(A, cloud.reader(Process()), Connected(cloud.sessions(Process(), "a")), cloud.log)
        return str(await one.plan(await one.look()))

    assert ("lease_conn_id of the connection nebius_default names no cluster" in asyncio.run(plan())) is is_told
