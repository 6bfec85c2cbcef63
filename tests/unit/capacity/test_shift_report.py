"""The figures of a shift, however it ends, and whatever process tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_soperator.capacity.holdings import Holding
from airflow_provider_soperator.capacity.order import ShiftOrder, Timeouts
from airflow_provider_soperator.capacity.shift import Shift, ShiftFailed
from airflow_provider_soperator.capacity.targets.protocol import Session
from airflow_provider_soperator.errors import CapacityError
from tests.unit.capacity.test_shift import DAY, ORDER, made_cloud
from tests.unit.capacity.world import NEVER, SECOND, START, Cloud, Connected, Death, NoMachines, Pace, Process

HASTY = Timeouts(release=30 * SECOND, free=30 * SECOND, ready=30 * SECOND, out_of_reach=30 * SECOND)


class Machines(NoMachines):
    """In the place of the cloud's API: what was bought, and what could not be checked."""

    def __init__(self, cloud: Cloud, bought: int | None) -> None:
        super().__init__()
        self._cloud, self._count = cloud, bought

    async def check(self, sessions: Mapping[str, Session], gpus: Mapping[str, int], block: Any) -> None:
        self._unchecked = ["it is unknown if machines of training can be bought"]

    async def bought(self, sessions: Mapping[str, Session]) -> int | None:
        found = sum(one.gpus * len(one.bought) for one in self._cloud.targets.values())
        return None if self._count is None else self._count + found


def shift(cloud: Cloud, order: ShiftOrder, process: Process | None = None, bought: int | None = 0) -> Shift:
    process = process or Process()
    connections = Connected(cloud.sessions(process, order.key), machines=Machines(cloud, bought))
    return Shift(order, cloud.reader(process), connections, cloud.log)


def report(one: Shift, state: str) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        with suppress(CapacityError):
            await one.run()
        return await one.report(state)

    return asyncio.run(run())


def test_a_shift_that_is_done_reports_what_its_outcome_has(monkeypatch: pytest.MonkeyPatch) -> None:
    one = shift(made_cloud(monkeypatch), ORDER, bought=8)
    outcome = asyncio.run(one.run())
    said = asyncio.run(one.report("done"))
    assert said["figures"] == outcome.figures.describe()
    assert (said["state"], said["bought_gpus"]) == ("done", 8)
    assert set(said["gpu_hours"]) == {"training", "inference"}
    assert outcome.figures.target_gpu_seconds["training"] > outcome.figures.target_gpu_seconds["inference"] > 0
    # The GPUs that have left, and are no one's yet.
    assert outcome.figures.unused_gpu_seconds > 0


@pytest.mark.parametrize("bought", [0, 16, None])
def test_what_was_bought_is_measured(monkeypatch: pytest.MonkeyPatch, bought: int | None) -> None:
    one = shift(made_cloud(monkeypatch), ORDER, bought=bought)
    assert asyncio.run(one.run()).figures.bought_gpus == bought


@pytest.mark.parametrize("buys", [False, True])
def test_what_somebody_takes_before_a_claim_is_bought_where_the_group_may_buy(
    monkeypatch: pytest.MonkeyPatch, buys: bool
) -> None:
    cloud = made_cloud(monkeypatch, Pace(claim=lambda unit: 3))
    inference = cloud.targets["inference"]
    inference.buys = buys
    grow = inference.grow

    def robbed(to: int) -> None:
        # Nobody else had GPUs when the last unit was decided on.
        if to == 4:
            cloud.foreign = 8
        grow(to)

    inference.grow = robbed  # type: ignore[method-assign]
    outcome = asyncio.run(shift(cloud, replace(ORDER, timeouts=HASTY)).run())
    assert outcome.figures.bought_gpus == (8 if buys else 0)
    assert (outcome.state, cloud.ready()["inference"]) == (("done", 4) if buys else ("partial", 3))


def test_the_plan_says_what_was_bought_and_what_nobody_has_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def planned(bought: int | None) -> tuple[str, ...]:
        one = shift(made_cloud(monkeypatch), ORDER, bought=bought)
        return (await one.plan(await one.check())).notes

    unchecked, bought = asyncio.run(planned(8))[:2]
    assert unchecked == "it is unknown if machines of training can be bought"
    assert bought == "8 GPUs of the targets' machines were bought, and are not of the block"
    assert "bought, and are" not in " ".join(asyncio.run(planned(None)))


@pytest.mark.parametrize("rollback", ["none", "all"])
def test_a_shift_that_fails_reports_what_it_has_cost(monkeypatch: pytest.MonkeyPatch, rollback: Any) -> None:
    cloud = made_cloud(monkeypatch)
    cloud.targets["inference"].pace = Pace(boot=lambda unit: NEVER)
    one = shift(cloud, replace(ORDER, timeouts=HASTY, rollback=rollback), bought=8)
    said = report(one, "failed")
    figures = said["figures"]
    assert figures["total_seconds"] > 30
    assert figures["late_seconds"] > 30
    assert figures["limbo_gpu_seconds"] > 8 * 30
    assert (figures["bought_gpus"], figures["jobs_killed"]) == (8, 0)


def test_a_failure_tells_if_all_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = made_cloud(monkeypatch)
    cloud.targets["inference"].pace = Pace(boot=lambda unit: NEVER)
    with pytest.raises(ShiftFailed) as failed:
        asyncio.run(shift(cloud, replace(ORDER, timeouts=HASTY, rollback="all")).run())
    assert failed.value.is_rolled_back
    cloud.unknown = [range(NEVER)]
    with pytest.raises(ShiftFailed) as failed:
        asyncio.run(shift(cloud, replace(ORDER, key="2", timeouts=HASTY, rollback="all")).run())
    assert not failed.value.is_rolled_back


def test_what_cannot_be_asked_any_more_is_unknown_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = made_cloud(monkeypatch)
    cloud.trouble = [range(60, NEVER)]
    said = report(shift(cloud, replace(ORDER, timeouts=HASTY)), "failed")
    assert said["figures"]["total_seconds"] > 0
    assert said["figures"]["target_gpu_seconds"]["training"] > 0


def test_gpu_seconds_outlast_the_process_that_has_counted_them(monkeypatch: pytest.MonkeyPatch) -> None:
    order = replace(ORDER, wanted_at=START + 3000 * SECOND)
    whole = asyncio.run(shift(made_cloud(monkeypatch), order).run()).figures
    cloud = made_cloud(monkeypatch)
    with pytest.raises(Death):
        asyncio.run(shift(cloud, order, Process(dies_at=8000)).run())
    assert 500 < cloud.now < 2500
    after = asyncio.run(shift(cloud, order).run()).figures
    for name, seconds in whole.target_gpu_seconds.items():
        assert after.target_gpu_seconds[name] == pytest.approx(seconds, rel=0.05)


def test_what_is_reserved_and_idle_in_the_lead_is_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = made_cloud(monkeypatch)
    training = cloud.targets["training"]
    see = training.see

    def reserved() -> Holding:
        # Two nodes are idle until they are told to go.
        return replace(see(), idle=2 if not training.gone else 0)

    training.see = reserved  # type: ignore[method-assign]
    figures = asyncio.run(shift(cloud, replace(ORDER, wanted_at=START + 100 * SECOND)).run()).figures
    assert 2 * 8 * 80 < figures.idle_gpu_seconds < 2 * 8 * 120
    assert cloud.allowed() == DAY
