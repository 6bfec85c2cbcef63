"""How often a cluster is asked."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from airflow_provider_soperator.client.pace import LONGEST_SILENCE, SHORTEST, Pace
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig


def config(*parameters: str) -> ClusterConfig:
    return ClusterConfig(
        version="24.11.5", accounting_storage="accounting_storage/slurmdbd", slurmctld_parameters=parameters
    )


@pytest.mark.parametrize(
    ("youngest", "longest", "effort", "seconds"),
    [
        (0, 10, 0, 1),
        (10, 10, 0, 1),
        (45, 10, 0, 4.5),
        (100, 10, 0, 10),
        (86400, 10, 0, 10),
        (86400, 60, 0, 60),
        (86400, 0.1, 0, 1),
        (0, 10, 0.3, 3),
        (100, 10, 3, 30),
    ],
)
def test_the_interval_follows_the_youngest_who_waits(
    youngest: float, longest: float, effort: float, seconds: float
) -> None:
    assert Pace().after_answer(youngest=youngest, longest=longest, effort=effort) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("parameters", "seconds"),
    [
        ((), 1),
        (("rl_bucket_size=40", "rl_refill_rate=4", "rl_refill_period=60"), 1),
        (("rl_enable",), 3),
        (("rl_enable", "rl_bucket_size=40", "rl_refill_rate=4", "rl_refill_period=60"), 90),
        (("rl_enable", "rl_refill_rate=10"), 1),
    ],
)
def test_half_of_a_rate_limit_is_left_to_others(parameters: tuple[str, ...], seconds: float) -> None:
    pace = Pace()
    pace.respect(config(*parameters))
    assert pace.soonest(effort=0) == pace.after_answer(longest=1) == seconds


def test_a_limit_that_is_lifted_is_no_limit() -> None:
    pace = Pace()
    pace.respect(config("rl_enable", "rl_refill_rate=1", "rl_refill_period=60"))
    pace.respect(config())
    assert pace.after_answer() == SHORTEST


@pytest.mark.parametrize(
    ("storage", "age", "seconds"),
    [
        ("accounting_storage/slurmdbd", 300, 900),
        ("", 300, 100),
        ("accounting_storage/none", 60, 20),
        # Even where the queue forgets at once, a cluster is not asked all the time.
        ("", 2, SHORTEST),
    ],
)
def test_without_accounting_no_job_can_end_and_be_forgotten_between_two_polls(
    storage: str, age: int, seconds: float
) -> None:
    pace = Pace()
    pace.respect(ClusterConfig(version="24.11.5", accounting_storage=storage, min_job_age=timedelta(seconds=age)))
    assert pace.after_answer(youngest=86400, longest=900) == seconds
    # Nor if the answers are slow, or there are none.
    assert pace.soonest(effort=90) == seconds
    assert max(pace.after_failure() for _ in range(20)) <= min(seconds, LONGEST_SILENCE)


def test_the_limit_of_the_rate_comes_before_that_of_the_queue() -> None:
    pace = Pace()
    pace.respect(ClusterConfig(version="24.11.5", slurmctld_parameters=("rl_enable", "rl_refill_period=300")))
    assert pace.after_answer(longest=10) > 300


def test_silence_is_met_with_more_and_more_patience() -> None:
    pace = Pace()
    pauses = [pace.after_failure() for _ in range(20)]
    for number, pause in enumerate(pauses, 1):
        longest = min(LONGEST_SILENCE, 2.0**number)
        assert longest / 2 <= pause <= longest
    # Spread: many wait for the same cluster to come back.
    assert all(one != other for one, other in itertools.pairwise(pauses))
    pace.after_answer()
    assert pace.after_failure() <= 2
