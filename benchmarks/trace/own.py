"""A month of one's own: jobs from ``sacct``, and requests per second from answers of a Prometheus."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, count_gpus
from airflow_provider_soperator.slurm.requests.accounting import COLUMNS, with_earlier_runs
from airflow_provider_soperator.slurm.requests.commands import Columns
from benchmarks.trace.load import DAY, Job, Month

_READ = ("id", "state", "submitted", "eligible", "started", "ended", "elapsed", "time_limit", "tres")
_COLUMNS: Columns = {name: COLUMNS[name] for name in _READ}
_COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct --allocations --duplicates --allusers --parsable2 --starttime=now-28days "
    f"--endtime=now --format={','.join(column for column, _ in _COLUMNS.values())}"
)
_QUERY = "keep the whole answer of Prometheus to `api/v1/query_range`, of resultType matrix"
_MINUTE = timedelta(minutes=1)
#: Minutes of a time limit where there is none.
_NO_LIMIT = 7 * DAY
#: Minutes for which a sample holds: where they are further apart, nothing is known of the time between.
_HOLDS = 60


class Unreadable(ValueError):
    """A file that cannot be read; the message names it, the line, and what to do."""

    def __init__(self, file: Path, line: int | None, said: object, remedy: str) -> None:
        super().__init__(f"{file}{'' if line is None else f', line {line}'}: {said}: {remedy}")


@dataclass(frozen=True)
class OwnMonth:
    """The month, minutes that its jobs have waited on the cluster on average, and how many were left out, by why."""

    month: Month
    waited: float
    left_out: dict[str, int]

    def __str__(self) -> str:
        days = len(self.month.requests) / DAY
        out = ", ".join(f"{count} {why}" for why, count in self.left_out.items())
        return (
            f"{len(self.month.jobs)} jobs of {days:.1f} days from {self.month.start:%Y-%m-%d %H:%M}, which waited for "
            f"{self.waited:.0f} min on the cluster{f'; left out: {out}' if out else ''}"
        )


def read_month(
    jobs: Path, requests: Sequence[Path], zone: tzinfo, *, gpus: int, may_requeue: float, seed: int
) -> OwnMonth:
    """The time that the requests cover, with its jobs of at most so many GPUs.

    ``may_requeue`` is the share of jobs that may be requeued and write checkpoints, which accounting does not know.
    """
    start, rates = _rates(requests)
    end = start + timedelta(minutes=len(rates))
    dice = random.Random(f"requeue {seed}")
    found: list[Job] = []
    out: Counter[str] = Counter()
    waits: list[float] = []
    for number, job in enumerate(read_jobs(jobs)):
        first = (*job.earlier_runs, job)[0]
        ready, began, has = first.eligible or first.submitted, first.started, count_gpus(first.tres)
        if not began or not ready:
            out["never started"] += 1
        elif not has:
            out["without GPUs"] += 1
        elif has > gpus:
            out["with more GPUs than the block"] += 1
        elif ready >= end or began + _ran(job) <= start:
            out["at another time"] += 1
        else:
            # Of a job that ran already at the start, what is left.
            minutes = max(1, math.ceil((_ran(job) - max(timedelta(0), start - began)) / _MINUTE))
            at = max(0, (ready - start) // _MINUTE)
            limit = math.ceil(job.time_limit / _MINUTE) if isinstance(job.time_limit, timedelta) else _NO_LIMIT
            found.append(Job(number, at, has, minutes, max(limit, minutes), dice.random() < may_requeue, since=at))
            waits.append(max(0.0, (began - ready) / _MINUTE))
    if not found:
        why = ", ".join(f"{count} {why}" for why, count in out.items()) or "it has none"
        raise Unreadable(
            jobs, None, f"no job with GPUs ran from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC ({why})",
            "give jobs and requests of the same time",
        )  # fmt: skip
    found.sort(key=lambda job: job.submitted)
    return OwnMonth(Month(found, rates, start.astimezone(zone)), sum(waits) / len(waits), dict(out))


def _ran(job: AccountingJob) -> timedelta:
    """For how long it ran, with the runs before it was requeued."""
    return sum((run.elapsed or timedelta(0) for run in (*job.earlier_runs, job)), timedelta(0))


def read_jobs(file: Path) -> list[AccountingJob]:
    """The jobs of what ``sacct`` has printed, each with its earlier runs."""
    lines = _text(file).splitlines()
    names = lines[0].split("|") if lines else []
    wanted = [column for column, _ in _COLUMNS.values()]
    if missing := [column for column in wanted if column not in names]:
        raise Unreadable(file, 1, f"there is no column {', '.join(missing)}", f"print it with `{_COMMAND}`")
    runs: defaultdict[JobId, list[AccountingJob]] = defaultdict(list)
    for number, line in enumerate(lines[1:], 2):
        fields = line.split("|")
        if len(fields) != len(names):
            raise Unreadable(
                file,
                number,
                f"it has {len(fields)} fields, not {len(names)}",
                "print no column with free text, as names",
            )
        row, said = dict(zip(names, fields, strict=True)), dict[str, Any]()
        for name, (column, read) in _COLUMNS.items():
            try:
                said[name] = read(row[column])
            except ValueError as error:
                raise Unreadable(file, number, f"{column}: {error}", f"print it with `{_COMMAND}`") from error
        run = AccountingJob(**said)
        if not run.id.step:
            runs[run.id].append(run)
    return [with_earlier_runs(found) for found in runs.values()]


def _rates(files: Sequence[Path]) -> tuple[datetime, list[float]]:
    """The first minute, and the requests per second in each: a sample holds until the next one."""
    at: defaultdict[int, float] = defaultdict(float)
    for file in files:
        for second, value in _samples(file).items():
            # Answers may overlap; each has all series.
            at[second // 60] = value
    minutes = sorted(at)
    for one, following in pairwise(minutes):
        if following - one > _HOLDS:
            when = datetime.fromtimestamp(one * 60, timezone.utc)
            raise Unreadable(
                files[0], None, f"there is no sample for {following - one} minutes after {when:%Y-%m-%d %H:%M} UTC",
                "ask for a time without gaps, or with a longer step of at most an hour",
            )  # fmt: skip
    rates: list[float] = []
    for one, following in zip(minutes, [*minutes[1:], minutes[-1] + 1], strict=True):
        rates += [at[one]] * (following - one)
    return datetime.fromtimestamp(minutes[0] * 60, timezone.utc), rates


def _samples(file: Path) -> dict[int, float]:
    """The sum of all series, by second."""
    try:
        answer = json.loads(_text(file))
    except json.JSONDecodeError as error:
        raise Unreadable(file, error.lineno, error.msg, _QUERY) from error
    found: defaultdict[int, float] = defaultdict(float)
    try:
        if answer["data"]["resultType"] != "matrix":
            raise Unreadable(file, None, f"it is a {answer['data']['resultType']}", _QUERY)
        for series in answer["data"]["result"]:
            for second, value in series["values"]:
                if math.isfinite(float(value)):
                    found[int(second)] += float(value)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(file, None, f"it is no answer with series ({error!r})", _QUERY) from error
    if not found:
        raise Unreadable(file, None, "it has no sample", "see whether the query has values at that time")
    if min(found.values()) < 0:
        raise Unreadable(file, None, "requests per second are below 0", "ask for a rate")
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(file, None, error, "give a file of text that can be read") from error
