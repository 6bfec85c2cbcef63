"""A shift brings what is possible, and says what is missing: nobody who serves loses anything by what cannot come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from airflow_provider_soperator.capacity.holdings import Holding, ProjectShare
from airflow_provider_soperator.capacity.order import ShiftOrder, Superseded, Timeouts
from airflow_provider_soperator.capacity.reconciliation import OrderedShift, begin
from airflow_provider_soperator.capacity.shift import Shift, ShiftFailed
from airflow_provider_soperator.capacity.shift_plan import ShiftOutcome, ShiftPlan
from airflow_provider_soperator.capacity.targets.protocol import Session
from airflow_provider_soperator.errors import CapacityError, CapacityMistake
from airflow_provider_soperator.nebius.api import NebiusMissing, NebiusUnauthenticated, NebiusUnreachable
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.errors import ControllerUnreachable, NotPermitted
from airflow_provider_soperator.slurm.requests import PowerDownMode
from airflow_provider_soperator.transports.transport_errors import UnknownEndpoint
from tests.unit.capacity.test_shift import ALL, DAY, HASTY, NIGHT, ORDER, OTHER, carry, is_as, made_cloud, shift
from tests.unit.capacity.world import (
    BLOCK,
    NEVER,
    SECOND,
    START,
    Cloud,
    Connected,
    Death,
    NoMachines,
    Pace,
    Process,
    State,
    Unit,
)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """Night: all GPUs are at work in training."""
    made = made_cloud(monkeypatch)
    yield made
    assert made.refused == 0


def one_does_not_boot(cloud: Cloud) -> None:
    cloud.targets["inference"].pace = Pace(boot=lambda unit: NEVER if unit == 2 else 0)


async def is_alive(record: Any) -> bool:
    return True


def test_what_has_arrived_stays_and_what_is_missing_is_said(cloud: Cloud) -> None:
    one_does_not_boot(cloud)
    outcome = carry(cloud, replace(ORDER, timeouts=HASTY))
    assert (outcome.state, outcome.allocation) == ("partial", DAY)
    assert outcome.missing == ("inference has 3 of 4 replicas ready", "inference is not ready after 0:00:30")
    assert cloud.ready() == {"training": 4, "inference": 3}
    assert cloud.targets["inference"].least == NEVER
    assert cloud.reservations.known == {}
    assert outcome.describe()["state"] == "partial"


@pytest.mark.parametrize("order", [ORDER, ALL], ids=["partial", "all or nothing"])
def test_what_others_put_back_is_left_to_them_and_nothing_is_undone(cloud: Cloud, order: ShiftOrder) -> None:
    training = cloud.targets["training"]
    see = training.see
    training.see = lambda: replace(see(), pinned=see().allowed, problems=("Flux puts it back",))  # type: ignore[method-assign]
    outcome = carry(cloud, order)
    assert outcome.state == "partial"
    assert outcome.missing[0] == "training still has 8 nodes, not 4: Flux puts it back"
    assert is_as(cloud, NIGHT)


def test_who_keeps_a_target_small_is_named_when_a_shift_is_rolled_back(cloud: Cloud) -> None:
    cloud.targets["training"].pace = Pace(work=lambda unit: 45 if unit == 2 else 0)
    inference, problem = cloud.targets["inference"], "Terraform has set it to 0"
    see = inference.see

    def small() -> Holding:
        if see().ready:
            inference.shrink(0, PowerDownMode.FORCE)
            inference.grow = lambda to: None  # type: ignore[method-assign]
            inference.see = lambda: replace(see(), pinned=0, problems=(problem,))  # type: ignore[method-assign]
        return see()

    inference.see = small  # type: ignore[method-assign]
    with pytest.raises(ShiftFailed, match=rf"{problem}.*rolled back"):
        carry(cloud, replace(ALL, timeouts=HASTY))
    assert is_as(cloud, NIGHT)


def test_who_wants_all_or_nothing_gets_nothing_one_by_one(cloud: Cloud) -> None:
    """As long as another unit is on its way back, none that serves is taken."""
    one_does_not_boot(cloud)
    training, inference = cloud.targets["training"], cloud.targets["inference"]
    training.pace = Pace(boot=lambda unit: 5)
    running: list[tuple[int, int]] = []
    tick = cloud.tick

    def watch() -> None:
        tick()
        running.append((training.count(State.READY), inference.count(State.READY)))

    cloud.tick = watch  # type: ignore[method-assign]
    with pytest.raises(ShiftFailed, match=r"inference is not ready.*rolled back.*training may have 8 nodes") as failed:
        carry(cloud, ALL)
    assert "0 GPUs of the block are free" in str(failed.value)
    assert is_as(cloud, NIGHT)
    assert cloud.reservations.known == {}
    back = running[running.index((4, 3)) :]
    assert min(sum(both) for both in back) >= 7 - 1


def test_what_serves_goes_on_if_nothing_can_take_its_place(cloud: Cloud) -> None:
    one_does_not_boot(cloud)
    cloud.targets["training"].pace = Pace(boot=lambda unit: NEVER)
    with pytest.raises(ShiftFailed, match=r"the rollback failed: .*inference may have 3 replicas, 3 ready"):
        carry(cloud, ALL)
    assert cloud.ready() == {"training": 4, "inference": 3}


def test_jobs_that_do_not_end_cost_nobody_anything(cloud: Cloud) -> None:
    cloud.targets["training"].pace = Pace(work=lambda unit: NEVER if unit == 2 else 0)
    outcome = carry(cloud, replace(ORDER, timeouts=HASTY))
    assert outcome.state == "partial"
    assert outcome.missing[:2] == ("training still has 5 nodes, not 4", "inference has 3 of 4 replicas ready")
    assert outcome.missing[2].startswith("training still has more than desired after 0:00:30")
    assert cloud.ready() == {"training": 4, "inference": 3}


def test_jobs_are_waited_for_as_long_as_the_window_lasts(cloud: Cloud) -> None:
    hour = 3600 * SECOND
    cloud.targets["training"].pace = Pace(work=lambda unit: 5 * 3600 if unit == 2 else 0)
    order = replace(ORDER, timeouts=Timeouts(), stops_at=START + 10 * hour, poll_interval=0)
    monkey = cloud.tick

    def leap() -> None:
        monkey()
        cloud.now += 60

    cloud.tick = leap  # type: ignore[method-assign]
    assert carry(cloud, order).state == "done"
    assert cloud.now > 5 * 3600


def test_a_shift_stops_where_it_is_when_its_window_is_over(cloud: Cloud) -> None:
    cloud.targets["training"].pace = Pace(work=lambda unit: 50 * unit)
    outcome = carry(cloud, replace(ORDER, stops_at=START + 75 * SECOND, rollback="all"))
    assert (outcome.state, outcome.missing[-1]) == ("partial", "the window of the shift was over at 21 Nov 20:01 UTC")
    assert cloud.ready()["inference"] == 2
    assert cloud.now < 85
    assert cloud.reservations.known == {}


def test_a_rollback_stops_where_it_is_when_its_window_is_over_and_the_next_shift_goes_on(cloud: Cloud) -> None:
    one_does_not_boot(cloud)
    cloud.targets["training"].pace = Pace(boot=lambda unit: 5)
    with pytest.raises(ShiftFailed, match="the rollback failed: the window of the shift was over at 21 Nov 20:00 UTC"):
        carry(cloud, replace(ALL, stops_at=START + 55 * SECOND))
    assert cloud.now < 60
    assert cloud.ready() == {"training": 6, "inference": 2}
    assert cloud.reservations.known == {}
    assert carry(cloud, replace(OTHER, desired=NIGHT)).state == "done"


def test_an_approval_that_has_ended_is_none(cloud: Cloud) -> None:
    order = replace(ORDER, approved={"goal": DAY, "end": (START - SECOND).isoformat()})
    with pytest.raises(Superseded):
        carry(cloud, order)
    assert is_as(cloud, NIGHT)


def test_no_more_is_moved_than_was_approved(cloud: Cloud) -> None:
    order = replace(ORDER, approved={"goal": {"training": 6, "inference": 2}})
    outcome = carry(cloud, order)
    assert is_as(cloud, {"training": 6, "inference": 2})
    assert outcome.state == "partial"


def test_a_shift_that_has_waited_too_long_for_its_turn_moves_nothing(cloud: Cloud) -> None:
    with pytest.raises(Death):
        carry(cloud, replace(OTHER, desired={"training": 7, "inference": 1}), Process(dies_at=60))
    before = cloud.allowed()
    with pytest.raises(Superseded, match="was over before anything was moved"):
        carry(cloud, replace(ORDER, stops_at=START + (cloud.now + 20) * SECOND), is_alive=is_alive)
    assert cloud.allowed() == before
    assert len(cloud.reservations.known) == 1


# What nobody may touch


def drained(cloud: Cloud, target: str, number: int, state: State = State.DRAINED) -> None:
    cloud.targets[target].units[number] = Unit(state)


@pytest.mark.parametrize(
    ("desired", "state", "reached"),
    [
        pytest.param({"training": 0, "inference": 8}, State.DRAINED, (0, 7), id="one that is to go"),
        pytest.param(DAY, State.DRAINED, (3, 4), id="one that is to stay"),
        pytest.param({"training": 7, "inference": 1}, State.BANNED, (7, 1), id="one that is off already"),
        pytest.param(NIGHT, State.BANNED, (7, 0), id="one that cannot come"),
    ],
)
def test_what_somebody_has_drained_neither_stops_a_shift_nor_undoes_it(
    cloud: Cloud, desired: dict[str, int], state: State, reached: tuple[int, int]
) -> None:
    drained(cloud, "training", 5, state)
    outcome = carry(cloud, replace(ORDER, desired=desired, rollback="all"))
    assert tuple(cloud.ready().values()) == reached
    is_reached = reached == tuple(desired.values())
    assert outcome.state == ("done" if is_reached else "partial")
    assert any("unit-5 is drained: disk" in line for line in outcome.missing) is not is_reached
    assert cloud.now < 60


def test_what_somebody_drains_in_the_midst_is_left_from_then_on(cloud: Cloud) -> None:
    cloud.targets["training"].pace = Pace(work=lambda unit: 20 * unit)

    async def go() -> ShiftOutcome:
        running = asyncio.ensure_future(shift(cloud, replace(ORDER, desired={"training": 0, "inference": 8})).run())
        while not cloud.targets["training"].gone:
            await asyncio.sleep(0)
        drained(cloud, "training", 7)
        return await running

    assert asyncio.run(go()).state == "partial"
    assert cloud.ready() == {"training": 0, "inference": 7}


def test_what_others_hold_of_the_block_is_told_before_and_what_is_left_is_shared(cloud: Cloud) -> None:
    cloud.limit, cloud.foreign = 72, 8
    order = replace(ORDER, desired={"training": 6, "inference": 3}, timeouts=HASTY)

    async def planned() -> str:
        one = shift(cloud, order)
        return str(await one.plan(await one.check()))

    said = asyncio.run(planned())
    assert "inference goes from 0 to 2 replicas (3 desired)" in said
    assert "8 GPUs of the block belong to others" in said
    outcome = carry(cloud, order)
    assert outcome.state == "partial"
    assert is_as(cloud, {"training": 6, "inference": 2}) or cloud.ready() == {"training": 6, "inference": 2}
    assert "only 0 GPUs of the block are free, too few for inference" in outcome.missing[-1]


class SharedOut(NoMachines):
    """The cloud's API, which tells of the parts of the block that projects may have."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__()
        self._cloud = cloud

    async def shares(self, sessions: Mapping[str, Session]) -> list[ProjectShare]:
        return self._cloud.share()


def test_a_project_that_may_have_less_gets_what_it_may_have(cloud: Cloud) -> None:
    cloud.shares["project-e00serving"] = (frozenset({"inference"}), 16)
    process = Process()
    connections = Connected(cloud.sessions(process, ORDER.key), machines=SharedOut(cloud))
    outcome = asyncio.run(Shift(ORDER, cloud.reader(process), connections, cloud.log).run())
    assert (outcome.state, outcome.allocation) == ("partial", {"training": 4, "inference": 2})
    full = "project-e00serving may have 16 GPUs of the block, and has 16"
    assert outcome.missing == (f"inference has 2 of 4 replicas ready: {full}",)


# The first look


class Clients:
    """The way to a block, which begins with errors."""

    def __init__(self, cloud: Cloud, *errors: Exception) -> None:
        self._cloud, self._errors = cloud, list(errors)

    async def block(self, conn_id: str, block: str) -> CapacityBlock:
        if self._errors:
            raise self._errors.pop(0)
        return self._cloud.block()


def look(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> ShiftPlan:
    @asynccontextmanager
    async def opened(order: ShiftOrder, clients: Any, log: Any) -> AsyncIterator[Shift]:
        yield shift(cloud, order)

    monkeypatch.setattr(OrderedShift, "open", opened)
    clients = cast(Any, Clients(cloud, *errors))

    async def order_for(limit: int) -> ShiftOrder:
        return ORDER

    found = begin(order_for, BLOCK, "nebius_default", clients, cloud.log, timeouts=HASTY, poll_interval=0)
    return asyncio.run(found)[1]


def test_the_first_look_waits_out_what_passes_and_what_a_person_has_to_mend(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [NebiusUnreachable("503"), ControllerUnreachable("slurmctld restarts"), NebiusUnauthenticated("expired")]
    assert look(cloud, monkeypatch, *errors).moves[1].then == 4


@pytest.mark.parametrize(
    ("error", "is_lasting"),
    [(NebiusMissing("there is no block"), True), (NotPermitted("no"), True), (UnknownEndpoint("no host"), False)],
)
def test_the_first_look_does_not_wait_for_what_stays(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, error: Exception, is_lasting: bool
) -> None:
    with pytest.raises(CapacityError) as found:
        look(cloud, monkeypatch, error)
    assert isinstance(found.value, CapacityMistake) is is_lasting
    assert cloud.now < 5


def test_the_first_look_does_not_wait_for_ever(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CapacityError, match="no step succeeded for 0:00:30: 503"):
        look(cloud, monkeypatch, *[NebiusUnreachable("503")] * 100)
