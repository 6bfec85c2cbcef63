"""The Airflow tasks whose jobs are in the queue, from Airflow's database: for its API server and its command."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from airflow_provider_soperator.hooks.forms import SOPERATOR
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.pipelines.graph import region_of
from airflow_provider_soperator.slurm.job_ids import CLOCKS, JobId, Keys, key_of
from airflow_provider_soperator.slurm.job_records import Job

#: States in which a task may have a job in the queue.
_ALIVE = ("running", "deferred", "queued", "scheduled", "up_for_retry", "up_for_reschedule", "restarting")
#: Jobs that are remembered with their tasks.
_MOST_KNOWN = 50_000


@dataclass(frozen=True, kw_only=True)
class JobTasks:
    """The task instance of a job; of an array of mapped tasks the first, and how many there are."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    try_number: int = 1
    count: int = 1
    has_ended: bool = False

    def __str__(self) -> str:
        which = f"[{self.map_index}]" if self.map_index >= 0 else ""
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.task_id}{which}{more}"

    def covers(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> bool:
        """True if the job is of this task instance; of mapped ones that share an array only one is named."""
        same = (self.dag_id, self.run_id, self.task_id) == (dag_id, run_id, task_id)
        return same and (self.map_index == map_index or (self.count > 1 and map_index >= 0))

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
    """The type of a connection, written as JSON or as a URI."""
    if text.lstrip().startswith("{"):
        try:
            return str(json.loads(text).get("conn_type", ""))
        except ValueError:
            return ""
    return urlsplit(text).scheme.replace("-", "_")


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


class TaskFinder:
    """The tasks of jobs in the queue: those at work are looked up each time, and one that has ended is remembered."""

    def __init__(self) -> None:
        #: By the names of jobs, which have their submission keys, and by their ids; None: no task is known.
        self._known: dict[tuple[str, JobId], JobTasks | None] = {}

    def __call__(self, jobs: Sequence[Job]) -> Mapping[JobId, JobTasks]:
        keyed = [job for job in jobs if key_of(job.name)]
        if not keyed:
            return {}
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session

        with create_session() as session:
            alive = _instances().where(TaskInstance.state.in_(_ALIVE))
            found = match(keyed, session.execute(alive).all())
            unknown = [job for job in keyed if job.id not in found and (job.name, job.id) not in self._known]
            # A task may have ended before anyone has looked at its job; one search for each job is enough.
            since = min((job.submitted for job in unknown if job.submitted), default=None)
            ended = match(unknown, session.execute(with_jobs_since(since)).all()) if since else {}
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known |= {(job.name, job.id): ended.get(job.id) for job in unknown}
        self._known |= {(job.name, job.id): found[job.id] for job in keyed if job.id in found}
        for job in keyed:
            if job.id not in found and (tasks := self._known.get((job.name, job.id))):
                found[job.id] = replace(tasks, has_ended=True)
        return found


find_tasks = TaskFinder()


def _instances() -> Any:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    return select(TaskInstance, DagRun.start_date).join(TaskInstance.dag_run)


def with_jobs_since(since: datetime) -> Any:
    """The query for task instances that have told the id of a job since then, with the starts of their runs."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from sqlalchemy import and_

    same = [
        getattr(XComModel, name) == getattr(TaskInstance, name) for name in ("dag_id", "run_id", "task_id", "map_index")
    ]
    told = and_(*same, XComModel.key == "job_id")
    return _instances().join(XComModel, told).where(XComModel.timestamp >= since - CLOCKS)


def match(jobs: Sequence[Job], instances: Sequence[Any]) -> dict[JobId, JobTasks]:
    """The tasks of jobs, among task instances with the starts of their runs."""
    from airflow_provider_soperator.work.sbatch import key_of_try

    owners = {
        key_of_try(instance, begun, number): (instance, number)
        for instance, begun in instances
        # A retry may go on with the job of an earlier try.
        for number in range(1, max(1, instance.try_number) + 1)
    }
    keys = Keys(owners)
    found: dict[JobId, JobTasks] = {}
    for job in jobs:
        parts = [owners[key] for key, _ in keys.of(job.name, job.id)]
        if parts:
            first, number = parts[0]
            found[job.id] = JobTasks(
                dag_id=first.dag_id,
                run_id=first.run_id,
                task_id=first.task_id,
                map_index=_map_index(first),
                try_number=number,
                count=len(parts),
            )
    return found


def _map_index(instance: Any) -> int:
    """The map index of a row: Airflow 3.4 has the number of an iteration of a loop in the same column."""
    if not region_of(instance):
        return -1 if instance.map_index is None else int(instance.map_index)
    from airflow.models.task_coordinates import get_public_map_index  # type: ignore[import-not-found,unused-ignore]
    from sqlalchemy.orm import object_session

    return int(get_public_map_index(instance, session=object_session(instance)))
