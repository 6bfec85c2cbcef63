"""A picture of a cluster at one moment, read in a few questions, however many people look at it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from airflow_provider_soperator.board.looks import PATIENCE, Looks, attempt
from airflow_provider_soperator.board.tasks import JobTasks
from airflow_provider_soperator.health.assessment import Observations, assess
from airflow_provider_soperator.health.findings import Finding
from airflow_provider_soperator.hooks.check import in_words
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node, Reservation
from airflow_provider_soperator.slurm.job_ids import JobId, key_of
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.requests import ListJobs, ListNodes, ListReservations

#: Seconds for which a picture is shown before a new one is taken.
INTERVAL = 15.0
#: Seconds that a viewer waits for a new picture before seeing the last one.
GLANCE = 3.0


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A cluster at a moment; a part that could not be read is as it was in the picture before."""

    connection: str
    taken: datetime
    config: ClusterConfig | None = None
    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    #: The tasks of jobs, by the ids that the queue has.
    tasks: Mapping[JobId, JobTasks] = field(default_factory=dict)
    #: Why parts could not be read, as sentences; and since when a part is as it was.
    failures: Mapping[str, str] = field(default_factory=dict)
    since: Mapping[str, datetime] = field(default_factory=dict)

    @property
    def unread(self) -> dict[str, list[str]]:
        """The parts that could not be read, by the reason why."""
        parts: dict[str, list[str]] = {}
        for part, why in self.failures.items():
            parts.setdefault(why, []).append(part)
        return parts

    @cached_property
    def findings(self) -> dict[str, Sequence[Finding]]:
        """The findings of each node that has any."""
        return {name: found for name, found in assess(self.nodes, Observations()).items() if found}


#: The parts of a picture that Slurm is asked for.
_REQUESTS: dict[str, Any] = {"nodes": ListNodes(), "jobs": ListJobs(), "reservations": ListReservations()}


#: A search for the tasks of jobs, which may block.
FindTasks = Callable[[Sequence[Job]], Mapping[JobId, JobTasks]]


async def take(connection: str, find_tasks: FindTasks, before: Picture | None = None) -> Picture:
    """A picture of the cluster behind an Airflow connection. A failure is a part of it, never an error."""
    failures: dict[str, str] = {}

    async def part(name: str, read: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        answer = await attempt(name, failures, read(), None, PATIENCE)
        return {} if name in failures else {name: answer}

    read: dict[str, Any] = {}
    try:
        async with SlurmHook(connection).async_client() as client:
            asked = {name: (lambda request=request: client.ask(request)) for name, request in _REQUESTS.items()}
            parts = [part(name, ask) for name, ask in {"config": client.config, **asked}.items()]
            for one in await asyncio.gather(*parts):
                read |= one
    except Exception as error:
        # The connection itself: each part of the cluster is behind it.
        failures = dict.fromkeys(("config", *_REQUESTS), in_words(error))
    if "jobs" in read:
        read |= await part("tasks", lambda: asyncio.to_thread(find_tasks, read["jobs"]))
    else:
        failures["tasks"] = failures["jobs"]
    now = datetime.now(timezone.utc)
    last = before or Picture(connection=connection, taken=now)
    since = {name: last.since.get(name, last.taken) for name in failures} if before else {}
    kept = {one.name: getattr(last, one.name) for one in fields(Picture) if one.name in failures}
    return Picture(connection=connection, taken=now, failures=failures, since=since, **(read | kept))


class Album:
    """The newest picture of each connection, taken on demand and shared by all viewers."""

    def __init__(self, find_tasks: FindTasks) -> None:
        self._looks: Looks[Picture] = Looks(lambda connection, before: take(connection, find_tasks, before))

    async def newest(self, connection: str) -> Picture | None:
        """A picture that is new enough, else the last one; None while the first one is being taken."""
        return await self._looks.newest(connection, INTERVAL, GLANCE)


def without_tasks(picture: Picture, may_see: Callable[[str], bool], sees_unknown: bool = True) -> Picture:
    """The picture for one who may not see all DAGs: their jobs stay, without names, which have those of their tasks.

    ``sees_unknown``: names stay of jobs whose tasks are not known: of another Airflow, or while the database was away.
    """
    seen = {job: tasks for job, tasks in picture.tasks.items() if may_see(tasks.dag_id)}
    hidden = picture.tasks.keys() - seen.keys()
    if not sees_unknown:
        hidden |= {job.id for job in picture.jobs if job.id not in seen and key_of(job.name)}
    jobs = tuple(replace(job, name="") if job.id in hidden else job for job in picture.jobs) if hidden else picture.jobs
    return replace(picture, tasks=seen, jobs=jobs)
