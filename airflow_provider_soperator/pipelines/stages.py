"""Stages of a pipeline: their tasks, their links, and the parameters known when the DAG is parsed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from airflow.sdk import DAG, BaseOperator, TriggerRule, XComArg
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider_soperator.pipelines.graph import EARLY, KINDS, NO_PAST, Link, PipelineError, Stage, is_slurm_job
from airflow_provider_soperator.slurm import directives
from airflow_provider_soperator.slurm.job_ids import array_indices, array_text
from airflow_provider_soperator.values import is_template

Task = BaseOperator | MappedOperator


def option(task: Task, name: str) -> Any:
    """A parameter of a stage, if all instances of a mapped one share it."""
    if isinstance(task, MappedOperator):
        # Airflow looks these up only when it makes the instances.
        defaults = {**task.dag.default_args, **task.task_group.default_args}  # type: ignore[union-attr]
        return task.partial_kwargs.get(name, defaults.get(name))
    job: Mapping[str, Any] = task.job  # type: ignore[attr-defined]
    return job[name] if name in job else getattr(task, name, None)


def mapped_over(task: Task) -> Collection[str]:
    """The parameters in which a stage's instances differ, if known."""
    if not isinstance(task, MappedOperator):
        return ()
    given = task._get_specified_expand_input().value
    of_each = [given] if isinstance(given, Mapping) else given if isinstance(given, (list, tuple)) else ()
    return {name for one in of_each if isinstance(one, Mapping) for name in one}


def references(task: Task) -> Iterable[tuple[Any, str]]:
    """The tasks whose results a stage uses."""
    if isinstance(task, MappedOperator):
        return XComArg.iter_xcom_references([task._get_specified_expand_input(), task.partial_kwargs])
    return XComArg.iter_xcom_references([getattr(task, name, None) for name in task.template_fields])


def array_of(task: Any) -> list[int] | None:
    """The indices of a stage's array, empty without one; None if they are not known when the DAG is parsed."""
    job = getattr(task, "job", None)
    if job is None:
        # A mapped stage: each of its instances may have another.
        return None
    said = job.get("array")
    if said is None and isinstance(task.script, str) and "\n" in task.script and not is_template(task.script):
        try:
            said = directives.read(task.script)[0].fields.get("array")
        except directives.DirectiveError:
            return None
    elif said is None and (task.script or job.get("remote_script")):
        # It may say so itself, and is not read yet.
        return None
    try:
        return [] if said is None else None if is_template(said) else array_indices(array_text(said))
    except (TypeError, ValueError):
        # The check of the job reports the mistake.
        return None


#: Links of edges without a label, by the trigger rule of the task.
_MEANT = {TriggerRule.ALL_SUCCESS: "afterok", TriggerRule.ALL_DONE: "afterany", TriggerRule.ALL_FAILED: "afternotok"}
_RULES = {frozenset({kind}): rule for rule, kind in _MEANT.items()} | {frozenset(): TriggerRule.ALL_SUCCESS}


class StageReader:
    """Reads the edges of the tasks of one group."""

    def __init__(self, dag: DAG, group_id: str, tasks: Mapping[str, Task]) -> None:
        self._dag, self._group_id, self._tasks = dag, group_id, tasks
        self._clusters = {
            name: str(option(task, "slurm_conn_id") or "soperator_default")
            for name, task in tasks.items()
            if is_slurm_job(task)
        }
        #: Jobs that only Airflow can start. To those after it, each is a task like any other.
        self._alone: set[str] = set()
        #: All that each job follows, jobs and other tasks.
        self.followed = {name: self._follow(tasks[name]) for name in self._clusters}

    def stages(self) -> dict[str, Stage]:
        """The tasks whose jobs can be submitted ahead, with their links."""
        stages: dict[str, Stage] = {}
        while stages.keys() | self._alone != self._clusters.keys():
            stages = {}
            for name in [name for name in self.followed if name not in self._alone]:
                if (stage := self._stage(name)) is None:
                    self._alone.add(name)
                    break
                stages[name] = stage
        for name in stages:
            self._refuse_condition(self._tasks[name])
        return stages

    def _refuse_condition(self, task: Task) -> None:
        hook = option(task, "pre_execute") if isinstance(task, MappedOperator) else task._pre_execute_hook
        if hook is None:
            return
        # It loads all decorators of Airflow, which few DAG files need.
        from airflow.sdk.definitions.decorators import condition

        if getattr(hook, "__module__", "") == condition.__name__:
            raise PipelineError(
                f"{task.task_id} has a condition (@task.run_if or @task.skip_if), but its job is submitted ahead, and "
                f"runs whatever that says: give the condition to a task of Airflow's before it, or make the pipeline "
                f"{self._group_id} a TaskGroup"
            )

    def _stage(self, name: str) -> Stage | None:
        """The stage of a task; None if only Airflow can start its job."""
        links = self.followed[name]
        inside = tuple(link for link in links if self._is_slurms(link, name))
        gates = [link for link in links if link not in inside]
        for link in gates:
            if link.kind in EARLY:
                raise self._not_early(link, name)
        if any(link.kind != "afterok" for link in gates):
            return None
        return Stage(name, self._clusters[name], inside, frozenset(link.upstream for link in gates))

    def _follow(self, task: Task) -> tuple[Link, ...]:
        """What a stage follows; its task gets the matching trigger rule."""
        if task.is_setup or task.is_teardown:
            raise PipelineError(
                f"{task.task_id} is a setup or teardown task, which a job that is submitted ahead cannot be: "
                f"leave that out, or put it outside the pipeline {self._group_id}"
            )
        if past := [name for name in NO_PAST if getattr(task, name)]:
            raise PipelineError(
                f"{task.task_id} has {' and '.join(past)}, but its job is submitted ahead, and does not wait for the "
                f"DAG run before: leave that out, or say False in default_args of the pipeline {self._group_id} "
                f"(max_active_runs=1 of the DAG keeps its runs apart); or make the pipeline a TaskGroup"
            )
        if option(task, "clusters") or "clusters" in mapped_over(task):
            raise PipelineError(
                f"{task.task_id} is to run on another cluster by clusters=, where the ids of other jobs mean nothing: "
                f"give it a connection of that cluster (slurm_conn_id)"
            )
        if "slurm_conn_id" in mapped_over(task):
            raise PipelineError(
                f"{task.task_id} is mapped over slurm_conn_id, but jobs that are submitted together are on one "
                f"cluster: make a stage for each"
            )
        links = tuple(self._link(upstream, task) for upstream in sorted(task.upstream_task_ids))
        # The task itself checks conditions that no trigger rule covers.
        task.trigger_rule = _RULES.get(frozenset(link.kind for link in links), TriggerRule.ALL_DONE)
        return links

    def _not_early(self, link: Link, name: str) -> PipelineError:
        clusters = self._clusters
        why = f"{name} needs its result"
        if link.upstream not in clusters:
            why = f"it is not a job of the pipeline {self._group_id}"
        elif clusters[link.upstream] != clusters[name]:
            why = f"it is on another cluster ({clusters[link.upstream]})"
        elif link.upstream in self._alone:
            why = "its job is not submitted ahead"
        return PipelineError(f"{name} cannot follow {link.upstream} by {link}, as {why}: say afterok()")

    def _is_slurms(self, link: Link, name: str) -> bool:
        """True if Slurm enforces a link, False if Airflow does."""
        # To Slurm the first try's job is all there is, and what is to follow a failure would not wait for another.
        may_come_right = link.kind in ("afterany", "afternotok") and bool(self._dag.get_task(link.upstream).retries)
        return (
            self._clusters.get(link.upstream) == self._clusters[name]
            and link.upstream not in self._alone
            and link.upstream not in {upstream.task_id for upstream, _ in references(self._tasks[name])}
            and not may_come_right
        )

    def _link(self, upstream: str, task: Task) -> Link:
        rule = TriggerRule(task.trigger_rule)
        if rule not in _MEANT:
            raise PipelineError(
                f"{task.task_id} has the trigger rule {rule.value}, which Slurm has no word for: say what it waits for "
                f"on its edges, as in a >> afterany() >> b; there are {', '.join(KINDS)}"
            )
        label = self._dag.get_edge_info(upstream, task.task_id).get("label") or ""
        return Link.parse(upstream, label) or Link(upstream, _MEANT[rule])
