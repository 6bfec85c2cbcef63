"""What a shift has taken, from looks at the world that were made by hand."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.capacity.figures import Meter
from airflow_provider_soperator.capacity.holdings import Holding, World
from airflow_provider_soperator.capacity.targets.protocol import JobLosses
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

START = datetime(2026, 11, 21, 20, tzinfo=timezone.utc)
GPUS = {"training": 8, "inference": 4}


def look(training: int, inference: int, finishing: int = 0) -> World:
    holdings = {
        "training": Holding(allowed=8, held=8, ready=training, finishing=finishing),
        "inference": Holding(allowed=8, held=8, ready=inference),
    }
    return World(CapacityBlock(id="b", limit=64, usage=64), holdings, GPUS)


def limbo(*looks: tuple[int, World]) -> float:
    meter = Meter(GPUS)
    for seconds, world in looks:
        meter.see(world, START + timedelta(seconds=seconds))
    return meter.figures({}, START, START).limbo_gpu_seconds


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        # Nothing changes.
        ([(0, look(2, 2)), (60, look(2, 2))], 0),
        # A node is away from the first look that shows it until the one that shows what it has become.
        ([(0, look(2, 0)), (10, look(1, 0)), (40, look(1, 0)), (50, look(1, 2))], 8 * 40),
        # What is to go and works yet is no limbo.
        ([(0, look(2, 0)), (10, look(1, 0, finishing=1)), (20, look(1, 0)), (25, look(1, 2))], 8 * 10),
        # Half of it has come.
        ([(0, look(2, 0)), (10, look(1, 0)), (20, look(1, 1)), (30, look(1, 2))], 8 * 10 + 4 * 10),
        # What has come beside, and goes again, is missed from then on.
        ([(0, look(1, 0)), (10, look(1, 2)), (20, look(1, 0)), (30, look(1, 0))], 8 * 20),
        # One look sees no time.
        ([(0, look(2, 2))], 0),
        ([], 0),
    ],
)
def test_limbo_is_what_could_be_used_and_is_not(looks: list[tuple[int, World]], expected: float) -> None:
    assert limbo(*looks) == expected


def lead(idle: int, usage: int = 64, held: int = 4) -> World:
    """Training works, and has reserved nodes that are idle; inference has some units."""
    holdings = {
        "training": Holding(allowed=4, held=4, ready=4, idle=idle),
        "inference": Holding(allowed=held, held=held, ready=held),
    }
    return World(CapacityBlock(id="b", limit=64, usage=usage), holdings, GPUS)


def test_reserved_nodes_that_stand_idle_are_counted_and_are_no_limbo() -> None:
    meter = Meter(GPUS)
    for seconds, idle in ((0, 0), (60, 1), (90, 3), (100, 0)):
        meter.see(lead(idle), START + timedelta(seconds=seconds))
    figures = meter.figures({}, START, START)
    assert (figures.idle_gpu_seconds, figures.limbo_gpu_seconds) == (8 * 60 + 3 * 8 * 30, 0)
    assert figures.target_gpu_seconds == {"training": 32 * 100.0, "inference": 16 * 100.0}


def test_what_an_autoscaler_may_only_add_has_no_gpus() -> None:
    meter = Meter(GPUS)
    holdings = {"training": Holding(allowed=4, held=4, ready=4), "inference": Holding(allowed=4, held=1, ready=4)}
    for seconds in (0, 100):
        block = CapacityBlock(id="b", limit=64, usage=36)
        meter.see(World(block, holdings, GPUS), START + timedelta(seconds=seconds))
    assert meter.figures({}, START, START).target_gpu_seconds == {"training": 32 * 100.0, "inference": 4 * 100.0}


@pytest.mark.parametrize(
    ("usage", "held", "wished", "unused"),
    [
        pytest.param(56, 4, {"inference": 6}, 8, id="all that is free is wished for"),
        pytest.param(40, 4, {"inference": 6}, 8, id="more is free than is wished for"),
        pytest.param(56, 4, {"training": 4, "inference": 4}, 0, id="all have what is wished for"),
        pytest.param(56, 4, {}, 0, id="it is not wished for yet"),
    ],
)
def test_free_gpus_are_unused_if_somebody_is_to_have_them(
    usage: int, held: int, wished: dict[str, int], unused: int
) -> None:
    meter = Meter(GPUS)
    for seconds in (0, 10):
        meter.see(lead(0, usage, held), START + timedelta(seconds=seconds), wished)
    assert meter.figures({}, START, START).unused_gpu_seconds == unused * 10


def test_an_unknown_usage_is_not_unused() -> None:
    meter = Meter(GPUS)
    unknown = World(CapacityBlock(id="b", limit=64, usage=None), lead(0).holdings, GPUS)
    for seconds in (0, 10):
        meter.see(unknown, START + timedelta(seconds=seconds), {"inference": 8})
    assert meter.figures({}, START, START).unused_gpu_seconds == 0


def test_another_process_goes_on_with_the_sums() -> None:
    looks = [(0, look(2, 0)), (10, look(1, 0)), (40, look(1, 0)), (50, look(1, 2))]
    sums: dict[str, float] = {}
    for seconds, world in looks:
        meter = Meter(GPUS, sums)
        meter.see(world, START + timedelta(seconds=seconds))
        sums = meter.sums
    assert Meter(GPUS, sums).figures({}, START, START).limbo_gpu_seconds == 8 * 40


MARKS = {
    name: START.timestamp() + seconds
    for name, seconds in (("began", 0), ("leaving", 30), ("released", 90), ("ready", 140))
}


def test_parts_follow_on_each_other() -> None:
    losses = [JobLosses(ended=2), JobLosses(1, 2, 3, 4.56)]
    figures = Meter(GPUS).figures(MARKS, START + timedelta(seconds=100), START, losses, bought_gpus=8)
    assert figures.describe() == {
        "release_seconds": 60.0,
        "arrive_seconds": 50.0,
        "total_seconds": 140.0,
        "late_seconds": 40.0,
        "limbo_gpu_seconds": 0.0,
        "idle_gpu_seconds": 0.0,
        "unused_gpu_seconds": 0.0,
        "target_gpu_seconds": {"training": 0.0, "inference": 0.0},
        "jobs_ended": 3,
        "jobs_requeued": 2,
        "jobs_killed": 3,
        "lost_gpu_seconds": 4.6,
        "bought_gpus": 8,
    }


def test_what_was_in_time_is_not_late() -> None:
    assert Meter(GPUS).figures(MARKS, START + timedelta(seconds=200), START).late_seconds == 0


def test_a_part_that_did_not_happen_has_no_time() -> None:
    marks = {name: MARKS[name] for name in ("began", "ready")}
    figures = Meter(GPUS).figures(marks, START, START)
    assert (figures.release_seconds, figures.arrive_seconds, figures.total_seconds) == (None, None, 140)


def test_what_has_not_arrived_is_late_by_now() -> None:
    now = START + timedelta(seconds=500)
    figures = Meter(GPUS).figures({"began": START.timestamp()}, START + timedelta(seconds=200), now)
    assert (figures.total_seconds, figures.late_seconds, figures.arrive_seconds) == (500, 300, None)


def test_a_report_has_hours_and_says_what_is_unknown() -> None:
    meter = Meter(GPUS, {":training": 36000.0, "idle": 7200.0, "usable": 64, "at": 0})
    assert meter.figures({}, START, START).report() == {
        "seconds": 0.0,
        "gpu_hours": {"training": 10.0, "inference": 0.0},
        "idle_gpu_hours": 2.0,
        "limbo_gpu_hours": 0.0,
        "unused_gpu_hours": 0.0,
        "lost_gpu_hours": None,
        "bought_gpus": None,
        "jobs": {"ended": None, "requeued": None, "killed": None},
    }
