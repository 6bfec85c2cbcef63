"""The Airflow tasks whose jobs are in the queue, from Airflow's database: for its API server and its command."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from airflow_provider_soperator.hooks.forms import SOPERATOR
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.pipelines.plan import ahead_keys
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.submission_keys import CLOCKS, Keys, SubmissionKey, key_of, key_of_try, region_of

#: States in which a task may have a job in the queue.
_ALIVE = ("running", "deferred", "queued", "scheduled", "up_for_retry", "up_for_reschedule", "restarting")
#: Task instances among which those that have ended are searched, the newest ones.
_MOST_SEARCHED = 100_000
#: The event in the audit log by which ``SlurmExecutor`` tells of a job, whose name with its key ends the message.
SUBMITTED = "slurm job submitted"


@dataclass(frozen=True, kw_only=True)
class JobTasks:
    """The task instance of a job; of several that share it the first, and the others."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    try_number: int = 1
    has_ended: bool = False
    #: The ids of the others, each with its map index.
    others: Sequence[tuple[str, str, str, int]] = ()

    def __str__(self) -> str:
        which = f"[{self.map_index}]" if self.map_index >= 0 else ""
        more = f" and {len(self.others)} more" if self.others else ""
        return f"{self.task_id}{which}{more}"

    def covers(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> bool:
        """True if the job is of this task instance, too."""
        first = (self.dag_id, self.run_id, self.task_id, self.map_index)
        return (dag_id, run_id, task_id, map_index) in (first, *self.others)

    @property
    def dag_ids(self) -> set[str]:
        return {self.dag_id, *(dag_id for dag_id, *_ in self.others)}

    @property
    def path(self) -> str:
        """Its page, below the address of Airflow."""
        return path_of(self.dag_id, self.run_id, self.task_id, self.map_index)


def path_of(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """The page of a task instance, below the address of Airflow."""
    dag, run, task = (quote(text, safe="") for text in (dag_id, run_id, task_id))
    return f"dags/{dag}/runs/{run}/tasks/{task}" + (f"/mapped/{map_index}" if map_index >= 0 else "")


def known_connections(environment: Mapping[str, str]) -> list[str]:
    """The Soperator connections in Airflow's database and in the environment; secrets backends have no list."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session
    from sqlalchemy import select

    prefix = "AIRFLOW_CONN_"
    written = {name[len(prefix) :].lower(): text for name, text in environment.items() if name.startswith(prefix)}
    found = {name for name, text in written.items() if _type_of(text) == SOPERATOR.conn_type}
    with create_session() as session:
        kept = select(Connection.conn_id).where(Connection.conn_type == SOPERATOR.conn_type)
        found |= {name for name in session.scalars(kept) if name}
    first = SlurmHook.default_conn_name
    return sorted(found, key=lambda name: (name != first, name))


def _type_of(text: str) -> str:
    """The type of a connection, written as JSON or as a URI; empty if it cannot be read."""
    from airflow.models.connection import Connection

    with suppress(Exception):
        found = Connection.from_json(text) if text.lstrip().startswith("{") else Connection(uri=text)
        return found.conn_type or ""
    return ""


def dags_at_work(dag_ids: Collection[str]) -> dict[str, bool]:
    """Those of these DAGs that this Airflow has, and whether one has a run under way."""
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        known = session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(dag_ids))).all()
        states = DagRun.state.in_(("queued", "running"))
        active = {*session.scalars(select(DagRun.dag_id).where(DagRun.dag_id.in_(dag_ids), states))}
    return {dag_id: dag_id in active for dag_id in known}


def find_tasks(jobs: Sequence[Job], known: Mapping[JobId, JobTasks], new: Collection[JobId]) -> dict[JobId, JobTasks]:
    """The tasks of jobs in the queue: those at work, those that were ``known`` before, and, of ``new`` jobs, any.

    A task may have ended before anyone has looked at its job; a search while that is ``new`` is enough.
    """
    keyed = [job for job in jobs if key_of(job.name)]
    if not keyed:
        return {}
    from airflow.models.taskinstance import TaskInstance

    found = _matched(keyed, _instances(), _submitted_by_executor(), TaskInstance.state.in_(_ALIVE))
    # The jobs of a pipeline are submitted ahead: their tasks have no state before it is their turn.
    waiting = (job for job in keyed if job.id not in found and not job.state.is_finished)
    if ahead := [job for job in waiting if job.id in new or job.id in known]:
        is_to_come = TaskInstance.state.is_(None) & TaskInstance.dag_run.has(state="running")
        found |= _matched(ahead, _instances(), None, is_to_come)
    others = [job.id for job in keyed if job.id not in found]
    ended = [job for job in keyed if job.id in new and job.id not in found]
    before = dict(known) | find_ended(ended, ever=any(job.restarts for job in ended))
    return found | {job: replace(before[job], has_ended=True) for job in others if job in before}


def find_ended(jobs: Sequence[Job], until: datetime | None = None, *, ever: bool = False) -> dict[JobId, JobTasks]:
    """The tasks of jobs, among the newest that have told of a job between the submission of these and a moment.

    Or ``ever`` before: a job that was requeued has a new time of submission.
    """
    since = min((job.submitted for job in jobs if job.submitted), default=None)
    if since is None:
        return {}
    from airflow.models.log import Log
    from airflow.models.xcom import XComModel

    def newest(query: Any, at: Any) -> Any:
        within = query.where(*([] if ever else [at >= since - CLOCKS]), *([at <= until + CLOCKS] if until else []))
        return within.order_by(at.desc()).limit(_MOST_SEARCHED)

    told = _instances().join(XComModel, _of_task(XComModel) & (XComModel.key == "job_id"))
    return _matched(jobs, newest(told, XComModel.timestamp), newest(_submitted_by_executor(), Log.dttm))


def _matched(jobs: Sequence[Job], instances: Any, by_executor: Any, *where: Any) -> dict[JobId, JobTasks]:
    """The tasks of jobs: of those that submit one, and, if there are others, of those that the executor runs in one."""
    from airflow.utils.session import create_session

    with create_session() as session:
        # Of very many rows few are kept.
        found = match(jobs, session.execute(instances.where(*where).execution_options(yield_per=1000)))
        others = [job for job in jobs if job.id not in found]
        if others and by_executor is not None:
            found |= match(others, session.execute(by_executor.where(*where).execution_options(yield_per=1000)))
    return found


def _instances() -> Any:
    """The query for task instances, with the starts of their runs and how often these were cleared."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    columns: list[Any] = [getattr(TaskInstance, name) for name in (*_IDS, "try_number")]
    if not hasattr(TaskInstance, "region_id"):
        columns.append(TaskInstance.map_index)
    else:
        # Airflow 3.4 has the number of an iteration of a loop where others have their map index.
        from airflow.models.task_coordinates import (  # type: ignore[import-not-found,unused-ignore]
            public_map_index_expression,
        )

        index = public_map_index_expression(TaskInstance).label("map_index")
        columns += [index, TaskInstance.region_id, TaskInstance.region_index]
    return select(*columns, DagRun.start_date, DagRun.clear_number).join(TaskInstance.dag_run)


def _submitted_by_executor() -> Any:
    """The query for what ``SlurmExecutor`` has told of jobs in the audit log, with their task instances."""
    from airflow.models.log import Log
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    columns = [getattr(Log, name) for name in (*_IDS, "map_index", "try_number", "extra")]
    # Airflow 3.4 gives no id to rows from before it.
    return select(*columns).join(TaskInstance, _of_task(Log, may_lack_id=True)).where(Log.event == SUBMITTED)


_IDS = ("dag_id", "run_id", "task_id")


def _of_task(table: Any, *, may_lack_id: bool = False) -> Any:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import and_, or_

    same = and_(*(getattr(table, name) == getattr(TaskInstance, name) for name in (*_IDS, "map_index")))
    if not hasattr(table, "task_instance_id"):
        return same
    # Airflow 3.4: the same names and numbers may be of several iterations.
    is_its = table.task_instance_id == TaskInstance.id
    return or_(is_its, table.task_instance_id.is_(None) & same) if may_lack_id else is_its


def match(jobs: Iterable[Job], instances: Iterable[Any]) -> dict[JobId, JobTasks]:
    """The tasks of jobs, among rows of task instances, each with its run's start or what its executor has told."""
    jobs = list(jobs)
    wanted = {key.shared for job in jobs if (key := key_of(job.name))}
    owners: dict[SubmissionKey, list[tuple[Any, int]]] = {}
    for row in instances:
        for key, number in _keys_of(row):
            if key.shared in wanted:
                owners.setdefault(key, []).append((row, number))
    keys = Keys(owners)
    found: dict[JobId, JobTasks] = {}
    for job in jobs:
        parts = [owner for key, _ in keys.of(job.name, job.id) for owner in owners[key]]
        if parts:
            # An executor tells of a job again where another scheduler has adopted it.
            (dag_id, run_id, task_id, index), *others = dict.fromkeys(_instance_of(row) for row, _ in parts)
            found[job.id] = JobTasks(
                dag_id=dag_id,
                run_id=run_id,
                task_id=task_id,
                map_index=index,
                try_number=parts[0][1],
                others=tuple(others),
            )
    return found


def _instance_of(row: Any) -> tuple[str, str, str, int]:
    return row.dag_id, row.run_id, row.task_id, -1 if row.map_index is None else row.map_index


def _keys_of(row: Any) -> Iterator[tuple[SubmissionKey, int]]:
    """The keys of the jobs of a task instance, each with its try."""
    if hasattr(row, "extra"):
        if key := key_of(row.extra or ""):
            yield key, row.try_number
        return
    # A retry may go on with the job of an earlier try.
    newest = max(1, row.try_number)
    for number in range(1, newest + 1):
        yield key_of_try(row, row.start_date, number), number
    # One of a pipeline goes on with the job that was submitted ahead for it.
    index = -1 if row.map_index is None or region_of(row) else row.map_index
    for key in ahead_keys(row, row, row.task_id, index):
        yield key, newest
