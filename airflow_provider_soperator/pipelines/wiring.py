"""The tasks that a pipeline adds, and the edges to and from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from airflow.sdk import BaseOperator, TaskGroup, TriggerRule
from airflow.sdk.definitions.taskgroup import MappedTaskGroup

from airflow_provider_soperator.pipelines.graph import EARLY, Graph, PipelineError, Segment, Stage
from airflow_provider_soperator.pipelines.group import PipelineGroup
from airflow_provider_soperator.pipelines.stages import Task
from airflow_provider_soperator.pipelines.submit import CancelRestOperator, SubmitAheadOperator


def wire(pipeline: PipelineGroup, graph: Graph, tasks: Mapping[str, Task], plan_only: bool | str) -> dict[str, str]:
    """Add the tasks that submit, with their connections, and the one that cancels what is left."""
    suffixes = ["", *(f"_{number}" for number in range(2, len(graph.segments) + 1))]
    _refuse_names(pipeline, suffixes)
    submissions = [
        _Submission(pipeline, graph, segment, suffix, plan_only)
        for segment, suffix in zip(graph.segments, suffixes, strict=True)
    ]
    of_stage = {name: submission for submission in submissions for name in submission.segment.stages}
    submits = {submission.task.task_id: submission.segment.cluster for submission in submissions}
    rest = CancelRestOperator(task_id="cancel_rest", submits=submits)
    for name in graph.order:
        _place(tasks[name], graph[name], of_stage)
        if not graph.after(name):
            rest.set_upstream(tasks[name])
    rest.as_teardown(setups=[submission.task for submission in submissions])
    return submits


def _place(task: Task, stage: Stage, of_stage: Mapping[str, _Submission]) -> None:
    """Place a stage's task after the one that submits its job, and no earlier than its job can run."""
    submission = of_stage[stage.name]
    others = {of_stage[link.upstream] for link in stage.links}
    if stage.kinds & EARLY:
        _refuse_to_wait(stage, of_stage)
    for other in others - {submission}:
        submission.task.set_upstream(other.task)
    if stage.kinds & EARLY:
        task.trigger_rule = TriggerRule.ONE_SUCCESS
        task.set_upstream(submission.done)
    elif submission not in others:
        if task.trigger_rule == TriggerRule.ALL_FAILED:
            task.trigger_rule = TriggerRule.ALL_DONE
        task.set_upstream(submission.task if stage.kinds <= {"afterok"} else submission.done)


class _Submission:
    """A segment of a pipeline, and the task that submits it."""

    def __init__(
        self, pipeline: PipelineGroup, graph: Graph, segment: Segment, suffix: str, plan_only: bool | str
    ) -> None:
        self._suffix, self.segment = suffix, segment
        self.task = SubmitAheadOperator(
            task_id=f"submit{suffix}",
            graph=graph,
            segment=segment,
            slurm_conn_id=segment.cluster,
            plan_only=plan_only,
            # It finds jobs that it has submitted before, so another try is safe.
            retries=2,
            # Whatever default_args say of the stages.
            trigger_rule=TriggerRule.ALL_SUCCESS,
        )
        for gate in map(pipeline.dag.get_task, sorted(segment.gates)):
            # Common to all branching operators and decorators, in each version of Airflow.
            if hasattr(gate, "do_branch"):
                raise PipelineError(
                    f"{gate.task_id} chooses between tasks right after it, and would skip the one that submits the "
                    f"jobs of {', '.join(segment.stages)}: put an EmptyOperator between it and each of its choices"
                )
            self.task.set_upstream(gate)

    @cached_property
    def done(self) -> BaseOperator:
        """A task in between, for tasks with a trigger rule that Airflow does not allow right after a setup."""
        from airflow.providers.standard.operators.empty import EmptyOperator

        done = EmptyOperator(task_id=f"submitted{self._suffix}", trigger_rule=TriggerRule.ALL_SUCCESS)
        done.set_upstream(self.task)
        return done


def _refuse_to_wait(stage: Stage, of_stage: Mapping[str, _Submission]) -> None:
    """Refuse a stage that can begin while one task runs and waits for another: no trigger rule covers that."""
    early = next(link for link in stage.links if link.kind in EARLY)
    mine = of_stage[stage.name]
    for gate in sorted(mine.segment.gates - of_stage[early.upstream].segment.gates):
        instead = f", and not {stage.name}" if gate in stage.gates else ", too"
        raise PipelineError(
            f"{stage.name} follows {early.upstream} by {early}, but cannot be submitted with it, as it has to wait for "
            f"{gate}: have {early.upstream} follow {gate}{instead}"
        )
    for other in sorted(stage.gates.union(link.upstream for link in stage.links if of_stage[link.upstream] != mine)):
        raise PipelineError(
            f"{stage.name} may begin while {early.upstream} runs ({early}), for which Airflow has no rule that waits "
            f"for {other}, too: leave {other} >> {stage.name} out, or have {early.upstream} follow {other} in its place"
        )


def refuse_groups(pipeline: PipelineGroup) -> None:
    """Refuse a pipeline in or around groups that do not allow it."""
    if pipeline.has_ended:
        raise PipelineError(f"the pipeline {pipeline.group_id} has ended before: say all of it in one with block")
    for group in _groups(pipeline):
        if isinstance(group, MappedTaskGroup):
            raise PipelineError(
                f"the pipeline {pipeline.group_id} has to do with the mapped group {group.group_id}: map its stages "
                f"instead"
            )
        if isinstance(group, PipelineGroup):
            raise PipelineError(
                f"the pipelines {pipeline.group_id} and {group.group_id} are one within the other: make the inner one "
                f"a TaskGroup, whose jobs are stages, too"
            )


def _refuse_names(pipeline: PipelineGroup, suffixes: list[str]) -> None:
    added = ["cancel_rest", *(f"{name}{suffix}" for suffix in suffixes for name in ("submit", "submitted"))]
    for name in map(pipeline.child_id, added):
        if name in pipeline.used_group_ids:
            raise PipelineError(
                f"there is a {name} already, which is the name of a task that the pipeline {pipeline.group_id} adds: "
                + ("call yours otherwise" if pipeline.prefix_group_id else "leave prefix_group_id=False out")
            )


def refuse_setups(pipeline: PipelineGroup, task: Task) -> None:
    """Refuse setup tasks: Airflow would do so with a message about trigger rules that the user did not choose."""
    for upstream in map(pipeline.dag.get_task, sorted(task.upstream_task_ids)):
        if upstream.is_setup and task.trigger_rule != TriggerRule.ALL_SUCCESS:
            raise PipelineError(
                f"{task.task_id} follows the setup task {upstream.task_id}, after which Airflow wants nothing that "
                f"may run when others have failed, or still run: put another task between the two"
            )


def _groups(pipeline: PipelineGroup) -> Iterator[TaskGroup]:
    """The groups around this one, and those in it."""
    yield from (group for group in pipeline.get_task_group_dict().values() if group is not pipeline)
    group = pipeline.parent_group
    while group is not None:
        yield group
        group = group.parent_group
