"""The task group of a pipeline, and its edges: ``prepare >> afterany() >> tidy_up``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import TaskGroup, TriggerRule
from airflow.sdk.definitions.edges import EdgeModifier

from airflow_provider_soperator.pipelines.graph import Graph, Link, PipelineError
from airflow_provider_soperator.pipelines.stages import is_slurm_job

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from airflow.sdk.types import Operator


class PipelineGroup(TaskGroup):
    """A task group whose jobs are submitted ahead: the jobs, their dependencies, and the tasks that submit them."""

    def __init__(self, group_id: str, **kwargs: Any) -> None:
        super().__init__(group_id=group_id, **kwargs)
        self.graph = Graph()
        #: All that each job follows, jobs and other tasks.
        self.followed: dict[str, tuple[Link, ...]] = {}
        #: The tasks that submit, with their connections.
        self.submits: dict[str, str] = {}

    # Airflow's class is made by attrs, whose copies lack attributes of subclasses.
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **vars(self)}  # type: ignore[misc]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        vars(self).update({name: value for name, value in state.items() if not hasattr(TaskGroup, name)})

    @property
    def has_ended(self) -> bool:
        """True once its ``with`` block has ended."""
        return bool(self.submits)

    def too_late(self, upstream: str, stage: str) -> PipelineError:
        is_in_it = pipeline_around(self.dag.get_task(upstream)) is self
        instead = "" if is_in_it else f", or {upstream} >> {self.group_id}"
        return PipelineError(
            f"{upstream} >> {stage} was said after the end of the pipeline {self.group_id}, whose jobs are submitted "
            f"without waiting for it: say it within the with block{instead}"
        )


def pipeline_of(task: Any) -> PipelineGroup | None:
    """The pipeline whose stage a task is."""
    pipeline = pipeline_around(task)
    return pipeline if pipeline and task.task_id in pipeline.followed else None


def pipeline_around(task: Any) -> PipelineGroup | None:
    """The pipeline whose ``with`` block a task or group is in."""
    group = task.task_group
    while group is not None and not isinstance(group, PipelineGroup):
        group = group.parent_group
    return group


#: Trigger rules with the same effect for tasks without a job.
_RULES = {"afterany": TriggerRule.ALL_DONE, "afternotok": TriggerRule.ALL_FAILED}


class SlurmEdge(EdgeModifier):
    """An edge label with one of Slurm's kinds of dependency."""

    def _convert_streams_to_task_groups(self) -> None:
        """Do nothing: Airflow would put the label between the two groups, and it belongs between the two tasks."""

    def add_edge_info(self, dag: DAG, upstream_id: str, downstream_id: str) -> None:
        # Airflow reports an edge with a group once more, under the group's name.
        if task := dag.task_dict.get(downstream_id):
            link = Link.parse(upstream_id, str(self.label))
            assert link is not None, "it is made from one"
            said = dag.get_edge_info(upstream_id, downstream_id).get("label")
            _check_edge(task, link, Link.parse(upstream_id, said or ""))
        super().add_edge_info(dag, upstream_id, downstream_id)


def _check_edge(task: Operator, link: Link, said: Link | None) -> None:
    pipeline = pipeline_around(task)
    if link.kind != "afterok" and pipeline is not None and task.task_id in pipeline.submits:
        raise PipelineError(
            f"the pipeline {pipeline.group_id} cannot follow {link.upstream} by {link}, only by success: put a task "
            f"between the two that has a trigger rule"
        )
    if link.kind != "afterok" and (pipeline is None or not is_slurm_job(task)):
        rule = _RULES.get(link.kind)
        raise PipelineError(
            f"{task.task_id} cannot follow {link.upstream} by {link}, as it is not a job of a pipeline: say "
            f"{link.upstream} >> {task.task_id}" + (f", and give it trigger_rule={rule.value!r}" if rule else "")
        )
    if pipeline is not None and pipeline.has_ended:
        raise pipeline.too_late(link.upstream, task.task_id)
    if said not in (None, link):
        raise PipelineError(f"{task.task_id} follows {link.upstream} by both {said} and {link}: say one of them")


def edge(kind: str, minutes: int = 0) -> SlurmEdge:
    return SlurmEdge(str(Link("", kind, minutes)))


class _Kind:
    """A kind of dependency, which is called to make an edge; ``PipelineError`` where the parentheses are missing.

    :param minutes: time after the beginning of the other job
    """

    def __init__(self, kind: str) -> None:
        self.__name__ = kind

    def __call__(self, *, minutes: int = 0) -> SlurmEdge:
        return edge(self.__name__, minutes)

    def update_relative(self, other: Any, *_: Any, **__: Any) -> None:
        raise PipelineError(f"{self.__name__} has no parentheses: write a >> {self.__name__}() >> b")

    __rshift__ = __lshift__ = __rrshift__ = __rlshift__ = update_relative


#: Once the other job has succeeded; this is what ``>>`` means by itself.
afterok = _Kind("afterok")
#: Once the other job has ended in any state.
afterany = _Kind("afterany")
#: Once the other job has failed; skipped if it succeeds.
afternotok = _Kind("afternotok")
#: Once the other job has begun, or some minutes later.
after = _Kind("after")
#: For each element of an array, once the element of the same index of the other array has succeeded.
aftercorr = _Kind("aftercorr")
