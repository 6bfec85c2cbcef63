"""What a stage's task says of itself when the DAG is parsed, mapped or not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider_soperator.logger import Logger

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.slurm.job import BatchJob
    from airflow_provider_soperator.slurm.job_ids import SubmissionKey

Task = BaseOperator | MappedOperator


class JobTask(Protocol):
    """A task that is a job of Slurm's, whichever operator it is of."""

    #: By this its kind is known.
    is_slurm_job: ClassVar[bool]
    task_id: str
    slurm_conn_id: str

    @property
    def log(self) -> Logger: ...

    def prepare(self, context: Context, key: SubmissionKey, *, uploads: bool) -> BatchJob:
        """The job as somebody else is to submit it under this key, with its files on the cluster if it ``uploads``."""


def is_slurm_job(task: Any) -> bool:
    kind = task.operator_class if isinstance(task, MappedOperator) else type(task)
    return bool(getattr(kind, "is_slurm_job", False))


def option(task: Task, name: str) -> Any:
    """A parameter of a stage, where it is the same for all of a mapped one's instances."""
    if isinstance(task, MappedOperator):
        # Airflow looks these up only when it makes the instances.
        defaults = {**task.dag.default_args, **task.task_group.default_args}  # type: ignore[union-attr]
        return task.partial_kwargs.get(name, defaults.get(name))
    job: Mapping[str, Any] = task.job  # type: ignore[attr-defined]
    return job[name] if name in job else getattr(task, name, None)


def mapped_over(task: Task) -> Collection[str]:
    """The parameters in which a stage's instances differ, where that is known."""
    if not isinstance(task, MappedOperator):
        return ()
    given = task._get_specified_expand_input().value
    of_each = [given] if isinstance(given, Mapping) else given if isinstance(given, (list, tuple)) else ()
    return {name for one in of_each if isinstance(one, Mapping) for name in one}


def cluster_of(task: Task) -> str:
    return str(option(task, "slurm_conn_id") or "soperator_default")


def references(task: Task) -> Iterable[tuple[Any, str]]:
    """The tasks whose results a stage is made of."""
    if isinstance(task, MappedOperator):
        return XComArg.iter_xcom_references([task._get_specified_expand_input(), task.partial_kwargs])
    return XComArg.iter_xcom_references([getattr(task, name, None) for name in task.template_fields])
