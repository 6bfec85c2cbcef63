"""A month of jobs and of what a service needed, read from Slurm's accounting and from Prometheus or their files."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from typing import Any

from airflow_provider_soperator.capacity.loads import MetricLoad, ServiceLoad
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, count_gpus
from airflow_provider_soperator.slurm.requests.accounting import COLUMNS, with_earlier_runs
from airflow_provider_soperator.slurm.requests.commands import Columns

#: Minutes.
DAY = 24 * 60
_MINUTE = timedelta(minutes=1)
#: Minutes of a time limit where there is none.
_NO_LIMIT = 7 * DAY
#: Minutes for which a sample holds: where they are further apart, nothing is known of the time between.
_HOLDS = 60
_READ = ("id", "state", "submitted", "eligible", "started", "ended", "elapsed", "time_limit", "tres")
_COLUMNS: Columns = {name: COLUMNS[name] for name in _READ}
_COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct --allocations --duplicates --allusers --parsable2 --starttime=now-28days "
    f"--endtime=now --format={','.join(column for column, _ in _COLUMNS.values())}"
)
_QUERY = "keep the whole answer of Prometheus to `api/v1/query_range`, of resultType matrix"


@dataclass(eq=False, slots=True)
class MonthJob:
    """A job; times are in minutes."""

    id: int
    submitted: int
    gpus: int
    #: What it takes, and the time limit that its user gives it.
    minutes: int
    limit: int
    #: It writes checkpoints, and may be requeued.
    may_requeue: bool
    #: In a replay: work that a checkpoint has kept.
    done: int = 0
    started: int | None = None
    #: Minutes for which it has waited, also after it was requeued.
    waited: int = 0
    since: int = 0


@dataclass(frozen=True)
class Month:
    """Jobs by when they are submitted, and the units that a service needs in each minute."""

    jobs: list[MonthJob]
    needs: list[int]
    #: The first minute; its time zone is that of schedules.
    start: datetime
    #: Of one that was read: for how many minutes its jobs have waited, on average, and how many were left out, by why.
    waited: float = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        out = ", ".join(f"{count} {why}" for why, count in self.left_out.items())
        return (
            f"{len(self.jobs)} jobs of {len(self.needs) / DAY:.1f} days from {self.start:%Y-%m-%d %H:%M}, which waited "
            f"for {self.waited:.0f} min on the cluster{f'; left out: {out}' if out else ''}"
        )

    def at(self, minute: int) -> datetime:
        return (self.start.astimezone(timezone.utc) + timedelta(minutes=minute)).astimezone(self.start.tzinfo)

    def part(self, first: int, last: int) -> Month:
        """From a minute up to another one."""
        inside = [one for one in self.jobs if first <= one.submitted < last]
        jobs = [replace(one, submitted=one.submitted - first) for one in inside]
        return Month(jobs, self.needs[first:last], self.at(first))


def month_of(
    jobs: Iterable[AccountingJob], start: datetime, needs: list[int], zone: tzinfo, *, gpus: int, may_requeue: float
) -> Month:
    """The time of these needs, with the jobs of at most so many GPUs.

    ``may_requeue`` is the share of jobs that may be requeued and write checkpoints, which accounting does not know.
    """
    end = start + timedelta(minutes=len(needs))
    dice = random.Random("requeue")
    found: list[MonthJob] = []
    out: Counter[str] = Counter()
    waits: list[float] = []
    for number, job in enumerate(jobs):
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
            found.append(MonthJob(number, at, has, minutes, max(limit, minutes), dice.random() < may_requeue))
            waits.append(_waited(job))
    if not found:
        why = ", ".join(f"{count} {why}" for why, count in out.items()) or "there is none"
        raise CapacityMistake(
            f"no job with GPUs ran from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC ({why})",
            "jobs and requests have to be of the same time",
        )
    found.sort(key=lambda job: job.submitted)
    return Month(found, needs, start.astimezone(zone), sum(waits) / len(waits), dict(out))


def _ran(job: AccountingJob) -> timedelta:
    """For how long it ran, with the runs before it was requeued."""
    return sum((run.elapsed or timedelta(0) for run in (*job.earlier_runs, job)), timedelta(0))


def _waited(job: AccountingJob) -> float:
    """For how many minutes it waited, also after it was requeued."""
    waits = (
        (run.started - ready) / _MINUTE
        for run in (*job.earlier_runs, job)
        if run.started and (ready := run.eligible or run.submitted)
    )
    return sum(max(0.0, wait) for wait in waits)


def whole_jobs(runs: Iterable[AccountingJob]) -> list[AccountingJob]:
    """Jobs with their earlier runs; a run that is listed for each of its days counts once."""
    found: defaultdict[JobId, dict[datetime | None, AccountingJob]] = defaultdict(dict)
    for run in runs:
        found[run.id][run.submitted] = run
    return [with_earlier_runs(its.values()) for its in found.values()]


def printed_jobs(text: str, place: object) -> list[AccountingJob]:
    """The jobs of what ``sacct`` has printed into a file."""
    lines = text.splitlines()
    names = lines[0].split("|") if lines else []
    how = f"print it with `{_COMMAND}`"
    if missing := [column for column, _ in _COLUMNS.values() if column not in names]:
        raise CapacityMistake(f"{place}, line 1: there is no column {', '.join(missing)}", how)
    runs = []
    for number, line in enumerate(lines[1:], 2):
        texts, said = line.split("|"), dict[str, Any]()
        if len(texts) != len(names):
            what = f"{place}, line {number}: it has {len(texts)} fields, not {len(names)}"
            raise CapacityMistake(what, "print no column with free text, as names")
        row = dict(zip(names, texts, strict=True))
        for name, (column, read) in _COLUMNS.items():
            try:
                said[name] = read(row[column])
            except ValueError as error:
                raise CapacityMistake(f"{place}, line {number}: {column}: {error}", how) from error
        runs.append(AccountingJob(**said))
    return whole_jobs(run for run in runs if not run.id.step)


def printed_samples(text: str, place: object) -> dict[int, float]:
    """The samples of a file with an answer of Prometheus."""
    try:
        return samples_of(json.loads(text)["data"], place)
    except json.JSONDecodeError as error:
        raise CapacityMistake(f"{place}, line {error.lineno}: {error.msg}", _QUERY) from error
    except (KeyError, TypeError) as error:
        raise CapacityMistake(f"{place}: it is no answer with series ({error!r})", _QUERY) from error


def samples_of(data: Mapping[str, Any], place: object) -> dict[int, float]:
    """The sum of the series of Prometheus, by minute."""
    if data["resultType"] != "matrix":
        raise CapacityMistake(f"{place}: it is a {data['resultType']}", _QUERY)
    found: defaultdict[int, float] = defaultdict(float)
    for series in data["result"]:
        for second, value in series["values"]:
            if math.isfinite(float(value)):
                found[int(second)] += float(value)
    return {second // 60: found[second] for second in sorted(found)}


def held(samples: Mapping[int, float], place: object) -> tuple[datetime, list[float]]:
    """The first minute, and the value in each: a sample holds until the next one."""
    if not samples:
        raise CapacityMistake(f"{place}: it has no sample", "see whether the query has values at that time")
    if min(samples.values()) < 0:
        raise CapacityMistake(f"{place}: requests per second are below 0", "ask for a rate")
    minutes, values = sorted(samples), list[float]()
    for one, following in pairwise([*minutes, minutes[-1] + 1]):
        if following - one > _HOLDS:
            when = datetime.fromtimestamp(one * 60, timezone.utc)
            said = f"{place}: there is no sample for {following - one} minutes after {when:%Y-%m-%d %H:%M} UTC"
            raise CapacityMistake(said, "if nothing was asked for then, add `or vector(0)` to the query")
        values += [samples[one]] * (following - one)
    return datetime.fromtimestamp(minutes[0] * 60, timezone.utc), values


def needs_of(load: ServiceLoad | MetricLoad, values: Iterable[float]) -> list[int]:
    """The units of a load in each minute, without headroom."""
    if isinstance(load, MetricLoad):
        return [math.ceil(value / (load.per_unit or 1.0)) for value in values]
    bare, seconds = replace(load, headroom=0), float(load.service_time)
    return [bare.need(rate, seconds).units or 0 for rate in values]
