"""A picture of a cluster at one moment, read in a few questions, however many people look at it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from airflow_provider_soperator.board.looks import PATIENCE, attempt, kept_since
from airflow_provider_soperator.board.tasks import JobTasks, find_tasks
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.functions.call import FOLDER
from airflow_provider_soperator.health.assessment import Observations, assess
from airflow_provider_soperator.health.findings import Finding
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node, Reservation
from airflow_provider_soperator.slurm.files import FileRequest
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.requests import (
    Command,
    CommandOutput,
    ListJobs,
    ListNodes,
    ListReservations,
    Request,
    ShowConfig,
)
from airflow_provider_soperator.slurm.sbatch_arguments import by_bash
from airflow_provider_soperator.slurm.submission_keys import MARK, Keys, key_of
from airflow_provider_soperator.transports.transport_errors import NotSupported

#: Seconds for which a picture is shown before a new one is taken.
INTERVAL = 15.0
#: Seconds that a viewer waits for a new picture before seeing the last one.
GLANCE = 3.0
#: Time in which a task, or its executor, has told Airflow of a job that was submitted.
_LATE = timedelta(minutes=1)
#: Minutes after which no task reads the file of a call whose job has left the queue.
_OLD = 24 * 60


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A cluster at a moment; a part that could not be read is as it was in the picture before."""

    connection: str
    taken: datetime
    config: ClusterConfig | None = None
    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    #: Files of calls of functions that are a day old.
    files: tuple[str, ...] = ()
    #: The tasks of jobs, by the ids that the queue has.
    tasks: Mapping[JobId, JobTasks] = field(default_factory=dict)
    #: Why parts could not be read, as sentences; and since when a part is as it was.
    failures: Mapping[str, str] = field(default_factory=dict)
    since: Mapping[str, datetime] = field(default_factory=dict)

    def knows(self, *parts: str) -> bool:
        """True if these parts are known, now or as they were: what was never read is not empty."""
        return all(part in self.since or part not in self.failures for part in parts)

    @property
    def unread(self) -> dict[str, list[str]]:
        """The parts that could not be read, by the reason why."""
        parts: dict[str, list[str]] = {}
        for part, why in self.failures.items():
            parts.setdefault(why, []).append(part)
        return parts

    @cached_property
    def idle_files(self) -> tuple[str, ...]:
        """Those of the files whose calls have no job in the queue."""
        called = {file: key_of(f"{MARK}{PurePosixPath(file).stem}") for file in self.files}
        keys = Keys(filter(None, called.values()))
        # Mapped calls go as an array, each as one of its elements.
        in_queue = {key for job in self.jobs for key, _ in keys.of(job.name, job.id)}
        return tuple(sorted(file for file, key in called.items() if key not in in_queue))

    def findings(self, seen: Observations) -> dict[str, Sequence[Finding]]:
        """The findings of each node that has any, by Slurm and by what else was seen."""
        return {name: found for name, found in assess(self.nodes, seen).items() if found}


_FIND = """\
[ ! -d "$PWD/$1" ] || find "$PWD/$1" -maxdepth 1 -ignore_readdir_race -type f -mmin "+$2" -printf '%p\\0'
"""


@dataclass(frozen=True)
class OldFiles(FileRequest[tuple[str, ...]]):
    """Find the files of calls of functions in the user's home that are a day old."""

    doing = "looking for files of calls"

    def command(self) -> Command:
        return Command(by_bash(_FIND, "find", FOLDER, str(_OLD)))

    def read(self, answer: CommandOutput) -> tuple[str, ...]:
        return tuple(word.decode() for word in self.check(answer).stdout.split(b"\0")[:-1])


#: The parts of a picture that the cluster is asked for, each with the seconds for which an answer holds.
_PARTS: Mapping[str, tuple[Request[Any], float]] = {
    "config": (ShowConfig(), 600.0),
    "nodes": (ListNodes(), 0.0),
    "jobs": (ListJobs(), 0.0),
    "reservations": (ListReservations(), 0.0),
    "files": (OldFiles(), 600.0),
}


async def take(connection: str, before: Picture | None = None) -> Picture:
    """A picture of the cluster behind an Airflow connection. A failure is a part of it, never an error."""
    failures: dict[str, str] = {}
    last = before or Picture(connection=connection, taken=datetime.now(timezone.utc))

    async def part(name: str, read: Awaitable[Any]) -> tuple[str, Any]:
        return name, await attempt(name, failures, read, getattr(last, name), PATIENCE)

    async def asked(client: AsyncSlurmClient, name: str) -> Any:
        try:
            return await client.ask_now(*_PARTS[name])
        except NotSupported:
            # Without a way to files there are none.
            return getattr(last, name)

    async with AsyncExitStack() as stack:
        # A secrets backend may not answer either.
        reaching = stack.enter_async_context(SlurmHook(connection).async_client())
        if client := await attempt("connection", failures, reaching, None, PATIENCE):
            read = dict(await asyncio.gather(*(part(name, asked(client, name)) for name in _PARTS)))
        else:
            # Each part of the cluster is behind it.
            failures = dict.fromkeys(_PARTS, failures["connection"])
            read = {name: getattr(last, name) for name in _PARTS}
    if "jobs" in failures:
        failures["tasks"] = failures["jobs"]
        read["tasks"] = last.tasks
    else:
        known = {} if "tasks" in last.failures else {job.id: job.name for job in last.jobs}
        late = last.taken - _LATE
        new = {one.id for one in read["jobs"] if known.get(one.id) != one.name or (one.submitted or late) > late}
        read |= [await part("tasks", asyncio.to_thread(find_tasks, read["jobs"], last.tasks, new))]
    now, since = datetime.now(timezone.utc), kept_since(failures, before)
    return Picture(connection=connection, taken=now, failures=failures, since=since, **read)


def without_tasks(picture: Picture, may_see: Callable[[str], bool], sees_unknown: bool = True) -> Picture:
    """The picture for one who may not see all DAGs: their jobs stay, without names, which have those of their tasks.

    ``sees_unknown``: names stay of jobs whose tasks are not known: of another Airflow, or while the database was away.
    """
    seen = {job: tasks for job, tasks in picture.tasks.items() if may_see(tasks.dag_id)}
    hidden = picture.tasks.keys() - seen.keys()
    if not sees_unknown:
        hidden |= {job.id for job in picture.jobs if job.id not in seen and key_of(job.name)}
    jobs = tuple(replace(job, name="") if job.id in hidden else job for job in picture.jobs) if hidden else picture.jobs
    # Without a name no job is known to be of a call.
    return replace(picture, tasks=seen, jobs=jobs, files=picture.idle_files)
