"""Edges that say what the one stage waits for in the other: ``prepare >> afterany() >> tidy_up``.

They are labels of Airflow's, so that its graph shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import TriggerRule
from airflow.sdk.definitions.edges import EdgeModifier

from airflow_provider_soperator.pipelines.graph import Link, PipelineError
from airflow_provider_soperator.pipelines.group import pipeline_around

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from airflow.sdk.types import Operator

#: By which rule a task that is no job does the same.
_RULES = {"afterany": TriggerRule.ALL_DONE, "afternotok": TriggerRule.ALL_FAILED}


class SlurmEdge(EdgeModifier):
    """A label that is one of Slurm's kinds of dependency."""

    def _convert_streams_to_task_groups(self) -> None:
        """Nothing: Airflow would put the label between the groups of the two, and this is about the two."""

    def add_edge_info(self, dag: DAG, upstream_id: str, downstream_id: str) -> None:
        # Of an edge with a group Airflow tells once more by the group's name.
        if task := dag.task_dict.get(downstream_id):
            link = Link.parse(upstream_id, str(self.label))
            assert link is not None, "it is made from one"
            said = dag.get_edge_info(upstream_id, downstream_id).get("label")
            _refuse_what_nobody_heeds(task, link, Link.parse(upstream_id, said or ""))
        super().add_edge_info(dag, upstream_id, downstream_id)


def _refuse_what_nobody_heeds(task: Operator, link: Link, said: Link | None) -> None:
    pipeline = pipeline_around(task)
    if link.kind != "afterok" and pipeline is not None and task.task_id in pipeline.submits:
        raise PipelineError(
            f"the pipeline {pipeline.group_id} cannot follow {link.upstream} by {link}, only by success: put a task "
            f"between the two that has a trigger rule"
        )
    if link.kind != "afterok" and (pipeline is None or not pipeline.takes(task)):
        rule = _RULES.get(link.kind)
        raise PipelineError(
            f"{task.task_id} cannot follow {link.upstream} by {link}, as it is no job of a pipeline: say "
            f"{link.upstream} >> {task.task_id}" + (f", and give it trigger_rule={rule.value!r}" if rule else "")
        )
    if pipeline is not None and pipeline.has_ended:
        raise pipeline.too_late(link.upstream, task.task_id)
    if said not in (None, link):
        raise PipelineError(f"{task.task_id} follows {link.upstream} by both {said} and {link}: say one of them")


def edge(kind: str, minutes: int = 0) -> SlurmEdge:
    return SlurmEdge(str(Link("", kind, minutes)))


def afterok() -> SlurmEdge:
    """Once the other job has succeeded; this is what ``>>`` means by itself."""
    return edge("afterok")


def afterany() -> SlurmEdge:
    """Once the other job has ended, however it did."""
    return edge("afterany")


def afternotok() -> SlurmEdge:
    """Once the other job has failed; skipped if it succeeds."""
    return edge("afternotok")


def after(*, minutes: int = 0) -> SlurmEdge:
    """Once the other job has begun, or some minutes later.

    :param minutes: time after the beginning of the other job
    """
    return edge("after", minutes)


def aftercorr() -> SlurmEdge:
    """For each element of an array, once the element of the same index of the other array has succeeded."""
    return edge("aftercorr")
