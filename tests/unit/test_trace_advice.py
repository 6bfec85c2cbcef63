"""A month of one's own is read as it was, or refused by line; advice from a month is code that runs."""

from __future__ import annotations

import argparse
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.capacity.allocation import bounds_of
from airflow_provider_soperator.capacity.demand import Demand
from airflow_provider_soperator.capacity.schedule import CapacitySchedule
from benchmarks.trace import advice, command
from benchmarks.trace.load import DAY, Month, month
from benchmarks.trace.own import OwnMonth, Unreadable, read_month
from benchmarks.trace.run import Block
from tests.unit.operators.dags import dags_made

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


def _read(tmp_path: Path, printed: str, *answers: Any) -> OwnMonth:
    jobs = tmp_path / "jobs.txt"
    jobs.write_text(printed)
    requests = []
    for number, answer in enumerate(answers or [_answer(*[1.0] * 20)]):
        requests.append(tmp_path / f"requests{number}.json")
        requests[-1].write_text(answer if isinstance(answer, str) else json.dumps(answer))
    return read_month(jobs, requests, timezone.utc, gpus=64, may_requeue=1.0, seed=1)


def test_jobs_are_read_as_they_were(tmp_path: Path) -> None:
    own = _read(tmp_path, PRINTED)
    # A job that was requeued is one, with all its runs, since it was eligible first.
    assert sorted((job.submitted, job.gpus, job.minutes, job.limit) for job in own.month.jobs) == [
        (0, 2, 60, 90),
        (5, 1, 1, 10),
        (5, 1, 1, 10),
        (5, 1, 50, 60),
        (5, 2, 1, 30),
        (5, 2, 2, 7 * DAY),
    ]
    assert own.left_out == {"never started": 2, "without GPUs": 1}
    assert own.waited == pytest.approx((10 + 3 * 3 / 60 + 2 / 60) / 6)
    assert "6 jobs of 0.1 days" in str(own)


def test_of_a_job_that_ran_before_what_is_left_is_read(tmp_path: Path) -> None:
    own = _read(tmp_path, PRINTED, _answer(*[1.0] * 20, first=START + 1800))
    [first] = [job for job in own.month.jobs if job.gpus == 2]
    assert (first.submitted, first.minutes) == (0, 40)


def test_requests_are_added_up_and_hold_until_the_next(tmp_path: Path) -> None:
    two = _answer(1.0, 2.0, float("nan"), 3.0)
    two["data"]["result"] *= 2
    later = _answer(5.0, 5.0, first=START + 1200)
    own = _read(tmp_path, PRINTED, two, later)
    assert own.month.requests == [2.0] * 5 + [4.0] * 10 + [6.0] * 5 + [5.0] * 6
    assert own.month.at(0) == datetime.fromtimestamp(START, timezone.utc)


ISO = PRINTED.replace("1795656600", "2026-11-25T23:30:00")


@pytest.mark.parametrize(
    ("printed", "answer", "said"),
    [
        ("", None, r"jobs.txt, line 1: there is no column JobID, State, .*: print it with `SLURM_TIME_FORMAT=%s sacct"),
        (ISO, None, r"jobs.txt, line 2: Start: '2026-11-25T23:30:00' is not a time .*SLURM_TIME_FORMAT=%s"),
        (PRINTED + "29|a|b\n", None, r"jobs.txt, line 12: it has 3 fields, not 9: print no column with free text"),
        (PRINTED.replace("\n22|", "\nx|"), None, r"jobs.txt, line 3: JobID: 'x' is not a Slurm job id"),
        (PRINTED, _answer(1.0, first=0), r"no job with GPUs ran from 1970-01-01 00:00 to .*6 at another time"),
        (PRINTED, "{\n,", r"requests0.json, line 2: "),
        (PRINTED, {"status": "error"}, r"requests0.json: it is no answer with series .*query_range"),
        (PRINTED, {"data": {"resultType": "vector", "result": []}}, r"requests0.json: it is a vector: .*query_range"),
        (PRINTED, _answer(), r"requests0.json: it has no sample"),
        (PRINTED, _answer(-1.0), r"requests0.json: requests per second are below 0"),
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
def test_what_cannot_be_read_is_refused(tmp_path: Path, printed: str, answer: Any, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        _read(tmp_path, printed, *([] if answer is None else [answer]))


BLOCK = Block(nodes=4, gpus=8)


@pytest.fixture(scope="module")
def weeks() -> Month:
    loaded = month(5, gpus=32, busy=0.4, peak=14.0, days=14)
    # Few jobs, as this is not about them.
    return Month([job for job in loaded.jobs if job.id % 10 == 0 and job.gpus <= 8], loaded.requests, loaded.start)


def test_each_proposal_is_code_that_makes_its_dag(weeks: Month, monkeypatch: pytest.MonkeyPatch) -> None:
    made = dags_made(monkeypatch)
    for one in advice.proposals(weeks, BLOCK.needs(weeks.requests), BLOCK):
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(advice.code(one, BLOCK), one.name, "exec"), names)
        assert names["schedule"] == one.schedule
        made.pop().validate()
        for segment in one.schedule.segments(weeks.at(0), weeks.at(7 * DAY)):
            sums = [sum(bounds_of(units)[end] for units in segment.allocation.values()) for end in (0, 1)]
            assert sums[0] <= BLOCK.nodes <= sums[1]


def test_the_code_has_the_demand_that_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Demand] = []
    monkeypatch.setattr(
        "airflow_provider_soperator.operators.capacity_dag.capacity_dag",
        lambda *args, demand=None, **more: given.append(demand),
    )
    schedule = CapacitySchedule(
        timezone="UTC", windows=[advice.Window("daily 00:00 - 24:00", {"training": 2, "inference": 2})]
    )
    proposal = advice.Proposal("one", schedule, BLOCK.demand(2))
    exec(compile(advice.code(proposal, BLOCK), "one", "exec"), {"__name__": "example"})
    assert given == [proposal.demand]


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--jobs", "jobs.txt"], "give both"),
        (["--jobs", "/nowhere", "--requests", "/nowhere"], "No such file"),
        (["--advise", "--nodes", "1"], "give --nodes of 2 or more"),
        (["--advise", "--timezone", "Europe/Amsterdamm"], "did you mean 'Europe/Amsterdam'"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    command.add_options(parser)
    with pytest.raises(SystemExit):
        command.run(parser, parser.parse_args(words))
    assert said in capsys.readouterr().err


def test_a_part_of_a_month_begins_at_its_own_time() -> None:
    loaded = month(1, gpus=8, busy=0.1, peak=1.0, days=1)
    part = loaded.part(60, 120)
    assert part.at(0) == loaded.start + timedelta(hours=1)
    assert part.requests == loaded.requests[60:120]
    assert all(0 <= job.submitted == job.since < 60 for job in part.jobs)
