"""A chain or graph of jobs that lives in Slurm, while each job is a task in Airflow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.pipelines.graph import PipelineError, read_links
from airflow_provider_soperator.pipelines.group import (
    PipelineGroup,
    SlurmEdge,
    after,
    afterany,
    aftercorr,
    afternotok,
    afterok,
)

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
                own, links[name] = read_links(name, given.get("dependency"), stages)
                options = {option: value for option, value in given.items() if option != "dependency"}
                if own:
                    options["dependency"] = own
                tasks[name] = SbatchOperator(task_id=name, **options)
            for name, of_stage in links.items():
                for link in of_stage:
                    tasks[link.upstream] >> SlurmEdge(link) >> tasks[name]
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
        :param variables: variables that the script is called with, and its jobs with it; ``"1"`` is its first argument
        :param ignored: commands that the script may contain and that have no effect here
        """
        from airflow_provider_soperator.pipelines.chains.reading import task_parameters

        pipeline = cls(group_id, **kwargs)
        start = {**pipeline.dag.default_args, **pipeline.default_args}.get("chdir") or ""
        here = Path(pipeline.dag.folder)
        return pipeline._filled(task_parameters(script, here, variables or {}, ignored, start=start))
