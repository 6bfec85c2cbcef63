"""The two tasks that a pipeline adds to its stages: one submits their jobs ahead, the other cancels what is left.

Jobs that are submitted ahead have their templates rendered as their own tasks would render them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from math import prod
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import DAG, BaseOperator, Context
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.param import process_params
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRuntimeError,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from airflow_provider_soperator.errors import LastingError
from airflow_provider_soperator.pipelines.graph import Graph, Segment, states_of
from airflow_provider_soperator.pipelines.plan import (
    AHEAD,
    BEGINNING,
    TRY,
    UNDER_WAY,
    Ahead,
    AheadJob,
    Place,
    Plan,
    PlannedJob,
    States,
    ahead_keys,
    plan,
)
from airflow_provider_soperator.pipelines.stages import option
from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.errors import LimitExceeded, SubmissionWithdrawn, TogetherRefused
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests.submission import readable_job_name
from airflow_provider_soperator.slurm.sbatch_arguments import asked_for
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of, read_keys, submitted_since
from airflow_provider_soperator.values import is_on, listed

if TYPE_CHECKING:
    from airflow_provider_soperator.client.sync import SlurmClient


class ToldToEnd(AirflowException):
    """A task is told to end while it submits."""

    def __init__(self) -> None:
        super().__init__(
            "the task was told to end while it submitted its jobs: they are cancelled, "
            "and another try submits them anew"
        )


class SubmitAheadOperator(BaseOperator):
    """Submit the jobs of some stages in one go, all of them or none; made by ``SbatchPipeline``.

    In a run that has been cleared in part it submits the jobs that run again, after those that exist already.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "plan_only")
    ui_color = "#d9f2e6"
    _is_submitting = _is_killed = False

    def __init__(
        self, *, graph: Graph, segment: Segment, slurm_conn_id: str, plan_only: bool | str = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.graph, self.segment = graph, segment
        self.slurm_conn_id = slurm_conn_id
        self.plan_only = plan_only

    def prepare_template(self) -> None:
        # Airflow reads this after it has parsed the DAG, so all edges exist.
        pipeline = self._pipeline
        if self.task_id == next(iter(pipeline.submits)):
            pipeline.check()

    @property
    def _pipeline(self) -> Any:
        """The group of the pipeline, in which the task may be in another one."""
        group: Any = self.task_group
        while not hasattr(group, "submits"):
            group = group.parent_group
        return group

    def execute(self, context: Context) -> Any:
        from airflow_provider_soperator.pipelines.chains.writing import as_shell

        is_dry = is_on(self.plan_only)
        try:
            stages = RenderedStages(self.dag, self.segment.stages, context, uploads=not is_dry)
            made, there = self._plan(context, stages)
            jobs = {one: stages.render(one) for one in made.submitted}
            if is_dry:
                script = as_shell({str(one): job for one, job in jobs.items()})
                self.log.info("These stages would be submitted by\n%s", script)
                raise AirflowSkipException("nothing was submitted: plan_only is set")
            stale = [key for one in (*jobs, *made.later) for key in stages.earlier(one.stage, one.index)]
            return self._submit(context, jobs, there, stale)
        except LastingError as error:
            raise AirflowFailException(str(error)) from error

    def on_kill(self) -> None:
        """The worker is told to end the task: no task would look after the jobs, and another try submits them anew."""
        self._is_killed = True
        if self._is_submitting:
            self._is_submitting = False
            # Ends the wait for the cluster, too.
            raise ToldToEnd

    def _plan(self, context: Context, stages: RenderedStages) -> tuple[Plan, dict[Place, AheadJob]]:
        names = {link.upstream for name in self.segment.stages for link in self.graph[name].links}
        known = states_of(context["ti"], sorted(names.union(self.segment.stages)))
        there = self._there(context, stages, known)
        made = plan(
            self.graph,
            self.segment,
            lambda name: stages.states(name, known[name]),
            lambda *of: there[of].job if of in there else None,
        )
        for name, reason in {**made.left_out, **self._for_airflow()}.items():
            self.log.info("%s is not submitted ahead: %s", name, reason)
        return made, there

    def _there(self, context: Context, stages: RenderedStages, states: Mapping[str, States]) -> dict[Place, AheadJob]:
        """The jobs in the queue of tasks that run, and those that tasks will find which are about to begin."""
        from airflow_provider_soperator.hooks.slurm import SlurmHook
        from airflow_provider_soperator.slurm.requests import ListJobs

        places = {(name, index): state for name in states for index, state in states[name].items()}
        had = {place: job_of_task(context, *place) for place, state in places.items() if state in UNDER_WAY}
        if not had:
            return {}
        begin = {key: place for place in had if places[place] in BEGINNING for key in stages.earlier(*place)}
        ids = tuple(JobId.parse(job) for place, job in had.items() if job and places[place] not in BEGINNING)
        with SlurmHook(self.slurm_conn_id).client() as shared:
            client = shared.patient(self.log)
            listed = client.ask(ListJobs(ids=ids)) if ids else ()
            found = client.with_keys(list(begin))
        keys = {str(job.id.whole): key.text for job in listed if (key := key_of(job.name))}
        there = {place: AheadJob(job, keys[job]) for place, job in had.items() if job in keys}
        # One that a task has had already is from before a clear.
        newest = {begin[key]: AheadJob(str(job), key.text) for key, [*_, job] in found.items()}
        return there | {place: job for place, job in newest.items() if job.job != had[place]}

    def _for_airflow(self) -> dict[str, str]:
        """The jobs that follow these stages and that only Airflow can start, with the reasons."""
        waited = {name: [link.upstream for link in links] for name, links in self._pipeline.followed.items()}
        return {
            name: f"its task does that, after {' and '.join(stages)}"
            for name, upstream in waited.items()
            if name not in self.graph.stages and (stages := [one for one in upstream if one in self.segment.stages])
        }

    def _submit(
        self,
        context: Context,
        jobs: Mapping[PlannedJob, BatchJob],
        there: Mapping[Place, AheadJob],
        stale: Sequence[SubmissionKey],
    ) -> dict[str, Any]:
        from airflow_provider_soperator.hooks.slurm import SlurmHook

        since = submitted_since(context["dag_run"].start_date)
        with SlurmHook(self.slurm_conn_id).client() as shared:
            client = shared.patient(self.log)
            # Submitted ahead for the same tasks before they were cleared.
            client.cancel_keys(stale)
            with self._taking_back(shared, context, list(jobs.values()), since):
                try:
                    submitted = client.submit_together(list(jobs.values()), since=since) if jobs else ()
                except TogetherRefused as refused:
                    culprit, cause = list(jobs)[refused.number], refused.__cause__
                    # A limit may leave room for them at another try, and an earlier one that is told to end late may
                    # withdraw what this one submits.
                    may_go_later = isinstance(cause, (LimitExceeded, SubmissionWithdrawn))
                    # The queue may have forgotten a job since the plan: another try plans by how it has ended.
                    if getattr(cause, "option", "") == "--dependency":
                        may_go_later = any(term.old for term in culprit.terms)
                    kind = AirflowException if may_go_later else AirflowFailException
                    raise kind(f"{culprit}: {cause}. {refused.remedy}") from refused
                return self._record(context, jobs, there, [str(answer.id) for answer in submitted])

    @contextmanager
    def _taking_back(
        self, client: SlurmClient, context: Context, jobs: list[BatchJob], since: datetime | None
    ) -> Iterator[None]:
        """Cancel the jobs if the task is told to end, its time is over, or its last try fails, as no task has them."""
        self._is_submitting = True
        try:
            if self._was_killed():
                raise ToldToEnd
            yield
            # Airflow tells the process seconds after the task was marked, which may be too late.
            if self._was_killed() or self._state(context) not in ("running", "success"):
                raise ToldToEnd
        except BaseException as error:
            self._is_submitting = False
            is_told = self._was_killed() or isinstance(error, (ToldToEnd, AirflowTaskTimeout))
            if jobs and (is_told or _is_left_alone(error, context["ti"])):
                try:
                    client.take_back(jobs, since=since)
                except Exception:
                    names = ", ".join(readable_job_name(job) for job in jobs)
                    self.log.exception("Jobs may be left in the queue, of these: %s", names)
            raise
        self._is_submitting = False

    def _state(self, context: Context) -> str | None:
        try:
            return states_of(context["ti"], [self.task_id])[self.task_id].get(-1)
        except AirflowRuntimeError as error:
            self.log.warning("Airflow does not say whether this task was marked in the meantime: %s", error)
            return "running"

    def _was_killed(self) -> bool:
        # By a signal handler, at any time.
        return self._is_killed

    def _record(
        self,
        context: Context,
        jobs: Mapping[PlannedJob, BatchJob],
        there: Mapping[Place, AheadJob],
        submitted: Sequence[str],
    ) -> dict[str, str]:
        """Note for the tasks which jobs are theirs; returns those that are new."""
        ahead = Ahead(context["dag_run"].clear_number or 0, at=time.time())
        # The jobs of the tasks here, and not of other segments.
        found = {place: job for place, job in there.items() if place[0] in self.segment.stages}
        ids = dict(zip(jobs, submitted, strict=True))
        for one, job_id in ids.items():
            key = key_of(jobs[one].name or "")
            assert key is not None, "it was rendered with one"
            found[one.stage, one.index] = AheadJob(job_id, key.text)
            self.log.info("%s is job %s%s", one, job_id, "".join(f", {term}" for term in one.terms))
        for place, job in found.items():
            ahead.add(*place, replace(job, tries=_tries_before(context, *place, job.job)) if ahead.cleared else job)
        context["ti"].xcom_push(AHEAD, ahead.write())
        return {str(one): job_id for one, job_id in ids.items()}


def _is_left_alone(error: BaseException, ti: Any) -> bool:
    """True if no other try goes on with the jobs of one that fails so; a refusal leaves none."""
    if isinstance(error.__cause__, TogetherRefused):
        return False
    return isinstance(error, LastingError) or bool(ti.try_number > ti.max_tries)


class CancelRestOperator(BaseOperator):
    """Cancel what is left of a pipeline's jobs once all of its tasks have ended; made by ``SbatchPipeline``.

    Jobs are left when a task has ended before its job: marked by hand, or failed by an Airflow worker that died.
    """

    template_fields: Sequence[str] = ("submits",)
    ui_color = "#d9f2e6"

    def __init__(self, *, submits: dict[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: The connections of the tasks that submit.
        self.submits = submits

    def execute(self, context: Context) -> None:
        from airflow_provider_soperator.hooks.slurm import SlurmHook

        for submit, cluster in self.submits.items():
            kept, others = self._jobs(context, submit)
            if not kept and not others:
                self.log.info("Nothing is left of the jobs of %s: it has told of none", submit)
                continue
            with SlurmHook(cluster).client() as shared:
                client = shared.patient(self.log)
                left = client.unfinished(kept | others)
                # A job that may outlive its task runs on; if it is pending, it can never run.
                client.cancel_many([job for job in left if job in kept], waiting=True)
                client.cancel_many([job for job in left if job in others])
            self.log.info("Of %d jobs of %s %d are left", len(kept | others), submit, len(left))
            for job in left:
                self.log.info("Job %s was left over: %s", job, "cancelled if it waits" if job in kept else "cancelled")

    def _jobs(self, context: Context, submit: str) -> tuple[dict[JobId, SubmissionKey], dict[JobId, SubmissionKey]]:
        """The jobs, with their keys; first those that must not be cancelled with their tasks.

        Also those of tasks that have succeeded: one that was marked before its turn has not waited for its job.
        """
        said = context["ti"].xcom_pull(task_ids=submit, key=AHEAD)
        ahead = Ahead.read(said) if said else Ahead(0)
        found: tuple[dict[JobId, SubmissionKey], dict[JobId, SubmissionKey]] = {}, {}
        for stage, jobs in ahead.jobs.items():
            # The DAG may have changed during the run.
            given = option(self.dag.get_task(stage), "cancel_on_kill") if self.dag.has_task(stage) else None
            found[given is None or bool(given)].update(read_keys({one.job: one.key for one in jobs.values()}))
        return found


def job_of_task(context: Context, stage: str, index: int) -> str | None:
    """The job of a running task, from its XCom."""
    job = context["ti"].xcom_pull(task_ids=stage, map_indexes=index, key="job_id")
    return str(job) if job else None


def _tries_before(context: Context, stage: str, index: int, job: str) -> int:
    """How many tries a task has had before that with this job, from its XComs."""
    newest = int(context["ti"].xcom_pull(task_ids=stage, map_indexes=index, key=TRY) or 0)
    return newest - (job_of_task(context, stage, index) == job)


# The jobs of stages before their tasks run


class RenderedStages:
    """Renders the stages of a segment in the task that submits them."""

    def __init__(self, dag: DAG, stages: Iterable[str], context: Context, *, uploads: bool) -> None:
        self._dag, self._context, self._uploads = dag, context, uploads
        self._inside = frozenset(stages)
        self._ti: Any = context["ti"]
        self._counts: dict[str, int] = {}

    def states(self, stage: str, known: States) -> States:
        """States of the instances of a stage; a mapped one may have none yet in Airflow."""
        task = self._dag.get_task(stage)
        if not isinstance(task, MappedOperator):
            return {-1: known.get(-1)}
        if stage not in self._counts:
            self._counts[stage] = self._count(task)
        # A mapped stage without instances is skipped.
        return {index: known.get(index) for index in range(self._counts[stage])} or {-1: "skipped"}

    def render(self, planned: PlannedJob) -> BatchJob:
        """The job, under its key, with the keys and ids of those that it waits for."""
        key = self._keys(planned.stage, planned.index)[-1]
        task: Any = self._dag.get_task(planned.stage).prepare_for_execution()
        ti = _StageInstance(self._ti, planned.stage, planned.index, self._inside)
        ti.task = task
        # What the stage's own task would have.
        there, submit = self._context, f"__{self._ti.task_id}__"
        own = {"ti": ti, "task_instance": ti, "task": task, "map_index": planned.index}
        own |= {"inlets": task.inlets, "outlets": task.outlets}
        own["params"] = process_params(self._dag, task, there["dag_run"].conf, suppress_exception=False)
        own["task_instance_key_str"] = there["task_instance_key_str"].replace(submit, f"__{planned.stage}__")
        context = cast("Context", {**there, **own})
        task.render_template_fields(context)
        # A mapped task has put its instance in its place.
        job: BatchJob = cast("Any", context["task"]).prepare(context, key, uploads=self._uploads)
        waits = [
            Dependency(term.kind, *(self._keys(*place)[-1] for place in term.new), *term.old, minutes=term.minutes)
            for term in planned.terms
        ]
        return waiting(job, waits).replace(name=key.name(job.name or "job"))

    def earlier(self, stage: str, index: int) -> list[SubmissionKey]:
        """The keys under which its job may have been submitted before something of the run was cleared."""
        return self._keys(stage, index)[:-1]

    def _keys(self, stage: str, index: int) -> list[SubmissionKey]:
        return ahead_keys(self._ti, self._context["dag_run"], stage, index)

    def _count(self, task: MappedOperator) -> int:
        """Number of instances of a mapped task."""
        context = {**self._context, "ti": _StageInstance(self._ti, task.task_id, 0, self._inside), "task": task}
        given: Any = task._get_specified_expand_input().value
        values = given.values() if isinstance(given, Mapping) else [given]
        found = [value.resolve(context) if hasattr(value, "resolve") else value for value in values]
        return prod(map(len, found))


class _StageInstance:
    """Stand-in for a stage's task instance: asks that of the submitting task, under the stage's name."""

    def __init__(self, ti: Any, stage: str, index: int, inside: frozenset[str]) -> None:
        self._ti, self._inside = ti, inside
        self.task_id, self.map_index = stage, index
        self.try_number, self.max_tries = 1, 0
        self.task: Any = None

    def xcom_pull(self, task_ids: str | Iterable[str] | None = None, **kwargs: Any) -> Any:
        asked = listed(task_ids or ())
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


def waiting(job: BatchJob, terms: list[Dependency]) -> BatchJob:
    """The job with the pipeline's dependencies added to its own."""
    if not terms:
        return job
    own = asked_for(job).dependency
    if isinstance(own, str) and "?" in own:
        raise AirflowFailException(f"dependency={own!s} cannot be joined with the stages that the job is to follow")
    mine = [own] if isinstance(own, (str, Dependency)) else list(own or ())
    # A dependency that can never come true must not end the job: its stage may be granted another try.
    return job.replace(dependency=[*mine, *terms], kill_on_invalid_dep=False)
