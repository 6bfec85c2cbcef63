"""What jobs have used in the last days, from accounting: GPU-hours by task and by user, efficiency, and waits."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from airflow_provider_soperator.board.tasks import JobTasks, find_ended
from airflow_provider_soperator.hooks.check import in_words
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob
from airflow_provider_soperator.slurm.job_reports import usage_of
from airflow_provider_soperator.slurm.requests.accounting import ListUsage
from airflow_provider_soperator.slurm.submission_keys import key_of

#: The days that are asked for, in UTC; the last one is not over.
DAYS = 7
_DAY = timedelta(days=1)
#: Rows of a table; the others are one more.
_MOST_ROWS = 12


@dataclass(frozen=True, kw_only=True)
class Used:
    """What jobs have used within a day, or within all days."""

    user: str = ""
    #: Empty of jobs whose task is unknown or must not be named, and of what is of several.
    dag_id: str = ""
    name: str = ""
    #: Those that began within the time, and those that began before.
    jobs: int = 0
    earlier: int = 0
    gpu_hours: float = 0.0
    failed_hours: float = 0.0
    core_seconds: float = 0.0
    cpu_seconds: float = 0.0
    #: Seconds from when a job could have started, of each run that has within the time; sorted in a row of a table.
    waits: tuple[float, ...] = ()

    @property
    def failed(self) -> float | None:
        """The part of the GPU-hours that was of jobs that failed or were cancelled."""
        return self.failed_hours / self.gpu_hours if self.gpu_hours else None

    @property
    def cpu(self) -> float | None:
        """The part of their CPU time that jobs that have ended have used."""
        return min(1.0, self.cpu_seconds / self.core_seconds) if self.core_seconds else None

    @property
    def median_wait(self) -> float | None:
        return statistics.median(self.waits) if self.waits else None

    @property
    def p90_wait(self) -> float | None:
        return self.waits[math.ceil(len(self.waits) * 0.9) - 1] if self.waits else None


@dataclass(frozen=True, kw_only=True)
class UsedDay:
    """What jobs have used on a day, by user and task."""

    used: Sequence[Used]
    #: False while jobs of this day may still run, so that it is not known yet whether they fail.
    is_final: bool = False


@dataclass(frozen=True, kw_only=True)
class UsageLook:
    """The usage of a cluster in the days before it was taken."""

    taken: datetime
    #: By their beginnings.
    days: Mapping[datetime, UsedDay] = field(default_factory=dict)
    failure: str = ""
    #: Made once for all who may see the same DAGs.
    _tables: dict[frozenset[str], dict[str, list[Used]]] = field(default_factory=dict, repr=False, compare=False)

    def tables(self, may_see: Callable[[str], bool]) -> Mapping[str, Sequence[Used]]:
        """Rows by task, DAG and user, and the total: what is of DAGs that one may not see is there without names."""
        first = min(self.days, default=None)
        # A run that lasts for days is counted once; runs of a requeued job without a day in common are two jobs.
        used = [
            replace(one, jobs=one.jobs + one.earlier) if day == first else one
            for day, its in self.days.items()
            for one in its.used
        ]
        visible = frozenset(filter(may_see, {one.dag_id for one in used if one.dag_id}))

        def task(one: Used) -> tuple[str, str]:
            if not one.dag_id:
                return "", "jobs without a task"
            return (one.dag_id, one.name) if one.dag_id in visible else ("", "other DAGs")

        if visible not in self._tables:
            self._tables[visible] = {
                "task": _rows(used, task),
                "dag": _rows(used, lambda one: ("", task(one)[0] or task(one)[1])),
                "user": _rows(used, lambda one: ("", one.user)),
                "total": _rows(used, lambda one: ("", "all")),
            }
        return self._tables[visible]


async def look_at_usage(connection: str, before: UsageLook | None = None) -> UsageLook:
    """Ask accounting for each day that is not known for good, one after another, and read it in a thread."""
    now = datetime.now(timezone.utc)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    last = before or UsageLook(taken=now)
    days: dict[datetime, UsedDay] = {}
    try:
        for day in (today - ago * _DAY for ago in range(DAYS)):
            known = last.days.get(day)
            days[day] = known if known and known.is_final else await asyncio.to_thread(_ask, connection, day, now)
        return UsageLook(taken=now, days=days)
    except Exception as error:
        newest = sorted({**last.days, **days}.items())[-DAYS:]
        return UsageLook(taken=last.taken, days=dict(newest), failure=in_words(error))


def _ask(connection: str, day: datetime, now: datetime) -> UsedDay:
    end = day + _DAY
    with SlurmHook(connection).client() as slurm:
        jobs = slurm.ask(ListUsage(everyone=True, since=day, until=end))
    keyed = [job.as_job() for job in jobs if key_of(job.name)]
    tasks = find_ended(keyed, end)
    # A task tells of its job once more when it goes on with it, as after a restart of the triggerer, but not when Slurm
    # requeues it.
    tasks |= find_ended([job for job in keyed if job.id not in tasks], ever=True)
    # Accounting lags behind. A run before a requeue is over, too, in a state that is no end.
    is_final = now > end + timedelta(hours=1) and all(job.ended for job in jobs if job.started)
    return UsedDay(used=used_between(jobs, tasks, day, min(end, now), now), is_final=is_final)


def used_between(
    jobs: Iterable[AccountingJob], tasks: Mapping[JobId, JobTasks], since: datetime, until: datetime, now: datetime
) -> list[Used]:
    """What jobs have used between two moments, of one that began before or ended later the part between, by task.

    The runs of a requeued job that are among them are one job, which has failed if the last one has: to know of the
    runs after a day, accounting would be asked for all days since with each.
    """
    groups: dict[tuple[str, str, str], list[Used]] = {}
    runs = sorted(jobs, key=lambda job: job.started or until)
    firsts, lasts = {job.id: job for job in reversed(runs)}, {job.id: job for job in runs}
    for job in runs:
        if not job.started or job.started >= until:
            continue
        within = min(job.ended or until, until) - max(job.started, since)
        # When it was suspended is not known: its hours are spread evenly.
        lasted = ((job.ended or now) - job.started).total_seconds()
        share = min(1.0, max(0.0, within.total_seconds()) / lasted) if lasted > 0 else 0.0
        usage = usage_of(job)
        # Until a job has ended, accounting has none of the CPU time of the step that runs.
        is_measured = job.ended is not None and usage.cpu_seconds is not None
        hours = share * (usage.gpu_seconds or 0.0) / 3600
        ready, is_new = job.eligible or job.submitted, job.started >= since
        its, is_first, end = tasks.get(job.id), firsts[job.id] is job, lasts[job.id].state
        one = Used(
            user=job.user,
            dag_id=its.dag_id if its else "",
            name=its.task_id if its else "",
            jobs=int(is_first and is_new),
            earlier=int(is_first and not is_new),
            gpu_hours=hours,
            failed_hours=hours if end.is_finished and not end.succeeded else 0.0,
            core_seconds=share * usage.core_seconds if is_measured else 0.0,
            cpu_seconds=share * (usage.cpu_seconds or 0.0) if is_measured else 0.0,
            waits=(max(0.0, (job.started - ready).total_seconds()),) if ready and is_new else (),
        )
        groups.setdefault((one.user, one.dag_id, one.name), []).append(one)
    return [replace(_sum(group), user=user, dag_id=dag_id, name=name) for (user, dag_id, name), group in groups.items()]


def _sum(group: Sequence[Used]) -> Used:
    sums = {
        name: sum(getattr(one, name) for one in group)
        for name in ("jobs", "earlier", "gpu_hours", "failed_hours", "core_seconds", "cpu_seconds")
    }
    return Used(**sums, waits=tuple(sorted(wait for one in group for wait in one.waits)))


def _rows(used: Iterable[Used], key: Callable[[Used], tuple[str, str]]) -> list[Used]:
    """The groups with most GPU-hours first, or else with most CPU time; beyond a dozen they are one."""
    groups: dict[tuple[str, str], list[Used]] = {}
    for one in used:
        groups.setdefault(key(one), []).append(one)
    rows = [replace(_sum(group), dag_id=dag_id, name=name) for (dag_id, name), group in groups.items()]
    rows.sort(key=lambda row: (-row.gpu_hours, -row.core_seconds, row.name))
    others = rows[_MOST_ROWS:]
    if len(others) > 1:
        rows[_MOST_ROWS:] = [replace(_sum(others), name=f"{len(others)} others")]
    return rows
