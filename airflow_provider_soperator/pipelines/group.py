"""The task group of a pipeline: its edges, ``prepare >> afterany() >> tidy_up``, and the tasks that it adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, TaskGroup, TriggerRule
from airflow.sdk.definitions.edges import EdgeModifier
from airflow.sdk.definitions.taskgroup import MappedTaskGroup

from airflow_provider_soperator.pipelines.graph import (
    EARLY,
    NO_PAST,
    Graph,
    Link,
    PipelineError,
    Segment,
    Stage,
    check_arrays,
    is_slurm_job,
    ordered,
)

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from airflow.sdk.types import Operator

    from airflow_provider_soperator.pipelines.stages import Task


class PipelineGroup(TaskGroup):
    """A task group whose jobs are submitted ahead: the jobs, their dependencies, and the tasks that submit them."""

    def __init__(
        self, group_id: str, *, slurm_conn_id: str | None = None, plan_only: bool | str = False, **kwargs: Any
    ) -> None:
        defaults: Any = dict(kwargs.pop("default_args", None) or {})
        if slurm_conn_id is not None:
            defaults["slurm_conn_id"] = slurm_conn_id
        super().__init__(group_id=group_id, default_args=defaults, **kwargs)
        self.plan_only = plan_only
        self.graph = Graph()
        #: All that each job follows, jobs and other tasks.
        self.followed: dict[str, tuple[Link, ...]] = {}
        #: The tasks that submit, with their connections.
        self.submits: dict[str, str] = {}
        #: For each stage the tasks right before it at the end of the ``with`` block.
        self._before: dict[str, frozenset[str]] = {}

    # Airflow's class is made by attrs, whose copies lack attributes of subclasses.
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **vars(self)}  # type: ignore[misc]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        vars(self).update({name: value for name, value in state.items() if not hasattr(TaskGroup, name)})

    def __exit__(self, _type: Any, _value: Any, _tb: Any) -> None:
        try:
            if _type is None:
                self._wire()
        finally:
            super().__exit__(_type, _value, _tb)  # type: ignore[no-untyped-call]

    @property
    def has_ended(self) -> bool:
        """True once its ``with`` block has ended."""
        return bool(self.submits)

    def check(self) -> None:
        """Reject changes of stages after the end of the ``with`` block, which would have no effect."""
        for task in self.iter_tasks():
            if is_slurm_job(task) and task.task_id not in self.followed:
                raise PipelineError(
                    f"{task.task_id} was put into the pipeline {self.group_id} after its end: say it in the with block"
                )
            for late in sorted(task.upstream_task_ids - self._before.get(task.task_id, task.upstream_task_ids)):
                raise self.too_late(late, task.task_id)

    def too_late(self, upstream: str, stage: str) -> PipelineError:
        is_in_it = pipeline_around(self.dag.get_task(upstream)) is self
        instead = "" if is_in_it else f", or {upstream} >> {self.group_id}"
        return PipelineError(
            f"{upstream} >> {stage} was said after the end of the pipeline {self.group_id}, whose jobs are submitted "
            f"without waiting for it: say it within the with block{instead}"
        )

    def _wire(self) -> None:
        """Find out what can be submitted together, and add the tasks that do it and the one that cancels the rest."""
        from airflow_provider_soperator.pipelines.stages import StageReader, array_of
        from airflow_provider_soperator.pipelines.submit import CancelRestOperator

        self._refuse_groups()
        tasks: dict[str, Task] = {task.task_id: task for task in self.iter_tasks()}  # type: ignore[misc]
        # Also through tasks that are no stages: of a circle Airflow itself names but one.
        ordered({name: sorted(task.upstream_task_ids & tasks.keys()) for name, task in tasks.items()})
        reader = StageReader(self.dag, str(self.group_id), tasks)
        self.graph, self.followed = Graph(reader.stages()), reader.followed
        if not self.followed:
            raise PipelineError(f"the pipeline {self.group_id} has no stages: put SbatchOperators into its with block")
        if not self.graph.stages:
            raise PipelineError(
                f"the pipeline {self.group_id} has no job that can be submitted ahead, as {', '.join(self.followed)} "
                f"follow tasks that are no jobs of their cluster by other than success: make it a TaskGroup"
            )
        arrays = {name: array for name in self.graph.stages if (array := array_of(tasks[name])) is not None}
        check_arrays(self.graph, arrays)
        suffixes = ["", *(f"_{number}" for number in range(2, len(self.graph.segments) + 1))]
        homes = [_home(self, segment) for segment in self.graph.segments]
        self._refuse_names(homes, suffixes)
        parts = zip(self.graph.segments, homes, suffixes, strict=True)
        submissions = [_Submission(self, *part) for part in parts]
        of_stage = {name: submission for submission in submissions for name in submission.segment.stages}
        submits = {submission.task.task_id: submission.segment.cluster for submission in submissions}
        rest = CancelRestOperator(task_id="cancel_rest", submits=submits, **NO_PAST)
        for name in self.graph.order:
            _place(tasks[name], self.graph[name], of_stage)
        followed = {link.upstream for stage in self.graph.stages.values() for link in stage.links}
        for name in self.followed:
            # Those that only Airflow can start, too: what does not lead to it runs though nothing could be submitted.
            if name not in followed:
                rest.set_upstream(tasks[name])
        rest.as_teardown(setups=[submission.task for submission in submissions])
        self.submits = submits
        self._before = {name: frozenset(tasks[name].upstream_task_ids) for name in self.graph.stages}
        for name in self.followed:
            self._refuse_setups(tasks[name])

    def _refuse_groups(self) -> None:
        """Refuse a pipeline in or around groups that do not allow it."""
        if self.has_ended:
            raise PipelineError(f"the pipeline {self.group_id} has ended before: say all of it in one with block")
        inside = (group for group in self.get_task_group_dict().values() if group is not self)
        for group in (*inside, *_around(self)):
            if isinstance(group, MappedTaskGroup):
                raise PipelineError(
                    f"the pipeline {self.group_id} has to do with the mapped group {group.group_id}: map its stages "
                    f"instead"
                )
            if isinstance(group, PipelineGroup):
                raise PipelineError(
                    f"the pipelines {self.group_id} and {group.group_id} are one within the other: make the inner one "
                    f"a TaskGroup, whose jobs are stages, too"
                )

    def _refuse_names(self, homes: list[TaskGroup], suffixes: list[str]) -> None:
        added: list[tuple[TaskGroup, str]] = [(self, "cancel_rest")]
        for home, suffix in zip(homes, suffixes, strict=True):
            added += [(home, f"{name}{suffix}") for name in ("submit", "submitted")]
        for home, own in added:
            name = home.child_id(own)  # type: ignore[no-untyped-call]
            if name in self.used_group_ids:
                raise PipelineError(
                    f"there is a {name} already, which is the name of a task that the pipeline {self.group_id} adds: "
                    + ("call yours otherwise" if home.prefix_group_id else "leave prefix_group_id=False out")
                )

    def _refuse_setups(self, task: Task) -> None:
        """Refuse setup tasks: Airflow would do so with a message about trigger rules that the user did not choose."""
        for upstream in map(self.dag.get_task, sorted(task.upstream_task_ids)):
            if upstream.is_setup and task.trigger_rule != TriggerRule.ALL_SUCCESS:
                raise PipelineError(
                    f"{task.task_id} follows the setup task {upstream.task_id}, after which Airflow wants nothing that "
                    f"may run when others have failed, or still run: put another task between the two"
                )


def pipeline_of(task: Any) -> PipelineGroup | None:
    """The pipeline whose stage a task is."""
    pipeline = pipeline_around(task)
    return pipeline if pipeline and task.task_id in pipeline.followed else None


def pipeline_around(task: Any) -> PipelineGroup | None:
    """The pipeline whose ``with`` block a task is in."""
    return next((group for group in _around(task) if isinstance(group, PipelineGroup)), None)


def _around(inner: Any) -> Iterator[TaskGroup]:
    """The groups around a task or group, from the inside out."""
    group = inner.task_group
    while group is not None:
        yield group
        group = group.parent_group


# The tasks that submit

#: Whatever default_args say of the stages.
_WHATEVER_DEFAULTS: Any = {"trigger_rule": TriggerRule.ALL_SUCCESS, **NO_PAST}


def _home(pipeline: PipelineGroup, segment: Segment) -> TaskGroup:
    """The group of the task that submits a segment: the innermost that has both a stage of it and a task before these.

    Otherwise that group and the task would wait for each other, which Airflow 3.5 refuses.
    """
    around = {name: [*_around(pipeline.dag.get_task(name))] for name in (*segment.gates, *segment.stages)}
    shared = [[pipeline, *_around(pipeline)]]
    for gate, stage in product(segment.gates, segment.stages):
        ids = {group.group_id for group in around[stage]}
        shared.append([group for group in around[gate] if group.group_id in ids])
    return max(shared, key=len)[0]


class _Submission:
    """A segment of a pipeline, and the task that submits it."""

    def __init__(self, pipeline: PipelineGroup, segment: Segment, home: TaskGroup, suffix: str) -> None:
        from airflow_provider_soperator.pipelines.submit import SubmitAheadOperator

        self._suffix, self.segment = suffix, segment
        self.task = SubmitAheadOperator(
            task_id=f"submit{suffix}",
            task_group=home,
            graph=pipeline.graph,
            segment=segment,
            slurm_conn_id=segment.cluster,
            plan_only=pipeline.plan_only,
            # It finds jobs that it has submitted before, so another try is safe.
            retries=2,
            **_WHATEVER_DEFAULTS,
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

        home = self.task.task_group
        done = EmptyOperator(task_id=f"submitted{self._suffix}", task_group=home, **_WHATEVER_DEFAULTS)
        done.set_upstream(self.task)
        return done


def _place(task: Task, stage: Stage, of_stage: Mapping[str, _Submission]) -> None:
    """Place a stage's task after the one that submits its job, and no earlier than its job can run."""
    submission = of_stage[stage.name]
    if (task.start_date, task.end_date) != (submission.task.start_date, submission.task.end_date):
        raise PipelineError(
            f"{stage.name} has a start_date or end_date of its own, but its job is submitted with those of other "
            f"stages, in each DAG run: leave that out, or say it of the DAG; or make the pipeline a TaskGroup"
        )
    others = {of_stage[link.upstream] for link in stage.links}
    is_early = not stage.kinds.isdisjoint(EARLY)
    if is_early:
        _refuse_to_wait(stage, of_stage)
    for other in others - {submission}:
        submission.task.set_upstream(other.task)
    if is_early:
        task.trigger_rule = TriggerRule.ONE_SUCCESS
        task.set_upstream(submission.done)
    elif submission not in others:
        if task.trigger_rule == TriggerRule.ALL_FAILED:
            task.trigger_rule = TriggerRule.ALL_DONE
        task.set_upstream(submission.task if stage.kinds <= {"afterok"} else submission.done)


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


# Edges

#: Trigger rules with the same effect for tasks without a job.
_RULES = {"afterany": TriggerRule.ALL_DONE, "afternotok": TriggerRule.ALL_FAILED}


class SlurmEdge(EdgeModifier):
    """An edge label with one of Slurm's kinds of dependency."""

    def __init__(self, link: Link) -> None:
        super().__init__(str(link))
        self._link = link

    def _convert_streams_to_task_groups(self) -> None:
        """Do nothing: Airflow would put the label between the two groups, and it belongs between the two tasks."""

    def add_edge_info(self, dag: DAG, upstream_id: str, downstream_id: str) -> None:
        # Airflow reports an edge with a group once more, under the group's name.
        if task := dag.task_dict.get(downstream_id):
            said = dag.get_edge_info(upstream_id, downstream_id).get("label")
            _check_edge(task, replace(self._link, upstream=upstream_id), Link.parse(upstream_id, said or ""))
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


class _Kind:
    """A kind of dependency, which is called to make an edge; ``PipelineError`` where the parentheses are missing.

    :param minutes: time after the beginning of the other job
    """

    def __init__(self, kind: str) -> None:
        self.__name__ = kind

    def __call__(self, *said: object, minutes: int = 0) -> SlurmEdge:
        if said:
            raise PipelineError(
                f"{self.__name__}({said[0]!r}) is no edge: write {self.__name__}(), or after(minutes=5)"
            )
        return SlurmEdge(Link("", self.__name__, minutes))

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
