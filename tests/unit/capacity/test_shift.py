"""A shift brings what is possible, whatever dies or fails on the way; and never asks for a GPU that is not free."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_provider_soperator.capacity import reconciliation
from airflow_provider_soperator.capacity import shift as engine
from airflow_provider_soperator.capacity.lease import LeaseLost
from airflow_provider_soperator.capacity.lease_store import ShiftRecord
from airflow_provider_soperator.capacity.order import ShiftOrder, Timeouts
from airflow_provider_soperator.capacity.shift import Shift, ShiftFailed
from airflow_provider_soperator.capacity.shift_plan import ShiftOutcome
from airflow_provider_soperator.capacity.targets import KubernetesScaleTarget, SlurmNodesTarget
from airflow_provider_soperator.errors import CapacityBusy, CapacityError, CapacityMistake, ConnectionMistake
from airflow_provider_soperator.nebius.api import NebiusUnauthenticated
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm.errors import NotPermitted
from airflow_provider_soperator.transports.transport_errors import ConnectFailed
from tests.unit.capacity.world import NEVER, SECOND, START, Cloud, Connected, Death, Pace, Process, UnitsSession

TARGETS = (
    SlurmNodesTarget(name="training", nodes="worker-[0-7]"),
    KubernetesScaleTarget(name="inference", resource="vllm", gpus_per_unit=8),
)
DAY, NIGHT = {"training": 4, "inference": 4}, {"training": 8, "inference": 0}
ORDER = ShiftOrder(
    key="shifts/scheduled__1/shift/-1",
    task="shifts/scheduled__1/shift/-1",
    block="capacityblockgroup-1",
    nebius_conn_id="nebius_default",
    targets=TARGETS,
    desired=DAY,
    wanted_at=START,
    poll_interval=0,
    timeouts=Timeouts(release=200 * SECOND, free=200 * SECOND, ready=200 * SECOND, out_of_reach=200 * SECOND),
)
OTHER = replace(ORDER, key="shifts/manual__2/shift/-1", task="shifts/manual__2/shift/-1")
HASTY = Timeouts(release=30 * SECOND, free=30 * SECOND, ready=30 * SECOND, out_of_reach=30 * SECOND)

STAGGERED = Pace(work=lambda unit: 2 * unit, machine=lambda unit: 1, claim=lambda unit: 1, boot=lambda unit: 1)


def by_chance(seed: int, longest: int = 12) -> Pace:
    chance = random.Random(seed)

    def some(unit: int) -> int:
        return chance.randint(0, longest)

    return Pace(some, some, some, some)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """Night: all GPUs are at work in training."""
    made = made_cloud(monkeypatch)
    yield made
    # Whatever else has happened.
    assert made.refused == 0
    assert made.taken <= made.limit


def made_cloud(monkeypatch: pytest.MonkeyPatch, pace: Pace = STAGGERED) -> Cloud:
    made = Cloud(64)
    made.add("training", pace=pace, ready=8)
    made.add("inference", pace=pace, off=8)
    use_clock(monkeypatch, made)
    return made


def use_clock(monkeypatch: pytest.MonkeyPatch, cloud: Cloud) -> None:
    for module in (engine, reconciliation):
        monkeypatch.setattr(module, "datetime", cloud.clock())


def shift(cloud: Cloud, order: ShiftOrder, process: Process | None = None) -> Shift:
    process = process or Process()
    return Shift(order, cloud.reader(process), Connected(cloud.sessions(process, order.key)), cloud.log)


def carry(cloud: Cloud, order: ShiftOrder = ORDER, process: Process | None = None, **how: Any) -> ShiftOutcome:
    return asyncio.run(shift(cloud, order, process).run(**how))


def is_as(cloud: Cloud, expected: Mapping[str, int]) -> bool:
    return cloud.ready() == cloud.allowed() == expected


@pytest.mark.parametrize("seed", range(10))
def test_there_and_back(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    cloud = made_cloud(monkeypatch, by_chance(seed))
    for desired in (DAY, NIGHT, {"training": 0, "inference": 8}, {"training": 3, "inference": 5}):
        outcome = carry(cloud, replace(ORDER, desired=desired))
        assert outcome.allocation == desired
        assert is_as(cloud, desired)
        assert cloud.reservations.known == {}
    assert cloud.refused == 0


@pytest.mark.parametrize("waits", ["leave", "leave_if_possible"])
def test_a_shift_leaves_once_no_target_has_anything_left_to_do(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    asked: list[UnitsSession] = []

    async def finish(session: UnitsSession) -> bool:
        asked.append(session)
        return len(asked) > len(cloud.targets)

    monkeypatch.setattr(UnitsSession, "finish", finish)
    asyncio.run(getattr(shift(cloud, ORDER), waits)())
    assert len(asked) == 2 * len(cloud.targets)


def test_units_flow_one_by_one(cloud: Cloud) -> None:
    cloud.targets["training"].pace = Pace(work=lambda unit: 20 * unit)
    carry(cloud)
    left, came = cloud.targets["training"].gone, cloud.targets["inference"].come
    assert len(left) == len(came) == 4
    # Each has come before the next one left.
    assert [come < gone for come, gone in zip(came, left[1:], strict=False)] == [True] * 3


def test_what_is_as_it_shall_be_is_left_alone(cloud: Cloud) -> None:
    outcome = carry(cloud, replace(ORDER, desired=NIGHT))
    assert outcome.allocation == NIGHT
    assert cloud.now < 10
    figures = outcome.describe()["figures"]
    assert (figures["release_seconds"], figures["arrive_seconds"]) == (None, None)


def test_nothing_leaves_and_nothing_comes_before_its_time(cloud: Cloud) -> None:
    order = replace(ORDER, wanted_at=START + 100 * SECOND, transfer=20 * SECOND)
    outcome = carry(cloud, order)
    assert min(cloud.targets["training"].gone) >= 80
    figures = outcome.figures
    assert figures.release_seconds is not None
    assert figures.arrive_seconds is not None
    assert figures.release_seconds + figures.arrive_seconds <= figures.total_seconds - 70


def test_growth_alone_waits_for_its_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud(64)
    cloud.add("training", ready=4)
    cloud.add("inference", off=4)
    use_clock(monkeypatch, cloud)
    outcome = carry(cloud, replace(ORDER, wanted_at=START + 50 * SECOND))
    assert min(cloud.targets["inference"].come) >= 50
    assert is_as(cloud, DAY)
    assert outcome.figures.release_seconds in (None, 0)
    assert outcome.figures.arrive_seconds is not None
    assert 0 <= outcome.figures.arrive_seconds < 20


def test_a_shrink_alone_is_over_when_the_machines_are_gone(cloud: Cloud) -> None:
    outcome = carry(cloud, replace(ORDER, desired={"training": 6, "inference": 0}))
    assert outcome.allocation == {"training": 6, "inference": 0}
    assert cloud.taken == 48


def test_gpus_of_others_are_left_to_them(cloud: Cloud) -> None:
    cloud.foreign, cloud.limit = 24, 88
    carry(cloud)
    assert is_as(cloud, DAY)
    assert cloud.taken == 24 + 64


# Failures


ALL = replace(ORDER, timeouts=HASTY, rollback="all")


def test_a_refusal_is_no_trouble_that_passes(cloud: Cloud) -> None:
    target = cloud.targets["inference"]

    def refuse(to: int) -> None:
        raise NotPermitted("Access denied", "scontrol")

    target.grow = refuse  # type: ignore[method-assign]
    with pytest.raises(ShiftFailed, match=r"Access denied.*what was moved stays where it is. Now training may have"):
        carry(cloud)
    with pytest.raises(ShiftFailed, match=r"Access denied.*rolled back"):
        carry(cloud, replace(OTHER, rollback="all"))


def test_while_usage_is_unknown_nothing_grows_and_then_it_goes_on(cloud: Cloud) -> None:
    cloud.unknown = [range(100)]
    carry(cloud)
    assert min(cloud.targets["inference"].come) >= 100
    assert is_as(cloud, DAY)


def test_if_usage_stays_unknown_nothing_grows_and_the_shift_says_so(cloud: Cloud) -> None:
    cloud.unknown = [range(NEVER)]
    outcome = carry(cloud, replace(ORDER, timeouts=HASTY))
    assert outcome.missing[-1].startswith("the number of free GPUs of the block is unknown")
    assert cloud.targets["inference"].come == []


def test_what_nobody_knows_to_be_free_goes_not_back_either(cloud: Cloud) -> None:
    cloud.unknown = [range(NEVER)]
    with pytest.raises(ShiftFailed, match=r"number of free GPUs.*the rollback failed.*an unknown number of GPUs"):
        carry(cloud, ALL)
    assert cloud.targets["training"].come == []


def test_what_was_allowed_and_asleep_before_is_so_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the block has may be allowed, as long as nobody wakes it."""
    cloud = Cloud(64)
    cloud.add("training", ready=4, sleeping=4)
    cloud.add("inference", ready=4, off=2, pace=Pace(boot=lambda unit: NEVER))
    use_clock(monkeypatch, cloud)
    with pytest.raises(ShiftFailed, match="rolled back"):
        carry(cloud, replace(ALL, desired={"training": 2, "inference": 6}))
    assert cloud.ready() == DAY
    assert cloud.allowed() == {"training": 8, "inference": 4}
    assert cloud.refused == 0


def test_what_is_asleep_beyond_the_block_does_not_keep_a_shift_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Cloud(64)
    cloud.add("training", ready=4, sleeping=4)
    cloud.add("inference", ready=4)
    use_clock(monkeypatch, cloud)
    assert carry(cloud, replace(ORDER, timeouts=HASTY)).allocation == DAY


# Trouble


@pytest.mark.parametrize("start", [0, 1, 7, 20])
def test_trouble_that_passes_undoes_nothing(cloud: Cloud, start: int) -> None:
    cloud.trouble = [range(start, start + 100)]
    assert carry(cloud).allocation == DAY
    assert is_as(cloud, DAY)
    assert cloud.reservations.known == {}


@pytest.mark.parametrize(
    "error", [NebiusUnauthenticated("expired"), ConnectFailed("no key"), ConnectionMistake("no host")], ids=str
)
def test_credentials_are_waited_for_and_somebody_is_told(cloud: Cloud, error: Exception) -> None:
    cloud.trouble, cloud.reason = [range(5, 105)], error
    assert carry(cloud).allocation == DAY
    assert is_as(cloud, DAY)
    assert sum("The owner of the Airflow connection has to mend it" in line for line in cloud.log.said) == 1


def test_after_trouble_sessions_are_opened_again(cloud: Cloud) -> None:
    carry(cloud)
    assert cloud.connected == 1
    cloud.trouble = [range(cloud.now + 5, cloud.now + 10)]
    carry(cloud, replace(OTHER, desired=NIGHT))
    assert cloud.connected >= 1 + 2


def test_trouble_that_lasts_is_a_failure_and_is_undone_once_it_is_over(cloud: Cloud) -> None:
    cloud.trouble = [range(10, 60)]
    with pytest.raises(ShiftFailed, match=r"no step succeeded for 0:00:30.*rolled back"):
        carry(cloud, ALL)
    assert is_as(cloud, NIGHT)


def test_trouble_that_never_ends_is_told(cloud: Cloud) -> None:
    cloud.trouble = [range(10, NEVER)]
    with pytest.raises(CapacityError, match=r"no step succeeded"):
        carry(cloud, replace(ORDER, timeouts=HASTY))


def test_two_short_troubles_while_waiting_for_a_turn_are_not_a_long_one(cloud: Cloud) -> None:
    with pytest.raises(Death):
        carry(cloud, OTHER, Process(dies_at=60))
    began = cloud.now
    cloud.trouble = [range(began + 5, began + 8), range(began + 95, began + 98)]

    async def is_alive(record: ShiftRecord) -> bool:
        return cloud.now < began + 150

    assert carry(cloud, replace(ORDER, timeouts=HASTY), is_alive=is_alive).allocation == DAY


# Turns


async def _yes(record: ShiftRecord) -> bool:
    return True


async def _no(record: ShiftRecord) -> bool:
    return False


def test_two_shifts_wait_for_each_other(cloud: Cloud) -> None:
    back = replace(OTHER, desired=NIGHT)

    async def both() -> None:
        first = asyncio.ensure_future(shift(cloud, ORDER).run(_yes))
        while not cloud.targets["training"].gone:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(shift(cloud, back).run(_yes))
        assert (await first).allocation == DAY
        assert (await second).allocation == NIGHT

    asyncio.run(both())
    assert is_as(cloud, NIGHT)
    assert cloud.targets["training"].come[0] > cloud.targets["inference"].come[-1]
    assert sum("Waiting for task" in line for line in cloud.log.said) == 1


def test_who_does_not_want_to_wait_is_told_who_has_the_block(cloud: Cloud) -> None:
    with pytest.raises(Death):
        carry(cloud, OTHER, Process(dies_at=60))
    at_work, allowed = cloud.ready()["training"], cloud.allowed()["inference"]
    with pytest.raises(CapacityBusy, match="task shifts/manual__2/shift/-1"):
        carry(cloud, replace(ORDER, wait_for_lease=False), is_alive=_yes)
    assert (cloud.ready()["training"], cloud.allowed()["inference"]) == (at_work, allowed)
    assert len(cloud.reservations.known) == 1


def test_a_shift_that_is_no_more_is_taken_over(cloud: Cloud) -> None:
    with pytest.raises(Death):
        carry(cloud, OTHER, Process(dies_at=60))
    assert carry(cloud, is_alive=_no).allocation == DAY
    assert cloud.reservations.known == {}


def test_who_never_had_the_block_undoes_nothing_of_the_shift_that_has_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cordons and comments are named after the block, for any later shift to undo them."""
    ended, forgotten = list[str](), list[tuple[str, str]]()

    async def finish(session: UnitsSession) -> None:
        ended.append(session.key)

    async def forget(session: UnitsSession, key: str) -> None:
        forgotten.append((session.key, key))

    monkeypatch.setattr(UnitsSession, "finish", finish)
    monkeypatch.setattr(UnitsSession, "forget", forget)
    with pytest.raises(Death):
        carry(cloud, OTHER, Process(dies_at=60))
    with pytest.raises(CapacityBusy):
        carry(cloud, replace(ORDER, wait_for_lease=False), is_alive=_yes)
    # One that has lost the block in the midst of a step may have reserved nodes since, under its own name.
    assert (ended, forgotten) == ([], [(ORDER.key, ORDER.key)] * 2)
    carry(cloud, OTHER)
    assert ended == [OTHER.key] * 2


def test_a_target_that_cannot_be_left_keeps_neither_the_others_nor_the_block(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, forgotten = list[UnitsSession](), list[str]()

    async def finish(session: UnitsSession) -> None:
        ended.append(session)
        if len(ended) == 1:
            raise NotPermitted("Access/permission denied", "scontrol")

    async def forget(session: UnitsSession, key: str) -> None:
        forgotten.append(key)

    monkeypatch.setattr(UnitsSession, "finish", finish)
    monkeypatch.setattr(UnitsSession, "forget", forget)
    assert carry(cloud).state == "done"
    assert (len(ended), cloud.reservations.known) == (2, {})
    # No node stays reserved that could not be drained.
    assert forgotten == [ORDER.key] * 2
    assert "The reservations of the shift could not be removed: " in cloud.log.said[-1]


def test_who_has_lost_the_block_moves_nothing_more(cloud: Cloud) -> None:
    async def go() -> None:
        running = asyncio.ensure_future(shift(cloud, ORDER).run())
        while not cloud.targets["training"].gone:
            await asyncio.sleep(0)
        cloud.reservations.known.clear()
        before = cloud.allowed()
        with pytest.raises(LeaseLost, match="was deleted"):
            await running
        assert sum(cloud.allowed().values()) <= sum(before.values()) + 1

    asyncio.run(go())
    assert cloud.targets["training"].come == []


# Deaths


def deaths(cloud: Cloud, order: ShiftOrder) -> int:
    """How many steps a process has to live for a whole shift."""
    process = Process()
    with suppress(ShiftFailed):
        carry(cloud, order, process)
    return process.steps


def test_whoever_goes_on_after_a_death_at_any_step_gets_there(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = deaths(made_cloud(monkeypatch), ORDER)
    assert steps > 100
    for step in range(1, steps + 1):
        cloud = made_cloud(monkeypatch)
        with pytest.raises(Death):
            carry(cloud, ORDER, Process(dies_at=step))
        assert carry(cloud).allocation == DAY
        assert is_as(cloud, DAY)
        assert cloud.refused == 0
        assert cloud.reservations.known == {}


def test_whoever_goes_on_after_a_death_goes_on_with_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = replace(ALL, timeouts=Timeouts(release=9 * SECOND, free=9 * SECOND, ready=9 * SECOND))

    def doomed() -> Cloud:
        cloud = made_cloud(monkeypatch)
        cloud.targets["inference"].pace = Pace(boot=lambda unit: NEVER)
        return cloud

    steps = deaths(doomed(), hasty)
    for step in range(1, steps + 1, 3):
        cloud = doomed()
        with pytest.raises(Death):
            carry(cloud, hasty, Process(dies_at=step))
        with pytest.raises(ShiftFailed, match=r"inference is not ready.*rolled back"):
            carry(cloud, hasty)
        assert is_as(cloud, NIGHT), step
        assert cloud.refused == 0
        assert cloud.reservations.known == {}


def test_many_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = made_cloud(monkeypatch, by_chance(1))
    for life in range(1, 1000):
        try:
            outcome = carry(cloud, ORDER, Process(dies_at=20 + life))
            break
        except Death:
            continue
    assert outcome.allocation == DAY
    assert cloud.refused == 0


# Before anything is moved


@pytest.mark.parametrize(
    ("desired", "said"),
    [
        ({"training": 8, "inference": 1}, "72 GPUs are desired, but block capacityblockgroup-1 has 64"),
        ({"training": 6, "inference": 2}, "has only 32 from"),
    ],
)
def test_what_does_not_fit_is_refused(cloud: Cloud, desired: dict[str, int], said: str) -> None:
    async def shrinking() -> Any:
        return replace(cloud.block(), next_change_at=START + timedelta(hours=1), next_change_to=32)

    order = replace(ORDER, desired=desired, until=START + timedelta(hours=2))
    with pytest.raises(CapacityMistake, match=said):
        asyncio.run(Shift(order, shrinking, Connected(cloud.sessions(Process(), "k")), cloud.log).check())
    assert is_as(cloud, NIGHT)


def test_what_fits_only_once_the_block_has_grown_may_be_planned_for_then(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, grows_at = list[int](), START + timedelta(hours=1)

    async def growing() -> Any:
        return replace(cloud.block(), next_change_at=grows_at, next_change_to=80)

    async def note(session: UnitsSession, units: int, block: CapacityBlock) -> None:
        limits.append(block.limit)

    def check(wanted_at: datetime) -> None:
        order = replace(ORDER, desired={"training": 8, "inference": 2}, wanted_at=wanted_at)
        asyncio.run(Shift(order, growing, Connected(cloud.sessions(Process(), "k")), cloud.log).check())

    monkeypatch.setattr(UnitsSession, "check", note)
    check(grows_at)
    assert limits == [80, 80]
    with pytest.raises(CapacityMistake, match="80 GPUs are desired, but block capacityblockgroup-1 has 64"):
        check(grows_at - timedelta(seconds=1))


def test_a_block_that_is_not_active_is_refused(cloud: Cloud) -> None:
    async def shutting() -> Any:
        return replace(cloud.block(), state="shutting")

    with pytest.raises(CapacityMistake, match="is shutting"):
        asyncio.run(Shift(ORDER, shutting, Connected(cloud.sessions(Process(), "k")), cloud.log).check())


def test_the_plan_is_of_the_world_as_it_is(cloud: Cloud) -> None:
    async def go() -> str:
        one = shift(cloud, ORDER)
        return str(await one.plan(await one.check()))

    said = asyncio.run(go())
    assert said.startswith("training goes from 8 to 4 nodes\ninference goes from 0 to 4 replicas\n1. ")
    assert is_as(cloud, NIGHT)
