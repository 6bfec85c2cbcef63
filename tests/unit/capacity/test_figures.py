"""What a shift has taken, from looks at the world that were made by hand."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_soperator.capacity.figures import JobLosses, Meter
from airflow_provider_soperator.capacity.holdings import Holding, World
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
    return meter.figures({"ready": START.timestamp()}, START, []).limbo_gpu_seconds


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


MARKS = {
    name: START.timestamp() + seconds
    for name, seconds in (("began", 0), ("leaving", 30), ("released", 90), ("ready", 140))
}


def test_parts_follow_on_each_other() -> None:
    figures = Meter(GPUS).figures(MARKS, START + timedelta(seconds=100), [JobLosses(ended=2), JobLosses(1, 2, 3, 4.56)])
    assert figures.describe() == {
        "release_seconds": 60.0,
        "arrive_seconds": 50.0,
        "total_seconds": 140.0,
        "late_seconds": 40.0,
        "limbo_gpu_seconds": 0.0,
        "jobs_ended": 3,
        "jobs_requeued": 2,
        "jobs_killed": 3,
        "lost_gpu_seconds": 4.6,
        "bought_gpus": 0,
    }


def test_what_was_in_time_is_not_late() -> None:
    assert Meter(GPUS).figures(MARKS, START + timedelta(seconds=200), []).late_seconds == 0


def test_a_part_that_did_not_happen_has_no_time() -> None:
    marks = {name: MARKS[name] for name in ("began", "ready")}
    figures = Meter(GPUS).figures(marks, START, [])
    assert (figures.release_seconds, figures.arrive_seconds, figures.total_seconds) == (None, None, 140)
