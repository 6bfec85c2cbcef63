"""The group that a pipeline is, as its stages and edges see it."""

from __future__ import annotations

from typing import Any

from airflow.sdk import TaskGroup

from airflow_provider_soperator.pipelines.graph import Graph, Link, PipelineError
from airflow_provider_soperator.pipelines.tasks import is_slurm_job


class PipelineGroup(TaskGroup):
    """A task group whose jobs are submitted ahead: which they are, what they follow, and which tasks submit them."""

    def __init__(self, group_id: str, **kwargs: Any) -> None:
        super().__init__(group_id=group_id, **kwargs)
        self.graph = Graph()
        #: For each job all that it follows, jobs and other tasks.
        self.followed: dict[str, tuple[Link, ...]] = {}
        #: The tasks that submit, and the connection of each.
        self.submits: dict[str, str] = {}

    # What attrs makes of Airflow's class leaves out of copies what is not Airflow's.
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **vars(self)}  # type: ignore[misc]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        vars(self).update({name: value for name, value in state.items() if not hasattr(TaskGroup, name)})

    @property
    def has_ended(self) -> bool:
        """Whether its ``with`` block has."""
        return bool(self.submits)

    def takes(self, task: Any) -> bool:
        """Whether a task in the pipeline is a job."""
        return is_slurm_job(task)

    def too_late(self, upstream: str, stage: str) -> PipelineError:
        is_in_it = pipeline_around(self.dag.get_task(upstream)) is self
        instead = "" if is_in_it else f", or {upstream} >> {self.group_id}"
        return PipelineError(
            f"{upstream} >> {stage} was said after the end of the pipeline {self.group_id}, whose jobs are submitted "
            f"without waiting for it: say it within the with block{instead}"
        )


def pipeline_of(task: Any) -> PipelineGroup | None:
    """The pipeline that a task is a stage of."""
    pipeline = pipeline_around(task)
    return pipeline if pipeline and task.task_id in pipeline.followed else None


def pipeline_around(task: Any) -> PipelineGroup | None:
    """The pipeline whose ``with`` block a task or group is in."""
    group = task.task_group
    while group is not None and not isinstance(group, PipelineGroup):
        group = group.parent_group
    return group
