"""When nodes are reserved for a handover: from how long jobs have lasted, and what waits."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from statistics import fmean
from typing import Any

import pytest

from airflow_provider_soperator.capacity.targets.reservation_timing import (
    BusyNode,
    JobHistory,
    WaitingJob,
    limit_of,
    to_reserve,
)
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.states import JobState

START = datetime(2026, 11, 21, 20, tzinfo=timezone.utc)
MINUTE = 60.0
#: Without a limit, and of ten minutes.
ENDLESS = WaitingJob(None, [10 * MINUTE])


def job(number: int, lasted: float | None = None, limit: float | None = None, **of: Any) -> Job:
    """A job that has ended, or runs."""
    return Job(
        id=JobId(number),
        state=JobState.parse("RUNNING" if lasted is None else "COMPLETED"),
        started=START,
        ends=None if lasted is None else START + timedelta(seconds=lasted),
        time_limit=timedelta(seconds=limit) if limit else NoDuration.UNLIMITED,
        **of,
    )


def history(*jobs: Job) -> JobHistory:
    seen = JobHistory()
    # Each look shows the same ones.
    for _ in range(2):
        seen.see(jobs)
    return seen


@pytest.mark.parametrize(
    ("ended", "asked", "ran", "expected"),
    [
        pytest.param([], job(0), 5.0, [], id="nothing is known of jobs without limits"),
        pytest.param([], job(0, limit=60), 5.0, [60.0], id="a limit is known"),
        pytest.param([(60, 30.0), (120, 30.0)], job(0, limit=600), 0.0, [150.0, 300.0], id="part of the limit"),
        pytest.param([(None, 90.0)], job(0, limit=60), 0.0, [60.0], id="at most the limit"),
        pytest.param([(None, 30.0), (None, 90.0)], job(0), 40.0, [90.0], id="those that last longer"),
        pytest.param([(None, 30.0)], job(0), 40.0, [80.0], id="it has outlasted all others"),
        pytest.param([(60, 30.0)], job(0, limit=60), 40.0, [60.0], id="it may come to its limit"),
    ],
)
def test_a_job_lasts_as_others_have(
    ended: list[tuple[float | None, float]], asked: Job, ran: float, expected: list[float]
) -> None:
    seen = history(*(job(number, lasted, limit) for number, (limit, lasted) in enumerate(ended, 1)))
    assert sorted({*seen.durations(asked, ran)}) == expected


def test_jobs_of_the_same_name_tell_most() -> None:
    mine = [job(number, 10.0, name=f"fit.af-q6befiawjvk{'abcde'[number]}", user="me") for number in range(5)]
    others = [job(10 + number, 500.0, name="train", user="you", partition="main") for number in range(5)]
    seen = history(*mine, *others)
    assert {*seen.durations(job(0, name="fit", user="me", partition="main"))} == {10.0}
    assert {*seen.durations(job(0, name="new", user="you", partition="main"))} == {500.0}
    assert {*seen.durations(job(0, name="new", user="you", partition="other"))} == {10.0, 500.0}
    assert limit_of(job(0)) is None


def four(*ends: float) -> dict[str, BusyNode]:
    return {f"worker-{number}": BusyNode([60 * end]) for number, end in enumerate(ends)}


def reserved(nodes: dict[str, BusyNode], count: int, left: float, *waiting: WaitingJob) -> list[int]:
    return sorted(int(name[-1]) for name in to_reserve(nodes, count, left * MINUTE, waiting or [ENDLESS]))


def test_while_a_job_more_fits_no_node_is_reserved() -> None:
    nodes = four(1, 2, 3, 4)
    assert reserved(nodes, 2, 90) == []
    assert reserved(nodes, 2, 15) == []
    assert reserved(nodes, 2, 4) == [2, 3]
    # All of them are to go, and each would stand idle: they are reserved before they are late.
    assert reserved(nodes, 4, 5) == [0, 1, 2, 3]


def test_with_short_jobs_that_wait_nodes_are_reserved_for_the_whole_lead() -> None:
    short, long = WaitingJob(5 * MINUTE, [5 * MINUTE]), WaitingJob(50 * MINUTE, [50 * MINUTE])
    assert reserved(four(1, 2, 3, 4), 2, 40, short, long) != []
    # By its limit it does not fit, but it does by what it lasts.
    assert reserved(four(1, 2, 3, 4), 2, 40, WaitingJob(50 * MINUTE, [20 * MINUTE])) == []


def test_the_first_that_fall_idle_are_kept_if_others_would_be_late() -> None:
    assert reserved(four(1, 1, 20, 30), 2, 4) == [0, 1]
    assert reserved(four(3, 4, 20, 30), 3, 4) == [0, 1, 2, 3]
    # Once nodes are late, any will do; but the room that is left on another one is not kept empty.
    late = four(3, 4, 20, 30) | {
        "worker-3": BusyNode([1.0], has_room=True),
        "worker-4": BusyNode([99.0], has_room=True),
    }
    assert reserved(late, 1, 0) == [0, 1, 2, 3]


def played(seed: int, *, for_whole_lead: bool) -> tuple[float, float]:
    """Node-seconds idle before, and late after, four of eight nodes leave, under jobs that do not come to their limits.

    Jobs of one minute are told in time from those of two; both end early. Slurm starts what the reservation lets it.
    """
    dice, seen, idle, late = random.Random(seed), JobHistory(), 0.0, 0.0
    numbers = iter(range(10**6))

    def new() -> list[Any]:
        limit = dice.choice((60.0, 60.0, 120.0))
        return [limit, limit * dice.uniform(0.4, 0.95), 0.0]

    queue = [new() for _ in range(30)]
    at: dict[str, list[Any] | None] = {f"worker-{number}": queue.pop(0) for number in range(8)}
    to_go, second = 4, -120
    while to_go:
        for name, one in at.items():
            if one and second + 120 >= one[2] + one[1]:
                seen.see([job(next(numbers), one[1], one[0])])
                at[name] = None
        if second >= 0:
            for name in [name for name, one in at.items() if one is None][:to_go]:
                del at[name]
                to_go, late = to_go - 1, late + second
        nodes = {
            name: BusyNode(
                [
                    max(0.0, lasts - second - 120 + one[2])
                    for lasts in seen.durations(job(0, limit=one[0]), second + 120 - one[2])
                ]
                if one
                else [0.0]
            )
            for name, one in at.items()
        }
        waiting = [WaitingJob(one[0], seen.durations(job(0, limit=one[0]))) for one in queue[:20]]
        kept = frozenset(sorted(at)[:to_go]) if for_whole_lead else to_reserve(nodes, to_go, max(0, -second), waiting)
        for name in [name for name, one in at.items() if one is None]:
            fitting = [one for one in queue if name not in kept or one[0] <= -second]
            if fitting:
                queue.remove(fitting[0])
                queue.append(new())
                at[name] = [*fitting[0][:2], float(second + 120)]
            elif second < 0:
                idle += 1
        second += 1
    return idle, late


def test_it_costs_half_of_what_a_reservation_for_the_whole_lead_does() -> None:
    late_ones, whole = ([played(seed, for_whole_lead=how) for seed in range(8)] for how in (False, True))
    idle, late = (fmean(one[part] for one in late_ones) for part in (0, 1))
    assert idle <= 0.5 * fmean(one[0] for one in whole)
    assert idle + late <= 0.6 * fmean(sum(one) for one in whole)
