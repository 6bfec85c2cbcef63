"""The two tasks that a pipeline adds to its stages: one submits their jobs ahead, the other cancels what is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.pipelines.graph import Graph, Segment
from airflow_provider_soperator.pipelines.member import states_of
from airflow_provider_soperator.pipelines.plan import AHEAD, Ahead, AheadJob, Plan, plan
from airflow_provider_soperator.pipelines.rendering import Rendered, RenderedStages
from airflow_provider_soperator.pipelines.stages import option
from airflow_provider_soperator.slurm.errors import TogetherRefused
from airflow_provider_soperator.slurm.job_description import InvalidJob
from airflow_provider_soperator.slurm.job_ids import JobId, SubmissionKey, key_of, read_keys, submitted_since
from airflow_provider_soperator.values import is_on

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_provider_soperator.client.sync import SlurmClient


class SubmitAheadOperator(BaseOperator):
    """Submit the jobs of some stages in one go, all of them or none; made by ``SbatchPipeline``.

    In a run that has been cleared in part it submits the jobs that run again, after those that exist already.
    """

    template_fields: Sequence[str] = ("slurm_conn_id", "plan_only")
    ui_color = "#d9f2e6"

    def __init__(
        self, *, graph: Graph, segment: Segment, slurm_conn_id: str, plan_only: bool | str = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.graph, self.segment = graph, segment
        self.slurm_conn_id = slurm_conn_id
        self.plan_only = plan_only

    def prepare_template(self) -> None:
        # Airflow reads this after it has parsed the DAG, so all edges exist.
        pipeline: Any = self.task_group
        if self.task_id == next(iter(pipeline.submits)):
            pipeline.check()

    def execute(self, context: Context) -> Any:
        from airflow_provider_soperator.transports.transport_errors import LastingError

        is_dry = is_on(self.plan_only)
        try:
            stages = RenderedStages(self.dag, self.segment.stages, context, uploads=not is_dry)
            made = self._plan(context, stages)
            rendered = [one for planned in made.submitted for one in stages.render(planned)]
            if is_dry:
                self._show(rendered)
                raise AirflowSkipException("nothing was submitted, as this was a dry run")
            return self._submit(context, rendered, made)
        except (ConnectionMistake, InvalidJob, LastingError) as error:
            raise AirflowFailException(str(error)) from error

    def _plan(self, context: Context, stages: RenderedStages) -> Plan:
        names = {link.upstream for name in self.segment.stages for link in self.graph[name].links}
        known = states_of(context["ti"], sorted(names.union(self.segment.stages)))
        made = plan(
            self.graph, self.segment, lambda name: stages.states(name, known[name]), lambda *of: _job_of(context, *of)
        )
        for name, reason in made.left_out.items():
            self.log.info("%s is not submitted ahead: %s", name, reason)
        return made

    def _submit(self, context: Context, rendered: list[Rendered], made: Plan) -> dict[str, Any]:
        from airflow_provider_soperator.hooks.slurm import SlurmHook

        since = submitted_since(context["dag_run"].start_date)
        ahead = Ahead(context["dag_run"].clear_number or 0)
        with SlurmHook(self.slurm_conn_id).client() as shared:
            client = shared.patient(self.log)
            # Submitted ahead for the same tasks before they were cleared.
            client.cancel_keys([key for one in rendered for key in one.stale])
            try:
                submitted = client.submit_together([one.job for one in rendered], since=since) if rendered else ()
            except TogetherRefused as refused:
                culprit = rendered[refused.number].name
                raise AirflowFailException(f"{culprit}: {refused.__cause__}. {refused.remedy}") from refused
            running = {(name, index): _job_of(context, name, index) for name, index in made.running}
            keys = _keys(client, running.values())
        for (stage, index), job in running.items():
            if job in keys:
                ahead.jobs.setdefault(stage, {})[index] = AheadJob(job, keys[job])
        for one, answer in zip(rendered, submitted, strict=True):
            ahead.jobs.setdefault(one.stage, {})[one.index] = AheadJob(str(answer.id), one.key.text)
            self.log.info("%s is job %s%s", one.name, answer.id, f", {one.waits_for}" if one.waits_for else "")
        context["ti"].xcom_push(AHEAD, ahead.write())
        return {one.name: str(answer.id) for one, answer in zip(rendered, submitted, strict=True)}

    def _show(self, rendered: list[Rendered]) -> None:
        from airflow_provider_soperator.pipelines.chains.writing import as_shell

        self.log.info("These stages would be submitted by\n%s", as_shell({one.name: one.job for one in rendered}))


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
            kept, others = self._left(context, submit)
            if not kept and not others:
                self.log.info("Nothing is left of the jobs of %s: their tasks have succeeded", submit)
                continue
            with SlurmHook(cluster).client() as shared:
                client = shared.patient(self.log)
                left = client.unfinished(kept | others)
                # A job that may outlive its task runs on; if it is pending, it can never run.
                client.cancel_waiting([job for job in left if job in kept])
                client.cancel_many([job for job in left if job in others])
            self.log.info("Of %d jobs whose tasks have not succeeded %d are left", len(kept | others), len(left))
            for job in left:
                self.log.info("Job %s was left over: %s", job, "cancelled if it waits" if job in kept else "cancelled")

    def _left(self, context: Context, submit: str) -> tuple[dict[JobId, SubmissionKey], dict[JobId, SubmissionKey]]:
        """The jobs of tasks that did not succeed, with their keys; those of the others have ended.

        Those that must not be cancelled with their tasks come first.
        """
        said = context["ti"].xcom_pull(task_ids=submit, key=AHEAD)
        ahead = Ahead.read(said) if said else Ahead(0)
        states = states_of(context["ti"], list(ahead.jobs)) if ahead.jobs else {}
        left: tuple[dict[JobId, SubmissionKey], dict[JobId, SubmissionKey]] = {}, {}
        for stage, jobs in ahead.jobs.items():
            # The DAG may have changed during the run.
            given = option(self.dag.get_task(stage), "cancel_on_kill") if self.dag.has_task(stage) else None
            left[given is None or bool(given)].update(
                read_keys({one.job: one.key for index, one in jobs.items() if states[stage].get(index) != "success"})
            )
        return left


def _job_of(context: Context, stage: str, index: int) -> str | None:
    """The job of a running task, from its XCom."""
    job = context["ti"].xcom_pull(task_ids=stage, map_indexes=index, key="job_id")
    return str(job) if job else None


def _keys(client: SlurmClient, jobs: Iterable[str | None]) -> dict[str, str]:
    """The submission keys of jobs in the queue, by job id."""
    from airflow_provider_soperator.slurm.requests import ListJobs

    ids = tuple(JobId.parse(job) for job in jobs if job)
    known = client.ask(ListJobs(ids=ids)) if ids else ()
    return {str(job.id.whole): key.text for job in known if (key := key_of(job.name))}
