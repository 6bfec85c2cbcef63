"""A task's place in its pipeline, as the Airflow worker that runs it sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from airflow.sdk import Context, TriggerRule
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from airflow_provider_soperator.errors import ClusterError
from airflow_provider_soperator.pipelines.graph import EARLY, Link, Stage, is_ended, is_met, states_of
from airflow_provider_soperator.pipelines.group import PipelineGroup
from airflow_provider_soperator.pipelines.plan import AHEAD, HAS_JOB, TRY, Ahead, AheadJob, ahead_keys
from airflow_provider_soperator.pipelines.submit import job_of_task, waiting
from airflow_provider_soperator.slurm.dependencies import Dependency
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.requests.submission import dependency_of
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, read_keys

#: Seconds between two looks at tasks whose jobs are not there yet.
_LOOK = 30.0
#: Key in the state that Airflow keeps of a task instance.
_CLEARED_AT = "soperator_cleared_at"


class Member:
    """A running stage: its job, and those that wait for it."""

    def __init__(self, pipeline: PipelineGroup, task: Any, context: Context) -> None:
        self._pipeline, self._task, self._context = pipeline, task, context
        self._ti: Any = context["ti"]
        self._index = -1 if self._ti.map_index is None else int(self._ti.map_index)
        published = self._ti.xcom_pull(task_ids=list(pipeline.submits), key=AHEAD) or []
        self._ahead = [Ahead.read(one) for one in published if one]

    def check(self) -> None:
        """End the task if it must not run: no trigger rule of Airflow's covers two kinds of edges."""
        links = self._pipeline.followed[self._task.task_id]
        if self._task.task_id not in self._pipeline.graph.stages:
            submits = states_of(self._ti, list(self._pipeline.submits))
            if any("skipped" in states.values() for states in submits.values()):
                raise AirflowSkipException("nothing was submitted: plan_only of the pipeline is set")
        if self._task.trigger_rule != TriggerRule.ALL_DONE or all(link.kind == "afterany" for link in links):
            return
        states = states_of(self._ti, [link.upstream for link in links])
        for link in links:
            for state in states[link.upstream].values():
                _refuse_unmet(link, state)

    def waiting(self, job: BatchJob, keys: Sequence[SubmissionKey]) -> BatchJob:
        """The job for a try with these keys: it follows what has not ended, as of a task that begins early."""
        stage = self._pipeline.graph.stages.get(self._task.task_id)
        if stage is None or stage.kinds.isdisjoint(EARLY) or self.is_ahead([key.text for key in keys]):
            return job
        said = ""
        while isinstance(terms := self._terms(stage), str):
            if terms != said:
                self._task.log.info("%s: waiting for it", said := terms)
            # What it waits for may need the slot that this one has.
            self._task.start_later(_LOOK)
        return waiting(job, terms)

    def _terms(self, stage: Stage) -> list[Dependency] | str:
        """What the stage's job is to follow; a text if there is no job yet for it to follow."""
        states = states_of(self._ti, [link.upstream for link in stage.links])
        terms = []
        for link in stage.links:
            ids = []
            for index, state in states[link.upstream].items():
                if is_ended(state):
                    _refuse_unmet(link, state)
                    continue
                known = job_of_task(self._context, link.upstream, index) if state in HAS_JOB else None
                other = self._ahead_of(link.upstream, index)
                # After a clear that may be one that has ended.
                if known is None and other and self._is_newest(other):
                    known = other.job
                if known is None:
                    return f"{link.upstream}, which this is to follow ({link.kind}), has no job yet"
                ids.append(known)
            if ids:
                terms.append(Dependency(link.kind, *ids, minutes=link.minutes))
        return terms

    def job(self) -> AheadJob | None:
        """The job that was submitted ahead for this task."""
        return self._ahead_of(self._task.task_id, self._index)

    def is_ahead(self, keys: Sequence[str]) -> bool:
        """True if the job of a try with these keys was submitted ahead of it."""
        job = self.job()
        return job is not None and job.key == keys[-1]

    def _ahead_of(self, stage: str, index: int) -> AheadJob | None:
        found = (ahead.jobs.get(stage, {}).get(index) for ahead in self._ahead)
        return next(filter(None, found), None)

    def keys(
        self, replaced: list[SubmissionKey], own: list[SubmissionKey]
    ) -> tuple[list[SubmissionKey], list[SubmissionKey]]:
        """Keys of jobs to cancel, and keys of the tries that may have submitted the job to go on with.

        The arguments are those of a task outside a pipeline: of the tries before it was last cleared, and since then.
        """
        if self._task.task_id not in self._pipeline.graph.stages:
            return replaced, own
        # For a task that submits, when this one is cleared.
        self._ti.xcom_push(TRY, self._ti.try_number)
        cleared_at = self._cleared_at(is_first=len(own) == 1)
        run, job = self._context["dag_run"], self.job()
        if job is None:
            # One may be there of which it is not told.
            untold = ahead_keys(self._ti, run, self._task.task_id, self._index)
            return ([*replaced, *untold], own) if replaced or self._is_cut_off() else ([], [*untold, *own])
        ahead = SubmissionKey(job.key)
        if self._is_newest(job):
            return replaced, [ahead, *own[1:]]
        if job.tries >= len(replaced) or self._record_of(job).at >= cleared_at:
            # It may have been cancelled before something was cleared without the task that submits.
            return replaced, [ahead, *own]
        # The task has had it, and was cleared since without the task that submits.
        return [*replaced, ahead], own

    def _is_newest(self, job: AheadJob) -> bool:
        """True if nothing of the run was cleared since the job was submitted ahead."""
        cleared = self._context["dag_run"].clear_number or 0
        return self._record_of(job).cleared == cleared

    def _record_of(self, job: AheadJob) -> Ahead:
        return next(one for one in self._ahead if job in one.of(one.jobs))

    def _cleared_at(self, *, is_first: bool) -> float:
        """When the task was last cleared, in seconds, or begun; ``is_first`` tells its first try since then."""
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        store: Any = self._context.get("task_state_store")
        if not is_first and store and (known := store.get(_CLEARED_AT)):
            return float(known)
        # A clear gives the task instance a new id, a UUID that begins with the milliseconds, and so does a retry.
        cleared_at: float = (self._ti.id.int >> 80) / 1000
        if store:
            store.set(_CLEARED_AT, cleared_at, retention=NEVER_EXPIRE)
        return cleared_at

    def _is_cut_off(self) -> bool:
        """True if the task that submits was ended before it could tell of jobs, and so nobody knows what they wait for.

        One that runs again has told of none yet, and one that has run again leaves out tasks that wait for a retry.
        """
        segments = zip(self._pipeline.submits, self._pipeline.graph.segments, strict=True)
        submit = next(name for name, segment in segments if self._task.task_id in segment.stages)
        has_told = self._ti.xcom_pull(task_ids=submit, key=AHEAD)
        return not has_told and all(map(is_ended, states_of(self._ti, [submit])[submit].values()))

    def chain(self, job: BatchJob) -> dict[str, Any]:
        """The jobs around the task's own, for the trigger: the fields of a ``Chain``."""
        graph, name, ahead = self._pipeline.graph, self._task.task_id, self.job()
        links = self._pipeline.followed[name]
        return {
            "ahead": ahead.job if ahead else "",
            "own": sorted(dependency_of(job).numbers),
            "waiting": self._jobs(graph.after(name)),
            "doomed": self._jobs(graph.doomed_by(name)),
            "follows": [[link.upstream, link.kind] for link in links],
            "before": {link.upstream: jobs for link in links if (jobs := self._jobs([link.upstream]))},
        }

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Context for the end of the task's job: cancels those that can then never run."""
        try:
            yield
        except AirflowSkipException:
            self._give_up("skipped")
            raise
        # The latter is no Exception.
        except (Exception, AirflowTaskTimeout) as error:
            if isinstance(error, AirflowFailException) or self._ti.try_number > self._ti.max_tries:
                self._give_up("failed")
            raise
        self._give_up("success")

    def _give_up(self, state: str) -> None:
        """Cancel the jobs that can never run once the task has ended this way."""
        from airflow_provider_soperator.hooks.slurm import SlurmHook

        task = self._task
        doomed = self._jobs(self._pipeline.graph.doomed_by(task.task_id, state))
        if not doomed:
            return
        try:
            with SlurmHook(task.slurm_conn_id).client() as client:
                client.cancel_many(client.unfinished(read_keys(doomed)), waiting=True)
            task.log.info("Jobs %s, which can never run after this, are out of the queue", ", ".join(doomed))
        except ClusterError as error:
            # The pipeline's last task tries it again.
            task.log.warning("Jobs %s could not be taken out of the queue: %s", ", ".join(doomed), error)

    def _jobs(self, stages: Sequence[str]) -> dict[str, str]:
        """The keys of these stages' jobs, by job id."""
        return {one.job: one.key for ahead in self._ahead for one in ahead.of(stages)}


def _refuse_unmet(link: Link, state: str | None) -> None:
    """End the task if one that it follows has ended otherwise than it needs."""
    if not is_met(link.kind, state):
        said = f"{link.upstream}, which this was to follow ({link.kind}), is {state}"
        skips = state == "skipped" or link.kind == "afternotok"
        raise (AirflowSkipException if skips else AirflowFailException)(said)
