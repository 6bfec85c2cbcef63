"""The jobs of stages before their tasks run: templates are rendered as the tasks would render them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.pipelines.plan import Planned, States, Term, ahead_key
from airflow_provider_soperator.slurm import directives
from airflow_provider_soperator.slurm.dependencies import AnyOf, Dependency
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import SubmissionKey

if TYPE_CHECKING:
    from airflow.sdk import DAG
    from airflow.sdk.definitions.context import Context


#: In a run that was cleared more often, older jobs are not looked for.
_MOST_CLEARED = 20


@dataclass(frozen=True)
class Rendered:
    """A job to submit ahead, with its key."""

    stage: str
    index: int
    job: BatchJob
    key: SubmissionKey
    #: Dependencies in words, for the log.
    waits_for: str = ""
    #: Keys under which it may have been submitted before something of the run was cleared.
    stale: tuple[SubmissionKey, ...] = ()

    @property
    def name(self) -> str:
        return self.stage if self.index < 0 else f"{self.stage}[{self.index}]"


class RenderedStages:
    """Renders the stages of a segment in the task that submits them."""

    def __init__(self, dag: DAG, stages: Iterable[str], context: Context, *, uploads: bool) -> None:
        self._dag, self._context, self._uploads = dag, context, uploads
        self._inside = frozenset(stages)
        self._ti: Any = context["ti"]
        self._cleared: int = context["dag_run"].clear_number or 0
        self._counts: dict[str, int] = {}
        self._before = range(max(0, self._cleared - _MOST_CLEARED), self._cleared)

    def states(self, stage: str, known: States) -> States:
        """States of the instances of a stage; a mapped one may have none yet in Airflow."""
        task = self._dag.get_task(stage)
        if not isinstance(task, MappedOperator):
            return {-1: known.get(-1)}
        if stage not in self._counts:
            self._counts[stage] = self._count(task)
        # A mapped stage without instances is skipped.
        return {index: known.get(index) for index in range(self._counts[stage])} or {-1: "skipped"}

    def render(self, planned: Planned) -> Iterator[Rendered]:
        for index in planned.indices:
            key = self._key(planned.stage, index)
            context = self._context_of(planned.stage, index)
            task: Any = context["task"]
            job: BatchJob = task.prepare(context, key, uploads=self._uploads)
            waits = [_dependency(term, self._key) for term in planned.terms]
            said = [f"{term.kind} {_names(term)}" for term in planned.terms]
            yield Rendered(
                planned.stage,
                index,
                _waiting(job, waits).replace(name=key.name(job.name or "job")),
                key,
                waits_for=", ".join(said),
                stale=tuple(self._key(planned.stage, index, before) for before in self._before),
            )

    def _key(self, stage: str, index: int, cleared: int | None = None) -> SubmissionKey:
        cleared = self._cleared if cleared is None else cleared
        begun = self._context["dag_run"].start_date
        return ahead_key(self._ti.dag_id, self._ti.run_id, stage, index, cleared, begun)

    def _context_of(self, stage: str, index: int) -> Context:
        """The template context that the stage's own task would have."""
        task = self._dag.get_task(stage).prepare_for_execution()
        ti = _StageInstance(self._ti, stage, index, self._inside)
        context = cast("Context", {**self._context, "ti": ti, "task_instance": ti, "task": task, "map_index": index})
        ti.task = task
        task.render_template_fields(context)
        return context

    def _count(self, task: MappedOperator) -> int:
        """Number of instances of a mapped task."""
        context = {**self._context, "ti": _StageInstance(self._ti, task.task_id, 0, self._inside), "task": task}
        given = task._get_specified_expand_input().value
        if isinstance(given, Mapping):
            return prod(len(_resolved(value, context)) for value in given.values())
        return len(_resolved(given, context))


class _StageInstance:
    """Stand-in for a stage's task instance: asks that of the submitting task, under the stage's name."""

    def __init__(self, ti: Any, stage: str, index: int, inside: frozenset[str]) -> None:
        self._ti, self._inside = ti, inside
        self.task_id, self.map_index = stage, index
        self.try_number, self.max_tries = 1, 0
        self.task: Any = None

    def xcom_pull(self, task_ids: str | Iterable[str] | None = None, **kwargs: Any) -> Any:
        asked = [task_ids] if isinstance(task_ids, str) else list(task_ids or ())
        for task_id in asked:
            if task_id in self._inside:
                raise AirflowFailException(
                    f"{self.task_id} asks in its templates for what {task_id} leaves behind, but its job is submitted "
                    f"before {task_id} has run: have {task_id} leave it in a file on the cluster, or put a task of "
                    f"Airflow's between the two"
                )
        return self._ti.xcom_pull(task_ids=task_ids, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ti, name)


def _resolved(value: Any, context: Mapping[str, Any]) -> Any:
    return value.resolve(context) if hasattr(value, "resolve") else value


def _dependency(term: Term, key: Any) -> Dependency:
    jobs = [key(stage, index) for stage, index in term.new]
    return Dependency(term.kind, *jobs, *term.old, minutes=term.minutes)


def _names(term: Term) -> str:
    names = dict.fromkeys(stage for stage, _ in term.new)
    return ", ".join([*names, *(f"job {job}" for job in term.old)])


def _waiting(job: BatchJob, terms: list[Dependency]) -> BatchJob:
    """The job with the pipeline's dependencies added to its own."""
    if not terms:
        return job
    # Options of the command line replace those of the script.
    said = directives.read(job.script)[0].fields if job.script else {}
    own = job.dependency or said.get("dependency")
    if isinstance(own, AnyOf) or (isinstance(own, str) and "?" in own):
        raise AirflowFailException(f"dependency={own!s} cannot be joined with the stages that the job is to follow")
    mine = [own] if isinstance(own, (str, Dependency)) else list(own or ())
    # A dependency that can never come true must not end the job: its stage may be granted another try.
    return job.replace(dependency=[*mine, *terms], kill_on_invalid_dep=False)
