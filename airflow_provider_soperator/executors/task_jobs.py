"""The batch jobs of Airflow's tasks: what each asks for, and which of them go together."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_soperator.executors.runner import WITHDRAWN
from airflow_provider_soperator.slurm.job import BatchJob, fields_of, job_of
from airflow_provider_soperator.slurm.job_description import INTERNAL, InvalidJob
from airflow_provider_soperator.slurm.sbatch_arguments import on_one_node
from airflow_provider_soperator.slurm.submission_keys import ELEMENTS, SubmissionKey, readable_name

#: Fields that are the executor's own.
_FIXED = frozenset(
    ("args", "array", "array_limit", "clusters", "command", "error", "extra_args", "het", "name", "output")
) | {"remote_script", "requeue", "script", *INTERNAL}
#: Tasks that ask for the same and go on their own, each under its name; of more an array is made.
MOST_ALONE = 20
#: Not a field of the job: how many tasks may share one.
SHARE = "share"


@dataclass(frozen=True)
class QueuedTask:
    """A task that Airflow has handed over, with the external id of this leg of it."""

    leg: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    queue: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    #: Airflow's workload, as it is written to a file for the node.
    workload: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def log_path(self) -> str:
        return self.workload.get("log_path") or ""


@dataclass(frozen=True)
class TaskJob:
    """A job, or the element of an array, that runs some tasks; of one that was adopted those that are known."""

    job: BatchJob
    key: SubmissionKey
    tasks: tuple[QueuedTask, ...]
    #: The number of all of them.
    size: int = 1


@dataclass(frozen=True)
class JobDefaults:
    """Fields of all jobs, and of those of each queue; the latter count more, and those of a task most of all."""

    job: Mapping[str, Any] = field(default_factory=dict)
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Queue of tasks that name none.
    default_queue: str = "default"

    def fields(self, task: QueuedTask) -> dict[str, Any]:
        """The fields that a task asks for; a queue that is not configured is a partition.

        >>> defaults = JobDefaults({"time_limit": 60, "env": {"A": "1"}}, {"gpu": {"gpus": 1}})
        >>> task = QueuedTask("", "d", "r", "t", queue="gpu", asked={"env": {"B": "2"}})
        >>> defaults.fields(task)
        {'time_limit': 60, 'env': {'A': '1', 'B': '2'}, 'gpus': 1}
        """
        of_queue = self.queues.get(task.queue)
        if of_queue is None:
            of_queue = {} if task.queue in ("", self.default_queue) else {"partition": task.queue}
        said = (self.job, of_queue, task.asked)
        for one in said:
            if not isinstance(one.get("env") or {}, Mapping):
                raise InvalidJob([f"env: {one['env']!r} is no mapping of names to texts"])
        env = {name: value for one in said for name, value in (one.get("env") or {}).items()}
        return {**self.job, **of_queue, **task.asked, **({"env": env} if env else {})}


@cache
def runner() -> str:
    """The program of the jobs."""
    return Path(__file__).with_name("runner.py").read_text()


@dataclass(frozen=True)
class ExecutorFolder:
    """Where the executor keeps its files on the cluster, and the Python there that has Airflow."""

    root: str
    python: str

    @property
    def tasks(self) -> str:
        """The folder of the workloads."""
        return f"{self.root}/tasks"

    def files_of(self, leg: str) -> tuple[str, ...]:
        return (f"{self.tasks}/{leg}", self.log_of(leg))

    def log_of(self, leg: str) -> str:
        """The link to the log of a task that runs."""
        return f"{self.tasks}/{leg}.log"

    def plan(
        self, tasks: Iterable[QueuedTask], defaults: JobDefaults, env: Mapping[str, str]
    ) -> tuple[list[TaskJob], dict[str, Exception]]:
        """The jobs of some tasks, and for each that is rejected the error.

        Mapped tasks of a run that ask for the same can go as an array, and so can others if they are many. Tasks that
        ask for the same and may ``share`` a job are in one together.
        """
        groups: dict[str, tuple[BatchJob, int, list[QueuedTask]]] = {}
        rejected: dict[str, Exception] = {}
        for task in tasks:
            try:
                job, share = self._job(defaults.fields(task), env)
                kind = json.dumps([fields_of(job), share], sort_keys=True)
            except Exception as error:
                # Whatever one task asks for must not fail those that became ready with it.
                rejected[task.leg] = error
                continue
            groups.setdefault(kind, (job, share, []))[2].append(task)
        made = (
            _shared(job, share, group) if share > 1 else _arrays(job, group) for job, share, group in groups.values()
        )
        jobs = [
            replace(one, job=one.job.replace(args=(self.tasks, *(task.leg for task in one.tasks))))
            for some in made
            for one in some
        ]
        return jobs, rejected

    def _job(self, said: dict[str, Any], env: Mapping[str, str]) -> tuple[BatchJob, int]:
        share = said.pop(SHARE, 1)
        if not isinstance(share, int) or share < 1:
            raise InvalidJob([f"{SHARE}: {share!r} is not a number of tasks"])
        if fixed := sorted(_FIXED & said.keys()):
            raise InvalidJob([f"{', '.join(fixed)}: set by the executor: a task's job runs Airflow"])
        said["env"] = {**env, **(said.get("env") or {})}
        job = job_of(said).replace(
            script=f"#!{self.python}\n{runner()}",
            output=f"{self.root}/output/%j.out",
            # A second start of a task is refused by Airflow: it has retries of its own.
            requeue=False,
        )
        job.check()
        return on_one_node(job), share

    def archive(self, jobs: Iterable[TaskJob]) -> bytes:
        """The files that the jobs read, which only their user can read; also what adopts them needs to know."""
        return _packed(
            (task.leg, json.dumps(said | {"workload": task.workload}).encode())
            for one in jobs
            for said in [{"name": one.job.name, "key": one.key.text, "tasks": one.size}]
            for task in one.tasks
        )

    def withdrawal(self, legs: Iterable[str]) -> bytes:
        """The files that tell jobs not to start these legs."""
        return _packed((leg + WITHDRAWN, b"") for leg in legs)


def _packed(files: Iterable[tuple[str, bytes]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def _arrays(job: BatchJob, group: Sequence[QueuedTask]) -> Iterable[TaskJob]:
    mapped: dict[tuple[str, str, str], list[QueuedTask]] = {}
    for task in group:
        mapped.setdefault((task.dag_id, task.run_id, task.task_id), []).append(task)
    alone = [tasks for tasks in mapped.values() if len(tasks) == 1]
    if len(alone) > MOST_ALONE:
        # Each sbatch takes slurmctld some hundredths of a second.
        mapped = {key: tasks for key, tasks in mapped.items() if len(tasks) > 1}
        mapped["", "", ""] = [task for [task] in alone]
    for tasks in mapped.values():
        for start in range(0, len(tasks), ELEMENTS):
            some = tasks[start : start + ELEMENTS]
            for place, task in enumerate(some):
                yield TaskJob(
                    job.replace(name=_name(some)), _key(some[0].leg, place if len(some) > 1 else None), (task,)
                )


def _shared(job: BatchJob, share: int, group: Sequence[QueuedTask]) -> Iterable[TaskJob]:
    for start in range(0, len(group), share):
        some = tuple(group[start : start + share])
        yield TaskJob(job.replace(name=_name(some)), _key(some[0].leg), some, len(some))


def _name(tasks: Sequence[QueuedTask]) -> str:
    """The name of the job of a task; for several what they have in common, and the number of what they have not.

    >>> _name([QueuedTask("", "train", "manual", "a"), QueuedTask("", "train", "manual", "b")])
    '2.train.manual'
    """
    names = zip(*((task.task_id, task.dag_id, task.run_id) for task in tasks), strict=True)
    task_id, dag_id, run_id = (said[0] if len({*said}) == 1 else str(len({*said})) for said in names)
    return readable_name(dag_id, run_id, task_id, tasks[0].map_index if len(tasks) == 1 else -1)


def _key(leg: str, element: int | None = None) -> SubmissionKey:
    # The id of a leg is a new one each time that Airflow queues a task, other than all that it knows of a try.
    return SubmissionKey.derive("executor", leg, "", -1, "", element=element)
