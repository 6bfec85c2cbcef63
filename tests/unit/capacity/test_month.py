"""A month is read as it was, or refused by file and line."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_soperator.capacity.loads import MetricLoad
from airflow_provider_soperator.capacity.month import (
    DAY,
    Month,
    held,
    month_of,
    needs_of,
    printed_jobs,
    printed_samples,
    whole_jobs,
)
from airflow_provider_soperator.errors import CapacityMistake
from benchmarks.trace.load import load
from benchmarks.trace.run import BLOCK

#: As ``sacct`` of Slurm 24.11 has printed it: a plain job, one without GPUs, one cancelled, one that runs, two elements
#: of an array and those that wait, a job that was requeued and runs again, and one that is held.
PRINTED = """\
JobID|State|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES
1|COMPLETED|1795656000|1795656000|1795656600|1795660200|3600|90|billing=8,cpu=8,gres/gpu=2,mem=8000M,node=1
22|COMPLETED|1795656302|1795656302|1795656303|1795656304|1|3|billing=2,cpu=2,mem=2000M,node=1
25|CANCELLED by 0|1795656302|1795656302|1795656305|1795656328|23|30|billing=8,cpu=8,gres/gpu=2,mem=8000M,node=1
26|RUNNING|1795656302|1795656302|1795656305|Unknown|97|UNLIMITED|billing=8,cpu=8,gres/gpu=2,mem=8000M,node=1
21_1|COMPLETED|1795656302|1795656303|1795656305|1795656307|2|10|billing=4,cpu=4,gres/gpu=1,mem=4000M,node=1
21_2|COMPLETED|1795656302|1795656308|1795656308|1795656310|2|10|billing=4,cpu=4,gres/gpu=1,mem=4000M,node=1
21_[3-9%2]|PENDING|1795656302|1795656308|Unknown|Unknown|0|10|
24|REQUEUED|1795656302|1795656302|1795656305|1795657505|1200|60|billing=4,cpu=4,gres/gpu=1,mem=4000M,node=1
24|RUNNING|1795657505|1795657626|1795657680|Unknown|1800|60|billing=4,cpu=4,gres/gpu=1,mem=4000M,node=1
28|PENDING|1795656302|Unknown|Unknown|Unknown|0|UNLIMITED|
"""
START = 1795656000 // 60 * 60


def _answer(*values: float, step: int = 300, first: int = START) -> dict[str, Any]:
    points = [[first + step * number, str(value)] for number, value in enumerate(values)]
    return {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": points}]}}


def _rates(*answers: Any) -> tuple[datetime, list[float]]:
    samples: dict[int, float] = {}
    for answer in answers:
        samples |= printed_samples(answer if isinstance(answer, str) else json.dumps(answer), "requests.json")
    return held(samples, "requests.json")


def _read(printed: str, *answers: Any) -> Month:
    start, rates = _rates(*(answers or [_answer(*[1.0] * 20)]))
    needs = needs_of(BLOCK.service, rates)
    return month_of(printed_jobs(printed, "jobs.txt"), start, needs, timezone.utc, gpus=64, may_requeue=1.0)


def test_jobs_are_read_as_they_were() -> None:
    own = _read(PRINTED)
    # A job that was requeued is one, with all its runs, since it was eligible first.
    assert sorted((job.submitted, job.gpus, job.minutes, job.limit) for job in own.jobs) == [
        (0, 2, 60, 90),
        (5, 1, 1, 10),
        (5, 1, 1, 10),
        (5, 1, 50, 60),
        (5, 2, 1, 30),
        (5, 2, 2, 7 * DAY),
    ]
    assert own.left_out == {"never started": 2, "without GPUs": 1}
    # As in a replay, it waits again after that.
    assert own.waited == pytest.approx((10 + 3 * 3 / 60 + 2 / 60 + 54 / 60) / 6)
    assert "6 jobs of 0.1 days" in str(own)


def test_of_a_job_that_ran_before_what_is_left_is_read() -> None:
    own = _read(PRINTED, _answer(*[1.0] * 20, first=START + 1800))
    [first] = [job for job in own.jobs if job.gpus == 2]
    assert (first.submitted, first.minutes) == (0, 40)


def test_requests_are_added_up_and_hold_until_the_next() -> None:
    two = _answer(1.0, 2.0, float("nan"), 3.0)
    two["data"]["result"] *= 2
    later = _answer(5.0, 5.0, first=START + 1200)
    start, rates = _rates(two, later)
    assert rates == [2.0] * 5 + [4.0] * 10 + [6.0] * 5 + [5.0] * 6
    assert start == datetime.fromtimestamp(START, timezone.utc)
    own = _read(PRINTED, two, later)
    assert (own.at(0), len(own.needs)) == (start, len(rates))


ISO = PRINTED.replace("1795656600", "2026-11-25T23:30:00")


@pytest.mark.parametrize(
    ("printed", "answer", "said"),
    [
        ("", None, r"jobs.txt, line 1: there is no column JobID, State, .*: print it with `SLURM_TIME_FORMAT=%s sacct"),
        (ISO, None, r"jobs.txt, line 2: Start: '2026-11-25T23:30:00' is not a time .*SLURM_TIME_FORMAT=%s"),
        (PRINTED + "29|a|b\n", None, r"jobs.txt, line 12: it has 3 fields, not 9: print no column with free text"),
        (PRINTED.replace("\n22|", "\nx|"), None, r"jobs.txt, line 3: JobID: 'x' is not a Slurm job id"),
        (PRINTED, _answer(1.0, first=0), r"no job with GPUs ran from 1970-01-01 00:00 to .*6 at another time"),
        (PRINTED, "{\n,", r"requests.json, line 2: "),
        (PRINTED, {"status": "error"}, r"requests.json: it is no answer with series .*query_range"),
        (PRINTED, {"data": {"resultType": "vector", "result": []}}, r"requests.json: it is a vector: .*query_range"),
        (PRINTED, _answer(), r"requests.json: it has no sample"),
        (PRINTED, _answer(-1.0), r"requests.json: requests per second are below 0"),
        (PRINTED, _answer(1.0, 1.0, step=7200), r"there is no sample for 120 minutes after 2026-11-26 01:20 UTC"),
    ],
    ids=[
        "empty",
        "local times",
        "free text",
        "no job",
        "another time",
        "no JSON",
        "error",
        "vector",
        "empty answer",
        "below 0",
        "gap",
    ],
)
def test_what_cannot_be_read_is_refused(printed: str, answer: Any, said: str) -> None:
    with pytest.raises(CapacityMistake, match=said):
        _read(printed, *([] if answer is None else [answer]))


def test_a_run_that_is_listed_for_each_of_its_days_counts_once() -> None:
    jobs = printed_jobs(PRINTED, "jobs.txt")
    listed = [run for job in jobs for run in (*job.earlier_runs, job)]
    later = [replace(run, elapsed=timedelta(hours=9)) for run in listed if run.state.is_active]
    found = {job.id: job for job in whole_jobs([*listed, *listed, *later])}
    assert len(found) == len(jobs)
    assert [(str(job.id), job.restarts) for job in found.values() if job.restarts] == [("24", 1)]
    assert sum(job.elapsed == timedelta(hours=9) for job in found.values()) == len(later) > 0


def test_needs_are_without_what_is_to_spare() -> None:
    assert needs_of(BLOCK.service, [0.0, 10.0, 100.0]) == [0, 2, 13]
    assert needs_of(MetricLoad(target="inference", query="requests", per_unit=64), [0.0, 64.0, 65.0]) == [0, 1, 2]


def test_a_part_of_a_month_begins_at_its_own_time() -> None:
    month = load(1, gpus=8, busy=0.1, peak=1.0, days=1).month(BLOCK.service)
    part = month.part(60, 120)
    assert part.at(0) == month.start + timedelta(hours=1)
    assert part.needs == month.needs[60:120]
    assert len(part.jobs) == sum(60 <= job.submitted < 120 for job in month.jobs) > 0
    assert all(0 <= job.submitted < 60 for job in part.jobs)
