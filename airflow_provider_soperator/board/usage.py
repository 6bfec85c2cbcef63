"""What jobs have used in the last days, from accounting: GPU-hours by task and by user, efficiency, and waits."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from airflow_provider_soperator.board.tasks import JobTasks, match, with_jobs_since
from airflow_provider_soperator.hooks.check import in_words
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.job_ids import JobId, key_of
from airflow_provider_soperator.slurm.job_records import AccountingJob
from airflow_provider_soperator.slurm.job_reports import usage_of
from airflow_provider_soperator.slurm.requests.accounting import ListUsage

#: The days that are asked for.
DAYS = 7
#: Rows of a table.
_MOST_ROWS = 12


@dataclass(frozen=True, kw_only=True)
class UsedJob:
    """What a job, or a run of it, has used within the days."""

    user: str
    gpu_hours: float
    has_failed: bool
    core_seconds: float = 0.0
    cpu_seconds: float | None = None
    #: Seconds from when it could have started; None if it has not, or did so before.
    waited: float | None = None
    tasks: JobTasks | None = None


@dataclass(frozen=True, kw_only=True)
class UsageRow:
    """What several jobs have used."""

    name: str
    #: The DAG of tasks; empty for users, and for jobs whose task is unknown or must not be named.
    dag_id: str = ""
    jobs: int
    gpu_hours: float
    #: The part of the GPU-hours that was of jobs that failed or were cancelled; and of the CPU time that was used.
    failed: float | None
    cpu: float | None
    #: Seconds.
    median_wait: float | None
    p90_wait: float | None


@dataclass(frozen=True, kw_only=True)
class UsageLook:
    """The usage of a cluster in the days before it was taken."""

    taken: datetime
    used: Sequence[UsedJob] = ()
    failure: str = ""
    #: Made once for all who may see the same DAGs.
    _tables: dict[frozenset[str], dict[str, list[UsageRow]]] = field(default_factory=dict, repr=False, compare=False)

    def tables(self, may_see: Callable[[str], bool]) -> Mapping[str, Sequence[UsageRow]]:
        """Rows by task, DAG and user, and the total: what is of DAGs that one may not see is there without names."""
        visible = frozenset(filter(may_see, {one.tasks.dag_id for one in self.used if one.tasks}))

        def task(one: UsedJob) -> tuple[str, str]:
            if one.tasks is None:
                return "", "jobs without a task"
            return (one.tasks.dag_id, one.tasks.task_id) if one.tasks.dag_id in visible else ("", "other DAGs")

        if visible not in self._tables:
            self._tables[visible] = {
                "task": _rows(self.used, task),
                "dag": _rows(self.used, lambda one: ("", task(one)[0] or task(one)[1])),
                "user": _rows(self.used, lambda one: ("", one.user)),
                "total": _rows(self.used, lambda one: ("", "all")),
            }
        return self._tables[visible]


async def look_at_usage(connection: str, before: UsageLook | None = None) -> UsageLook:
    """Ask accounting once. It is read in a thread: a week of a large cluster would hold up the server."""
    now = datetime.now(timezone.utc)
    try:
        return UsageLook(taken=now, used=await asyncio.to_thread(_ask, connection, now))
    except Exception as error:
        return replace(before or UsageLook(taken=now), failure=in_words(error))


def _ask(connection: str, now: datetime) -> list[UsedJob]:
    since = now - timedelta(days=DAYS)
    with SlurmHook(connection).client() as slurm:
        jobs = slurm.ask(ListUsage(everyone=True, since=since))
    keyed = [job.as_job() for job in jobs if key_of(job.name)]
    return used_since(jobs, _tasks_of(keyed, since) if keyed else {}, since, now)


def _tasks_of(jobs: Sequence[object], since: datetime) -> Mapping[JobId, JobTasks]:
    from airflow.utils.session import create_session

    with create_session() as session:
        return match(jobs, session.execute(with_jobs_since(since)).all())  # type: ignore[arg-type]


def used_since(
    jobs: Iterable[AccountingJob], tasks: Mapping[JobId, JobTasks], since: datetime, now: datetime
) -> list[UsedJob]:
    """What jobs have used since a moment; of one that began before, the part after it."""
    found = []
    for job in jobs:
        if not job.started:
            continue
        seconds = job.elapsed.total_seconds() if job.elapsed else 0.0
        end = job.ended or now
        share = min(1.0, max(0.0, (end - max(job.started, since)).total_seconds()) / seconds) if seconds else 0.0
        usage = usage_of(job)
        ready = job.eligible or job.submitted
        found.append(
            UsedJob(
                user=job.user,
                gpu_hours=share * usage.gpu_seconds / 3600,
                has_failed=job.state.is_finished and not job.state.succeeded,
                core_seconds=share * usage.core_seconds if usage.cpu_seconds is not None else 0.0,
                cpu_seconds=None if usage.cpu_seconds is None else share * usage.cpu_seconds,
                waited=max(0.0, (job.started - ready).total_seconds()) if ready and job.started > since else None,
                tasks=tasks.get(job.id),
            )
        )
    return found


def _rows(used: Iterable[UsedJob], key: Callable[[UsedJob], tuple[str, str]]) -> list[UsageRow]:
    """The groups with most GPU-hours, or else with most CPU time."""
    groups: dict[tuple[str, str], list[UsedJob]] = {}
    for one in used:
        groups.setdefault(key(one), []).append(one)
    rows = [
        (_row(dag_id, name, group), sum(one.core_seconds for one in group)) for (dag_id, name), group in groups.items()
    ]
    rows.sort(key=lambda pair: (-pair[0].gpu_hours, -pair[1], pair[0].name))
    return [row for row, _ in rows[:_MOST_ROWS]]


def _row(dag_id: str, name: str, group: Sequence[UsedJob]) -> UsageRow:
    hours, cores = sum(one.gpu_hours for one in group), sum(one.core_seconds for one in group)
    waits = sorted(one.waited for one in group if one.waited is not None)
    return UsageRow(
        name=name,
        dag_id=dag_id,
        jobs=len(group),
        gpu_hours=hours,
        failed=sum(one.gpu_hours for one in group if one.has_failed) / hours if hours else None,
        cpu=min(1.0, sum(one.cpu_seconds or 0.0 for one in group) / cores) if cores else None,
        median_wait=statistics.median(waits) if waits else None,
        p90_wait=waits[math.ceil(len(waits) * 0.9) - 1] if waits else None,
    )
