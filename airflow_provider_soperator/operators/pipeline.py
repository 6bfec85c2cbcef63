"""A chain or graph of jobs that lives in Slurm, while each job is a task in Airflow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, TaskGroup, TriggerRule, XComArg
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.taskgroup import MappedTaskGroup

from airflow_provider_soperator.operators.ahead import CancelRestOperator, SubmitAheadOperator
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.pipelines import names
from airflow_provider_soperator.pipelines.arrays import UNKNOWN, array_of
from airflow_provider_soperator.pipelines.edges import after, afterany, aftercorr, afternotok, afterok, edge
from airflow_provider_soperator.pipelines.graph import (
    EARLY,
    KINDS,
    Graph,
    Link,
    PipelineError,
    Segment,
    Stage,
    check_arrays,
    ordered,
)
from airflow_provider_soperator.pipelines.member import pipeline_around

__all__ = ["PipelineError", "SbatchPipeline", "after", "afterany", "aftercorr", "afternotok", "afterok"]

_Task = BaseOperator | MappedOperator

#: What an edge without a label means, by the rule that its task has been given.
_MEANT = {TriggerRule.ALL_SUCCESS: "afterok", TriggerRule.ALL_DONE: "afterany", TriggerRule.ALL_FAILED: "afternotok"}
_RULES = {frozenset({kind}): rule for rule, kind in _MEANT.items()} | {frozenset(): TriggerRule.ALL_SUCCESS}


class SbatchPipeline(TaskGroup):
    """Batch jobs whose dependencies are Slurm's own, submitted ahead in one go.

        with SbatchPipeline("model", slurm_conn_id="soperator_default") as model:
            prepare = SbatchOperator(task_id="prepare", script="prepare.sbatch")
            fit = SbatchOperator(task_id="fit", script="fit.sbatch", array="0-3")
            report = SbatchOperator(task_id="report", script="report.sbatch")
            prepare >> fit >> afterany() >> report

    ``>>`` is Slurm's ``afterok``; ``afterany()``, ``afternotok()``, ``after(minutes=5)`` and ``aftercorr()`` between
    two stages say anything else. No time of Airflow's passes between two jobs, and each is a task with its own state,
    log, links and retries. A stage that fails for good takes the jobs that were to follow it out of the queue.

    Tasks of other kinds may stand among the stages: what follows them is submitted when they have succeeded. Two tasks
    are added to the group, ``submit`` and ``cancel_rest``. With ``dry_run`` (a template) ``submit`` prints what it
    would do as a shell script, and nothing is run.

    ``of`` makes a pipeline from a dict, ``from_shell`` from a script of chained ``sbatch`` calls.
    """

    def __init__(
        self, group_id: str, *, slurm_conn_id: str | None = None, dry_run: bool | str = False, **kwargs: Any
    ) -> None:
        defaults = dict(kwargs.pop("default_args", None) or {})
        if slurm_conn_id is not None:
            defaults["slurm_conn_id"] = slurm_conn_id
        super().__init__(group_id=group_id, default_args=defaults, **kwargs)  # type: ignore[arg-type]
        self._dry_run = dry_run
        self.graph = Graph()
        #: For each SbatchOperator all that it follows, jobs and other tasks.
        self.followed: dict[str, tuple[Link, ...]] = {}
        #: The tasks that submit, and the connection of each.
        self.submits: dict[str, str] = {}
        #: For each stage the tasks right before it at the end of the ``with`` block.
        self._before: dict[str, frozenset[str]] = {}

    # What attrs makes of Airflow's class leaves out of copies what is not Airflow's.
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **vars(self)}  # type: ignore[misc]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        vars(self).update({name: value for name, value in state.items() if not hasattr(TaskGroup, name)})

    @classmethod
    def of(cls, group_id: str, jobs: Mapping[str, Mapping[str, Any]], **kwargs: Any) -> SbatchPipeline:
        """A pipeline from the parameters of its stages, by name.

            SbatchPipeline.of("model", {
                "prepare": {"script": "prepare.sbatch"},
                "fit": {"script": "fit.sbatch", "array": "0-3", "dependency": "afterok:prepare"},
                "report": {"script": "report.sbatch", "dependency": "afterany:fit,after:prepare+5"},
            })

        ``dependency`` is as Slurm writes it, with names in the place of ids.
        """
        pipeline = cls(group_id, **kwargs)
        with pipeline:
            tasks, links = {}, {}
            for name, given in jobs.items():
                own, links[name] = names.read(name, given.get("dependency"), jobs)
                options = {option: value for option, value in given.items() if option != "dependency"}
                if own:
                    options["dependency"] = own
                tasks[name] = SbatchOperator(task_id=name, **options)
            for name, of_stage in links.items():
                for link in of_stage:
                    tasks[link.upstream] >> edge(link.kind, link.minutes) >> tasks[name]
        return pipeline

    @classmethod
    def from_shell(
        cls,
        group_id: str,
        script: str,
        *,
        variables: Mapping[str, str] | None = None,
        ignored: Collection[str] = (),
        **kwargs: Any,
    ) -> SbatchPipeline:
        """A pipeline from a shell script of chained ``sbatch --dependency`` calls: its text, or a file beside the DAG.

        Scripts that it submits are taken from beside it if they are there, and otherwise meant to be on the cluster.
        ``variables`` are those that the script is called with (``"1"`` is its first argument), ``ignored`` names
        commands that it may contain and that are not run. Nothing of the script is.
        """
        from airflow_provider_soperator.pipelines.shell import stages_of

        pipeline = cls(group_id, **kwargs)
        found = stages_of(script, Path(pipeline.dag.folder), variables or {}, ignored)
        with pipeline:
            tasks = {name: SbatchOperator(task_id=name, **options) for name, options, _ in found}
            for name, _, links in found:
                for link in links:
                    tasks[link.upstream] >> edge(link.kind, link.minutes) >> tasks[name]
        return pipeline

    def __exit__(self, _type: Any, _value: Any, _tb: Any) -> None:
        try:
            if _type is None:
                self._wire()
        finally:
            super().__exit__(_type, _value, _tb)  # type: ignore[no-untyped-call]

    def check(self) -> None:
        """Refuse what has been said of a stage since the end of the ``with`` block: it would not be heeded."""
        for task in self.iter_tasks():
            if self.takes(task) and task.task_id not in self.followed:
                raise PipelineError(
                    f"{task.task_id} was put into the pipeline {self.group_id} after its end: say it in the with block"
                )
            for late in sorted(task.upstream_task_ids - self._before.get(task.task_id, task.upstream_task_ids)):
                raise self.too_late(late, task.task_id)

    def takes(self, task: Any) -> bool:
        """Whether a task in the pipeline is a job."""
        return _is_sbatch(task)

    @property
    def has_ended(self) -> bool:
        """Whether its ``with`` block has."""
        return bool(self.submits)

    def too_late(self, upstream: str, stage: str) -> PipelineError:
        is_in_it = pipeline_around(self.dag.get_task(upstream)) is self
        instead = "" if is_in_it else f", or {upstream} >> {self.group_id}"
        return PipelineError(
            f"{upstream} >> {stage} was said after the end of the pipeline {self.group_id}, whose jobs are submitted "
            f"without waiting for it: say it within the with block{instead}"
        )

    def _wire(self) -> None:
        """Find out what can be submitted together, and add the tasks that do it."""
        self._refuse_groups()
        tasks: dict[str, _Task] = {task.task_id: task for task in self.iter_tasks()}  # type: ignore[misc]
        # Also through tasks that are no stages: of a circle Airflow itself names but one.
        ordered({name: sorted(task.upstream_task_ids & tasks.keys()) for name, task in tasks.items()})
        self.graph = Graph({stage.name: stage for stage in self._stages(tasks)})
        arrays = {name: array for name in self.graph.stages if (array := array_of(tasks[name])) is not UNKNOWN}
        check_arrays(self.graph, arrays)
        if not self.followed:
            raise PipelineError(f"the pipeline {self.group_id} has no stages: put SbatchOperators into its with block")
        if not self.graph.stages:
            raise PipelineError(
                f"the pipeline {self.group_id} has no job that can be submitted ahead, as {', '.join(self.followed)} "
                f"follow tasks that are no jobs of their cluster by other than success: make it a TaskGroup"
            )
        self._refuse_names()
        of_stage: dict[str, _Submission] = {}
        for segment, suffix in zip(self.graph.segments, _suffixes(len(self.graph.segments)), strict=True):
            submission = _Submission(self, segment, suffix, self._dry_run)
            self.submits[submission.task.task_id] = segment.cluster
            of_stage |= dict.fromkeys(segment.stages, submission)
        rest = CancelRestOperator(task_id="cancel_rest", submits=self.submits)
        for name in self.graph.order:
            stage, submission = self.graph[name], of_stage[name]
            others = {of_stage[link.upstream] for link in stage.links}
            if stage.kinds & EARLY:
                _refuse_to_wait(stage, of_stage)
            for other in others - {submission}:
                submission.task.set_upstream(other.task)
            if stage.kinds & EARLY:
                tasks[name].trigger_rule = TriggerRule.ONE_SUCCESS
                tasks[name].set_upstream(submission.done)
            elif submission not in others:
                if tasks[name].trigger_rule == TriggerRule.ALL_FAILED:
                    tasks[name].trigger_rule = TriggerRule.ALL_DONE
                tasks[name].set_upstream(submission.task if stage.kinds <= {"afterok"} else submission.done)
            if not self.graph.after(name):
                rest.set_upstream(tasks[name])
        rest.as_teardown(setups=[submission.task for submission in dict.fromkeys(of_stage.values())])
        self._before = {name: frozenset(tasks[name].upstream_task_ids) for name in self.graph.stages}
        for name in self.followed:
            self._refuse_setups(tasks[name])

    def _stages(self, tasks: Mapping[str, _Task]) -> list[Stage]:
        """The tasks whose jobs can be submitted ahead, with what they follow."""
        clusters = {name: _cluster(task) for name, task in tasks.items() if _is_sbatch(task)}
        for name in clusters:
            self._follow(tasks[name])
        stages: dict[str, Stage] = {}
        alone: set[str] = set()
        # One that Airflow alone can start is, for those after it, a task like any other.
        while stages.keys() | alone != clusters.keys():
            stages = {}
            for name, links in self.followed.items():
                if name in alone:
                    continue
                inside = [link for link in links if self._is_slurms(link, tasks[name], clusters, alone)]
                gates = [link for link in links if link not in inside]
                for link in gates:
                    if link.kind in EARLY:
                        raise self._not_early(link, name, clusters, alone)
                if any(link.kind != "afterok" for link in gates):
                    alone.add(name)
                    break
                stages[name] = Stage(name, clusters[name], tuple(inside), frozenset(link.upstream for link in gates))
        return list(stages.values())

    def _follow(self, task: _Task) -> None:
        """Note what a stage follows, and give its task the trigger rule that says the same."""
        if task.is_setup or task.is_teardown:
            raise PipelineError(
                f"{task.task_id} is a setup or teardown task, which a job that is submitted ahead cannot be: "
                f"leave that out, or put it outside the pipeline {self.group_id}"
            )
        if _option(task, "clusters") or "clusters" in _mapped_over(task):
            raise PipelineError(
                f"{task.task_id} is to run on another cluster by clusters=, where the ids of other jobs mean nothing: "
                f"give it a connection of that cluster (slurm_conn_id)"
            )
        if "slurm_conn_id" in _mapped_over(task):
            raise PipelineError(
                f"{task.task_id} is mapped over slurm_conn_id, but jobs that are submitted together are on one "
                f"cluster: make a stage for each"
            )
        links = tuple(self._link(upstream, task) for upstream in sorted(task.upstream_task_ids))
        self.followed[task.task_id] = links
        # What no rule can say, the task finds out for itself.
        task.trigger_rule = _RULES.get(frozenset(link.kind for link in links), TriggerRule.ALL_DONE)

    def _not_early(self, link: Link, name: str, clusters: Mapping[str, str], alone: Collection[str]) -> PipelineError:
        why = f"{name} needs its result"
        if link.upstream not in clusters:
            why = f"it is no job of the pipeline {self.group_id}"
        elif clusters[link.upstream] != clusters[name]:
            why = f"it is on another cluster ({clusters[link.upstream]})"
        elif link.upstream in alone:
            why = "its job is not submitted ahead"
        return PipelineError(f"{name} cannot follow {link.upstream} by {link}, as {why}: say afterok()")

    def _is_slurms(self, link: Link, task: _Task, clusters: Mapping[str, str], alone: Collection[str]) -> bool:
        """Whether it is Slurm that sees to a link, and not Airflow."""
        # To Slurm the first try's job is all there is, and what is to follow a failure would not wait for another.
        may_come_right = link.kind in ("afterany", "afternotok") and bool(self.dag.get_task(link.upstream).retries)
        return (
            clusters.get(link.upstream) == clusters[task.task_id]
            and link.upstream not in alone
            and link.upstream not in {upstream.task_id for upstream, _ in _references(task)}
            and not may_come_right
        )

    def _link(self, upstream: str, task: _Task) -> Link:
        rule = TriggerRule(task.trigger_rule)
        if rule not in _MEANT:
            raise PipelineError(
                f"{task.task_id} has the trigger rule {rule.value}, which Slurm has no word for: say what it waits for "
                f"on its edges, as in a >> afterany() >> b; there are {', '.join(KINDS)}"
            )
        label = self.dag.get_edge_info(upstream, task.task_id).get("label") or ""
        return Link.parse(upstream, label) or Link(upstream, _MEANT[rule])

    def _refuse_groups(self) -> None:
        if self.has_ended:
            raise PipelineError(f"the pipeline {self.group_id} has ended before: say all of it in one with block")
        for group in self._groups():
            if isinstance(group, MappedTaskGroup):
                raise PipelineError(
                    f"the pipeline {self.group_id} has to do with the mapped group {group.group_id}: map its stages "
                    f"instead"
                )
            if isinstance(group, SbatchPipeline):
                raise PipelineError(
                    f"the pipelines {self.group_id} and {group.group_id} are one within the other: make the inner one "
                    f"a TaskGroup, whose jobs are stages, too"
                )

    def _refuse_names(self) -> None:
        suffixes = _suffixes(len(self.graph.segments))
        added = ["cancel_rest", *(f"{name}{suffix}" for suffix in suffixes for name in ("submit", "submitted"))]
        for name in map(self.child_id, added):
            if name in self.used_group_ids:
                raise PipelineError(
                    f"there is a {name} already, which is the name of a task that the pipeline {self.group_id} adds: "
                    + ("call yours otherwise" if self.prefix_group_id else "leave prefix_group_id=False out")
                )

    def _refuse_setups(self, task: _Task) -> None:
        """Airflow would do so itself, in words about rules that it was not the user who has chosen."""
        for upstream in map(self.dag.get_task, sorted(task.upstream_task_ids)):
            if upstream.is_setup and task.trigger_rule != TriggerRule.ALL_SUCCESS:
                raise PipelineError(
                    f"{task.task_id} follows the setup task {upstream.task_id}, after which Airflow wants nothing that "
                    f"may run when others have failed, or still run: put another task between the two"
                )

    def _groups(self) -> Iterator[TaskGroup]:
        """Those that this one is in, and those in it."""
        yield from (group for group in self.get_task_group_dict().values() if group is not self)
        group = self.parent_group
        while group is not None:
            yield group
            group = group.parent_group


class _Submission:
    """A segment of a pipeline, and the task that submits it."""

    def __init__(self, pipeline: SbatchPipeline, segment: Segment, suffix: str, dry_run: bool | str) -> None:
        self._suffix, self.segment = suffix, segment
        self.task = SubmitAheadOperator(
            task_id=f"submit{suffix}",
            graph=pipeline.graph,
            segment=segment,
            slurm_conn_id=segment.cluster,
            dry_run_only=dry_run,
            # It finds what it has submitted before, so another try does no harm.
            retries=2,
            # Whatever default_args say of the stages.
            trigger_rule=TriggerRule.ALL_SUCCESS,
        )
        for gate in map(pipeline.dag.get_task, sorted(segment.gates)):
            # As operators and decorated functions that choose have in common, in each version of Airflow.
            if hasattr(gate, "do_branch"):
                raise PipelineError(
                    f"{gate.task_id} chooses between tasks right after it, and would skip the one that submits the "
                    f"jobs of {', '.join(segment.stages)}: put an EmptyOperator between it and each of its choices"
                )
            self.task.set_upstream(gate)

    @cached_property
    def done(self) -> BaseOperator:
        """For tasks that have another trigger rule than Airflow allows right after a setup."""
        from airflow.providers.standard.operators.empty import EmptyOperator

        done = EmptyOperator(task_id=f"submitted{self._suffix}", trigger_rule=TriggerRule.ALL_SUCCESS)
        done.set_upstream(self.task)
        return done


def _suffixes(count: int) -> list[str]:
    return ["", *(f"_{number}" for number in range(2, count + 1))]


def _refuse_to_wait(stage: Stage, of_stage: Mapping[str, _Submission]) -> None:
    """Airflow has no rule by which a task that can begin while another one runs waits for a third."""
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


def _is_sbatch(task: Any) -> bool:
    kind = task.operator_class if isinstance(task, MappedOperator) else type(task)
    return issubclass(kind, SbatchOperator)


def _option(task: _Task, name: str) -> Any:
    """A parameter of a stage, where it is the same for all of a mapped one's instances."""
    if isinstance(task, MappedOperator):
        # Airflow looks these up only when it makes the instances.
        defaults = {**task.dag.default_args, **task.task_group.default_args}  # type: ignore[union-attr]
        return task.partial_kwargs.get(name, defaults.get(name))
    assert isinstance(task, SbatchOperator)
    return task.job.get(name) if name != "slurm_conn_id" else task.slurm_conn_id


def _mapped_over(task: _Task) -> Collection[str]:
    """The parameters in which a stage's instances differ, where that is known."""
    if not isinstance(task, MappedOperator):
        return ()
    given = task._get_specified_expand_input().value
    of_each = [given] if isinstance(given, Mapping) else given if isinstance(given, (list, tuple)) else ()
    return {name for one in of_each if isinstance(one, Mapping) for name in one}


def _cluster(task: _Task) -> str:
    return str(_option(task, "slurm_conn_id") or "soperator_default")


def _references(task: _Task) -> Iterable[tuple[Any, str]]:
    """The tasks whose results a stage is made of."""
    if isinstance(task, MappedOperator):
        return XComArg.iter_xcom_references([task._get_specified_expand_input(), task.partial_kwargs])
    return XComArg.iter_xcom_references([getattr(task, name, None) for name in task.template_fields])
