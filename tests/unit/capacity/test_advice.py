"""Advice from a month: values as code that makes a DAG, and the best chosen by what it was made of."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.capacity import advice
from airflow_provider_soperator.capacity.advice import Proposal, source_of
from airflow_provider_soperator.capacity.allocation import bounds_of
from airflow_provider_soperator.capacity.demand import Demand
from airflow_provider_soperator.capacity.loads import MetricLoad, QueueLoad
from airflow_provider_soperator.capacity.month import DAY, Month
from airflow_provider_soperator.capacity.schedule import CapacitySchedule, Window
from airflow_provider_soperator.capacity.targets import NebiusNodeGroupTarget, SlurmNodesTarget
from airflow_provider_soperator.operators.capacity_dag import capacity_dag
from benchmarks.trace import run
from benchmarks.trace.load import load

BLOCK = replace(run.BLOCK, nodes=4)
TARGETS = [
    SlurmNodesTarget(name="training", nodes="worker-[0-3]"),
    NebiusNodeGroupTarget(name="inference", node_group="mk8snodegroup-e00inference"),
]


@pytest.fixture(scope="module")
def weeks() -> Month:
    month = load(5, gpus=32, busy=0.4, peak=14.0, days=14).month(BLOCK.service)
    # Few jobs, as this is not about them.
    return replace(month, jobs=[job for job in month.jobs if job.id % 10 == 0 and job.gpus <= 8])


def run_code(proposal: Proposal) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(advice.code(proposal, BLOCK.transfer), proposal.name, "exec"), names)
    return names


def test_each_proposal_is_code_that_makes_its_dag(weeks: Month) -> None:
    for one in advice.proposals(weeks, BLOCK):
        names = run_code(one)
        assert names["schedule"] == one.schedule
        assert names.get("demand") == one.demand
        capacity_dag("gpu_shifts", names["schedule"], TARGETS, "block", demand=names.get("demand")).validate()
        for segment in one.schedule.segments(weeks.at(0), weeks.at(7 * DAY)):
            sums = [sum(bounds_of(units)[end] for units in segment.allocation.values()) for end in (0, 1)]
            assert sums[0] <= BLOCK.nodes <= sums[1]


def test_no_proposal_gives_slurm_more_nodes_than_it_has(weeks: Month) -> None:
    block = replace(BLOCK, least=BLOCK.nodes - 2)
    for one in advice.proposals(weeks, block):
        for segment in one.schedule.segments(weeks.at(0), weeks.at(7 * DAY)):
            assert bounds_of(segment.allocation["training"])[1] <= 2
            assert bounds_of(segment.allocation["inference"])[0] >= block.least
    # Nor has it more of a schedule that leaves others to none.
    window = Window("daily 00:00 - 24:00", {"training": 2, "inference": 1})
    few = CapacitySchedule(timezone="UTC", windows=[window], lead="1h")
    all_of_it = replace(few, windows=[replace(window, allocation={"training": 2, "inference": block.least})])
    part = weeks.part(0, DAY)
    assert advice.outcome(Proposal("", few), part, block) == advice.outcome(Proposal("", all_of_it), part, block)


@pytest.mark.parametrize(
    "demand",
    [
        BLOCK.demand,
        Demand(
            [
                QueueLoad(target="training", partition="main", account='a"b', min_wait=timedelta(seconds=90)),
                MetricLoad(target="inference", query='sum(up{job="x"})', per_unit=2.5),
            ],
            calm=timedelta(minutes=20),
            max_moves=9,
        ),
    ],
)
def test_the_code_has_the_demand_that_was_judged(demand: Demand) -> None:
    schedule = CapacitySchedule(
        timezone="UTC",
        windows=[Window("daily 00:00 - 24:00", {"training": 2, "inference": 2}, name="always")],
        exceptions={"2026-12-24": "always"},
        lead="30m",
    )
    names = run_code(Proposal("one", schedule, demand))
    assert (names["schedule"], names["demand"]) == (schedule, demand)


def test_the_documents_have_code_as_it_is_printed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "demand.md").read_text()
    [text] = [
        one for one in re.findall(r"^```python\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE) if "\ndemand = " in one
    ]
    names: dict[str, Any] = {}
    exec(text, names)
    assert advice.code(Proposal("one", names["schedule"], names["demand"]), BLOCK.transfer) == text


def test_of_a_load_without_headroom_ranges_alone_are_proposed(weeks: Month) -> None:
    load = MetricLoad(target="inference", query="requests", per_unit=64)
    found = advice.proposals(weeks, replace(BLOCK, demand=Demand([load, BLOCK.queue])))
    assert [one.demand for one in found if one.demand] == [Demand([load, BLOCK.queue])] * 2


def test_windows_begin_where_the_need_changes() -> None:
    hours = {
        (weekday, hour): [9 if weekday and 8 <= hour < 20 else 2] for weekday in (True, False) for hour in range(24)
    }
    assert [when for when, _ in advice._times(hours, 3)] == [
        "mon-fri 00:00 - 08:00",
        "mon-fri 08:00 - 20:00",
        "mon-fri 20:00 - 24:00",
        "sat,sun 00:00 - 24:00",
    ]


def test_the_best_is_chosen_by_what_it_was_made_of(weeks: Month, monkeypatch: pytest.MonkeyPatch) -> None:
    made = advice.proposals
    monkeypatch.setattr(advice, "proposals", lambda *given: made(*given)[:9:4] + made(*given)[7:8])
    judged = advice.advise(weeks, BLOCK)
    kept = [one for one in judged if one.made_of.below <= advice.MOST_BELOW]
    assert 0 < len(kept) < len(judged) == 4
    assert judged[: len(kept)] == kept
    assert [one.made_of.wait for one in kept] == sorted(one.made_of.wait for one in kept)


def test_a_schedule_as_it_is_moves_nothing_within_a_range(weeks: Month) -> None:
    def schedule(inference: Any) -> CapacitySchedule:
        times = ("mon-fri 08:00 - 20:00", inference), ("fri 20:00 - mon 08:00", inference)
        more = Window("mon-thu 20:00 - 08:00", {"training": {"min": 0, "max": 4}, "inference": 2})
        windows = [Window(when, {"training": {"min": 0, "max": 4}, "inference": units}) for when, units in times]
        return CapacitySchedule(timezone="UTC", windows=[*windows, more], lead="1h")

    numbers, ranges = (Proposal("", schedule(units)) for units in (2, {"min": 1, "max": 3}))
    part = weeks.part(0, 2 * DAY)
    found = advice.outcome(ranges, replace(part, needs=[2, *part.needs[1:]]), BLOCK)
    assert found.moves == 0
    assert found == advice.outcome(numbers, replace(part, needs=[2, *part.needs[1:]]), BLOCK)
    assert source_of(numbers.schedule).count("Window(") == 3
