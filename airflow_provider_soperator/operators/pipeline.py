"""A chain or graph of jobs that lives in Slurm, while each job is a task in Airflow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.pipelines import graph
from airflow_provider_soperator.pipelines.graph import Graph, PipelineError, check_arrays, ordered
from airflow_provider_soperator.pipelines.group import (
    PipelineGroup,
    after,
    afterany,
    aftercorr,
    afternotok,
    afterok,
    edge,
)
from airflow_provider_soperator.pipelines.stages import StageReader, Task, array_of, is_slurm_job
from airflow_provider_soperator.pipelines.wiring import refuse_groups, refuse_setups, wire

__all__ = ["PipelineError", "SbatchPipeline", "after", "afterany", "aftercorr", "afternotok", "afterok"]


class SbatchPipeline(PipelineGroup):
    """Batch jobs whose dependencies are Slurm's own, submitted ahead in one go.

        with SbatchPipeline("model", slurm_conn_id="soperator_default") as model:
            prepare = SbatchOperator(task_id="prepare", script="prepare.sbatch")
            fit = SbatchOperator(task_id="fit", script="fit.sbatch", array="0-3")
            report = SbatchOperator(task_id="report", script="report.sbatch")
            prepare >> fit >> afterany() >> report

    ``>>`` is Slurm's ``afterok``; ``afterany()``, ``afternotok()``, ``after(minutes=5)`` and ``aftercorr()`` between
    two stages are the other dependencies. Airflow adds no time between two jobs, and each is a task with its own state,
    log, links and retries. When a stage fails for good, the jobs that can no longer run are cancelled.

    Tasks of other kinds may stand among the stages; the jobs after them are submitted when they have succeeded. The
    group gets two more tasks, ``submit`` and ``cancel_rest``.

    ``of`` makes a pipeline from a dict, ``from_shell`` from a script of chained ``sbatch`` calls.

    :param group_id: name of the task group
    :param slurm_conn_id: Airflow connection to Slurm, for all stages
    :param plan_only: log a shell script that would submit the jobs, and run nothing; a template
    """

    def __init__(
        self, group_id: str, *, slurm_conn_id: str | None = None, plan_only: bool | str = False, **kwargs: Any
    ) -> None:
        defaults = dict(kwargs.pop("default_args", None) or {})
        if slurm_conn_id is not None:
            defaults["slurm_conn_id"] = slurm_conn_id
        super().__init__(group_id, default_args=defaults, **kwargs)
        self._plan_only = plan_only
        #: For each stage the tasks right before it at the end of the ``with`` block.
        self._before: dict[str, frozenset[str]] = {}

    @classmethod
    def of(cls, group_id: str, stages: Mapping[str, Mapping[str, Any]], **kwargs: Any) -> SbatchPipeline:
        """Make a pipeline from the parameters of its stages, by name.

            SbatchPipeline.of("model", {
                "prepare": {"script": "prepare.sbatch"},
                "fit": {"script": "fit.sbatch", "array": "0-3", "dependency": "afterok:prepare"},
                "report": {"script": "report.sbatch", "dependency": "afterany:fit,after:prepare+5"},
            })

        :param group_id: name of the task group
        :param stages: for each stage the parameters of its ``SbatchOperator``; ``dependency`` is as in Slurm, with
            names of stages in the place of ids
        """
        return cls(group_id, **kwargs)._filled(stages)

    def _filled(self, stages: Mapping[str, Mapping[str, Any]]) -> SbatchPipeline:
        with self:
            tasks, links = {}, {}
            for name, given in stages.items():
                own, links[name] = graph.read_links(name, given.get("dependency"), stages)
                options = {option: value for option, value in given.items() if option != "dependency"}
                if own:
                    options["dependency"] = own
                tasks[name] = SbatchOperator(task_id=name, **options)
            for name, of_stage in links.items():
                for link in of_stage:
                    tasks[link.upstream] >> edge(link.kind, link.minutes) >> tasks[name]
        return self

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
        """Make a pipeline from a shell script of chained ``sbatch --dependency`` calls. The script is not run.

        :param group_id: name of the task group
        :param script: text of the shell script, or a file beside the DAG; scripts that it submits are read beside it,
            and otherwise taken to be on the cluster
        :param variables: variables that the script is called with; ``"1"`` is its first argument
        :param ignored: commands that the script may contain and that have no effect here
        """
        from airflow_provider_soperator.pipelines.chains.reading import task_parameters

        pipeline = cls(group_id, **kwargs)
        return pipeline._filled(task_parameters(script, Path(pipeline.dag.folder), variables or {}, ignored))

    def __exit__(self, _type: Any, _value: Any, _tb: Any) -> None:
        try:
            if _type is None:
                self._wire()
        finally:
            super().__exit__(_type, _value, _tb)  # type: ignore[no-untyped-call]

    def check(self) -> None:
        """Reject changes of stages after the end of the ``with`` block, which would have no effect."""
        for task in self.iter_tasks():
            if is_slurm_job(task) and task.task_id not in self.followed:
                raise PipelineError(
                    f"{task.task_id} was put into the pipeline {self.group_id} after its end: say it in the with block"
                )
            for late in sorted(task.upstream_task_ids - self._before.get(task.task_id, task.upstream_task_ids)):
                raise self.too_late(late, task.task_id)

    def _wire(self) -> None:
        """Find out what can be submitted together, and add the tasks that do it."""
        refuse_groups(self)
        tasks: dict[str, Task] = {task.task_id: task for task in self.iter_tasks()}  # type: ignore[misc]
        # Also through tasks that are no stages: of a circle Airflow itself names but one.
        ordered({name: sorted(task.upstream_task_ids & tasks.keys()) for name, task in tasks.items()})
        reader = StageReader(self.dag, str(self.group_id))
        self.graph = Graph({stage.name: stage for stage in reader.stages(tasks)})
        self.followed = reader.followed
        if not self.followed:
            raise PipelineError(f"the pipeline {self.group_id} has no stages: put SbatchOperators into its with block")
        if not self.graph.stages:
            raise PipelineError(
                f"the pipeline {self.group_id} has no job that can be submitted ahead, as {', '.join(self.followed)} "
                f"follow tasks that are no jobs of their cluster by other than success: make it a TaskGroup"
            )
        arrays = {name: array for name in self.graph.stages if (array := array_of(tasks[name])) is not None}
        check_arrays(self.graph, arrays)
        self.submits = wire(self, self.graph, tasks, self._plan_only)
        self._before = {name: frozenset(tasks[name].upstream_task_ids) for name in self.graph.stages}
        for name in self.followed:
            refuse_setups(self, tasks[name])
