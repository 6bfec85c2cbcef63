"""What a pipeline's task finds of what it has submitted, in another try, after a clear, and of other runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_soperator.cli.rehearsal import rehearsed
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.operators.files import JobFiles
from airflow_provider_soperator.operators.pipeline import SbatchPipeline, afterany
from airflow_provider_soperator.pipelines.plan import AHEAD, TRY, PlannedJob
from airflow_provider_soperator.pipelines.submit import RenderedStages
from airflow_provider_soperator.slurm.errors import LimitExceeded, SubmitRefused, TogetherRefused, classify
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.requests import ListJobs
from airflow_provider_soperator.slurm.requests.submission import Submitted, dependency_of
from airflow_provider_soperator.slurm.sbatch_arguments import asked_for, with_remote_lines
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of
from tests.unit.operators.dags import job
from tests.unit.operators.task_runs import TaskRun, now


class Cluster:
    """Accepts all jobs, and notes what it is asked for."""

    def __init__(self) -> None:
        self.jobs: Sequence[BatchJob] = ()
        self.names: list[str] = []
        self.since: Any = None
        self.cancelled: set[str] = set()
        #: The keys of jobs in the queue.
        self.queue: dict[SubmissionKey, str] = {}
        #: The text of each script there.
        self.lines = ""

    def with_lines(self, job: BatchJob) -> BatchJob:
        return with_remote_lines(job, self.lines)

    def submit_together(self, jobs: Any, *, since: Any) -> Any:
        self.jobs, self.names, self.since = jobs, [one.name for one in jobs], since
        return tuple(Submitted(JobId(number)) for number, _ in enumerate(jobs, 101))

    def patient(self, _: Any) -> Cluster:
        return self

    def cancel_keys(self, keys: Any) -> None:
        self.cancelled |= {key.text for key in keys}

    def with_keys(self, keys: Any) -> Any:
        return {key: {JobId.parse(self.queue[key]): None} for key in keys if key in self.queue}

    def ask(self, request: ListJobs) -> Any:
        there = [Job(id=JobId.parse(job), name=key.name("a")) for key, job in self.queue.items()]
        return [job for job in there if request.admits(job)]


def told(states: Mapping[str, Any]) -> Callable[..., Mapping[str, Any]]:
    """What Airflow says of the stages, while the task that submits runs."""

    def get_task_states(*, task_ids: Sequence[str], **_: Any) -> Mapping[str, Any]:
        if "p.submit" not in task_ids:
            return states
        return {run: {"p.submit": some.get("p.submit", "running")} for run, some in states.items()}

    return get_task_states


class Pipeline:
    """A pipeline of two jobs, whose tasks have not yet run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **of_second: Any) -> None:
        with DAG("d", schedule=None) as self.dag, SbatchPipeline("p"):
            first = job("a", deferrable=True, retries=1)
            first >> job("b", deferrable=True, **of_second)
            first >> afterany() >> job("late")
        self.cluster = Cluster()

        @contextmanager
        def client(_: SlurmHook) -> Iterator[Cluster]:
            yield self.cluster

        monkeypatch.setattr(SlurmHook, "client", client)
        monkeypatch.setattr("airflow_provider_soperator.pipelines.submit.time.time", now)
        states = {"scheduled__1": {"p.a": None, "p.b": None}}
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", told(states))

    def submit(self, run: TaskRun) -> set[str]:
        """The keys of the jobs that a try submits."""
        queue, lines = self.cluster.queue, self.cluster.lines
        self.cluster.__init__()  # type: ignore[misc]
        self.cluster.queue, self.cluster.lines = queue, lines
        submit: Any = self.dag.get_task("p.submit")
        submit.execute({**run.begin(), "params": {}, "dag": self.dag})
        return {key.text for name in self.cluster.names if (key := key_of(name))}

    def begin(self, run: TaskRun) -> Any:
        """What the first stage waits with."""
        stage: Any = self.dag.get_task("p.a")
        with pytest.raises(TaskDeferred) as deferred:
            stage.execute(run.begin())
        return deferred.value.trigger


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    return Pipeline(monkeypatch)


def test_the_log_names_the_jobs_that_come_later(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.submit(TaskRun("p.submit"))
    assert "p.late is not submitted ahead: its task does that, after p.a" in capsys.readouterr().out


def test_the_lines_of_a_script_on_the_cluster_hold_beside_what_is_set_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(monkeypatch, remote_script="/jobs/b", command=None)
    pipeline.cluster.lines = "#!/bin/sh\n#SBATCH -J theirs --dependency=singleton --comment=theirs\n"
    pipeline.submit(TaskRun("p.submit"))
    first, second = pipeline.cluster.jobs
    assert str(second.name).startswith("theirs.af-")
    waits = dependency_of(second)
    assert (waits.is_singleton, waits.keys) == (True, (key_of(str(first.name)),))
    assert asked_for(second).comment == "theirs"


def test_the_templates_of_a_stage_find_what_its_own_task_has() -> None:
    template = "{{ params.rate }} {{ params.seed }} {{ outlets[0].uri }} {{ task_instance_key_str }} {{ map_index }}"
    with DAG("d", schedule=None, params={"rate": 1, "seed": 2}) as dag, SbatchPipeline("p"):
        job("a") >> job("fit", command=template, params={"rate": 3}, outlets=[Asset("s3://b/model")])
    context = rehearsed(dag, dag.get_task("p.submit"), {"seed": 4}, datetime(2026, 11, 23, tzinfo=timezone.utc))
    ahead = RenderedStages(dag, ["p.a", "p.fit"], context, uploads=False).render(PlannedJob("p.fit"))
    assert ahead.command == "3 4 s3://b/model d__p.fit__20261123 -1"


@pytest.mark.parametrize("airflow", ["no state", "3.3", "3.4"])
def test_another_try_goes_on_with_the_jobs_of_the_one_before(pipeline: Pipeline, airflow: str) -> None:
    run = TaskRun("p.submit", airflow=airflow)
    first = pipeline.submit(run)
    assert len(first) == 2
    assert pipeline.submit(run) == first
    assert not pipeline.cluster.cancelled & first


def test_jobs_are_looked_for_from_before_the_run_on_as_the_clocks_may_differ(pipeline: Pipeline) -> None:
    run = TaskRun("p.submit")
    pipeline.submit(run)
    assert pipeline.cluster.since == run.start_date - timedelta(hours=1)


@pytest.mark.parametrize("airflow", ["no state", "3.3", "3.4"])
def test_a_run_that_is_made_again_under_its_id_goes_on_with_nothing(pipeline: Pipeline, airflow: str) -> None:
    deleted, made_again = (TaskRun("p.submit", airflow=airflow) for _ in range(2))
    jobs = pipeline.submit(deleted)
    assert not jobs & pipeline.submit(made_again)
    made_again.clear()
    pipeline.submit(made_again)
    assert not jobs & pipeline.cluster.cancelled


@pytest.mark.parametrize("airflow", ["no state", "3.3", "3.4"])
def test_what_was_submitted_before_a_clear_is_cancelled_and_submitted_again(pipeline: Pipeline, airflow: str) -> None:
    run = TaskRun("p.submit", airflow=airflow)
    first = pipeline.submit(run)
    run.clear()
    second = pipeline.submit(run)
    assert not second & first
    assert first <= pipeline.cluster.cancelled
    run.clear()
    third = pipeline.submit(run)
    assert not third & (first | second)
    assert first | second <= pipeline.cluster.cancelled
    assert not third & pipeline.cluster.cancelled


def test_what_waits_for_an_earlier_job_is_cancelled_where_its_task_submits_it_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another branch was cleared, and with it the task that submits."""
    run = TaskRun("p.submit")
    pipeline.submit(run)
    ahead = {stage: jobs["-1"]["key"] for stage, jobs in json.loads(json.dumps(run.xcoms[AHEAD]))["jobs"].items()}
    run.clear()
    states = {"scheduled__1": {"p.a": "up_for_retry", "p.b": None}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", told(states))
    assert pipeline.submit(run) == set()
    assert pipeline.cluster.cancelled == {ahead["p.b"]}


def test_a_stage_goes_on_with_its_job_unless_it_is_cleared_while_it_runs(pipeline: Pipeline) -> None:
    submitting, stage = TaskRun("p.submit"), TaskRun("p.a", retries=1, airflow="3.4")
    pipeline.submit(submitting)
    submitted = json.loads(json.dumps(submitting.xcoms[AHEAD]))
    ahead = submitted["jobs"]["p.a"]["-1"]["key"]
    stage.pulled = [submitted]
    first = pipeline.begin(stage)
    assert (first.keys, first.replaced) == ([ahead], [])
    retried = pipeline.begin(stage)
    assert retried.keys[0] == ahead
    stage.clear_while_it_runs()
    cleared = pipeline.begin(stage)
    assert ahead not in cleared.keys
    assert {ahead, retried.keys[-1]} <= set(cleared.replaced)


def run_of_stage(pipeline: Pipeline, airflow: str) -> tuple[TaskRun, TaskRun]:
    """A submission, and a stage that has run with its job."""
    submitting, stage = TaskRun("p.submit", airflow=airflow), TaskRun("p.a", retries=1, airflow=airflow)
    stage.start_date = submitting.start_date
    pipeline.submit(submitting)
    stage.pulled = [submitting.xcoms[AHEAD]]
    pipeline.begin(stage)
    return submitting, stage


def ahead_of(submitting: TaskRun) -> str:
    key: str = submitting.xcoms[AHEAD]["jobs"]["p.a"]["-1"]["key"]
    return key


@pytest.mark.parametrize("airflow", ["3.3", "3.4"])
def test_a_stage_that_was_submitted_again_keeps_that_job_whatever_else_is_cleared_before_its_turn(
    pipeline: Pipeline, airflow: str
) -> None:
    submitting, stage = run_of_stage(pipeline, airflow)
    for run in (submitting, stage):
        run.clear()
    # In 3.4 they are those of an attempt, which is archived at a clear.
    submitting.pulled = stage.xcoms[TRY] if airflow == "3.3" else None
    pipeline.submit(submitting)
    stage.pulled, ahead = [submitting.xcoms[AHEAD]], ahead_of(submitting)
    # Another task, alone.
    stage.clear_number += 1
    begun = pipeline.begin(stage)
    assert begun.keys[:-1] == [ahead]
    assert ahead not in begun.replaced
    stage.clear_number += 1
    retried = pipeline.begin(stage)
    assert retried.keys[0] == ahead
    assert ahead not in retried.replaced
    stage.clear()
    cleared = pipeline.begin(stage)
    assert ahead not in cleared.keys
    assert {ahead, retried.keys[-1]} <= set(cleared.replaced)


def test_a_stage_that_has_not_run_has_a_new_job_if_only_what_failed_is_cleared(pipeline: Pipeline) -> None:
    """What it follows failed, and its own job was cancelled: `submit` had succeeded, and is not cleared."""
    submitting, stage = TaskRun("p.submit"), TaskRun("p.a", retries=0)
    stage.start_date = submitting.start_date
    pipeline.submit(submitting)
    stage.pulled = [submitting.xcoms[AHEAD]]
    stage.clear()
    begun = pipeline.begin(stage)
    assert begun.keys[:-1] == [ahead_of(submitting)]
    assert not begun.replaced


@pytest.mark.parametrize("state", ["scheduled", "queued"])
def test_a_task_that_may_begin_at_any_moment_keeps_its_job(
    pipeline: Pipeline, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another branch was cleared, and with it the task that submits."""
    submitting, stage = TaskRun("p.submit"), TaskRun("p.a", retries=1)
    stage.start_date = submitting.start_date
    pipeline.submit(submitting)
    ahead = ahead_of(submitting)
    pipeline.cluster.queue[SubmissionKey(ahead)] = "41"
    submitting.clear()
    states = {"scheduled__1": {"p.a": state, "p.b": None}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", told(states))
    assert len(pipeline.submit(submitting)) == 1
    assert ahead not in pipeline.cluster.cancelled
    assert submitting.xcoms[AHEAD]["jobs"]["p.a"] == {"-1": {"job": "41", "key": ahead, "tries": 0}}
    stage.clear_number = 1
    stage.pulled = [submitting.xcoms[AHEAD]]
    assert pipeline.begin(stage).keys == [ahead]


@pytest.mark.parametrize("tries", [1, 2])
def test_a_stage_finds_its_job_while_the_task_that_submits_runs_again(
    pipeline: Pipeline, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that begins, Airflow removes what it has told of jobs; of a task that waits for a retry it tells no more."""
    submitting, stage = TaskRun("p.submit"), TaskRun("p.a", retries=1)
    stage.start_date = submitting.start_date
    pipeline.submit(submitting)
    states = {"scheduled__1": {"p.submit": "running"}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", told(states))
    stage.pulled, stage.clear_number = [], 1
    for _ in range(tries):
        begun = pipeline.begin(stage)
    assert ahead_of(submitting) in begun.keys[:-1]
    assert not begun.replaced


def test_a_cleared_stage_ends_its_jobs_while_the_task_that_submits_runs_again(pipeline: Pipeline) -> None:
    submitting, stage = run_of_stage(pipeline, "3.3")
    ahead = ahead_of(submitting)
    stage.clear()
    stage.pulled = []
    begun = pipeline.begin(stage)
    assert ahead in begun.replaced
    assert ahead not in begun.keys


def cleared_after_the_first(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, *, is_there: bool) -> TaskRun:
    """A submission that was cleared while the first stage waits for its job, which is in the queue or forgotten."""
    submitting = TaskRun("p.submit")
    pipeline.submit(submitting)
    ahead = ahead_of(submitting)
    if is_there:
        pipeline.cluster.queue[SubmissionKey(ahead)] = "41"
    submitting.clear()
    submitting.pulled = "41"
    states = {"scheduled__1": {"p.a": "deferred", "p.b": None}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", told(states))
    return submitting


@pytest.mark.parametrize("is_there", [True, False])
def test_what_follows_a_job_that_slurm_has_forgotten_is_left_to_its_task(
    pipeline: Pipeline, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm refuses what is to follow the success of such a job, and Airflow may see its end long after that."""
    submitting = cleared_after_the_first(pipeline, monkeypatch, is_there=is_there)
    ahead = ahead_of(submitting)
    assert len(pipeline.submit(submitting)) == is_there
    # Its task has the 41st try: what an XCom is asked for makes no difference here.
    known = {"-1": {"job": "41", "key": ahead, "tries": 40}}
    assert submitting.xcoms[AHEAD]["jobs"].get("p.a") == (known if is_there else None)


@pytest.mark.parametrize("is_known", [True, False])
def test_what_slurm_forgets_between_plan_and_submission_is_planned_anew(
    pipeline: Pipeline, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster was away in between. A dependency of the job's own stays wrong."""
    submitting = cleared_after_the_first(pipeline, monkeypatch, is_there=True) if is_known else TaskRun("p.submit")

    def refuse(*_: Any, **__: Any) -> None:
        raise TogetherRefused("b", 0, classify("sbatch", "Batch job submission failed: Job dependency problem"))

    monkeypatch.setattr(Cluster, "submit_together", refuse)
    with pytest.raises(AirflowException, match="dependency problem") as raised:
        pipeline.submit(submitting)
    assert isinstance(raised.value, AirflowFailException) != is_known


def test_a_stage_sends_no_files_to_a_job_that_has_them_already(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may have changed them before its task begins: they were sent again, and came back as they had gone."""
    sent: list[str] = []
    monkeypatch.setattr(JobFiles, "upload", lambda files, *_, **__: sent.append(files._owner))
    submitting, stage = TaskRun("p.submit"), TaskRun("p.a", retries=1)
    stage.start_date = submitting.start_date
    task: Any = pipeline.dag.get_task("p.a")
    task.upload, task.download = {"state.json": "state.json"}, {"state.json": "state.json"}
    pipeline.submit(submitting)
    assert sent == ["d/scheduled__1/p.a/-1"]
    stage.pulled = [submitting.xcoms[AHEAD]]
    pipeline.begin(stage)
    assert len(sent) == 1
    # The job of another try may need them.
    pipeline.begin(stage)
    assert len(sent) == 2


@pytest.mark.parametrize(
    ("why", "is_final"),
    [(LimitExceeded("AssocMaxSubmitJobLimit"), False), (SubmitRefused("invalid partition specified: mian"), True)],
)
def test_a_limit_that_leaves_no_room_now_is_tried_again(
    pipeline: Pipeline, why: Any, is_final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise TogetherRefused("b", 1, why)

    monkeypatch.setattr(Cluster, "submit_together", refuse)
    with pytest.raises(AirflowException, match=rf"p\.b: .*{why.said}.* submit the group again") as raised:
        pipeline.submit(TaskRun("p.submit"))
    assert isinstance(raised.value, AirflowFailException) == is_final


def test_a_stage_ends_a_job_of_a_submission_that_was_cut_off(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the task that submits was marked by hand: what it has begun on the cluster is completed there."""
    submitting, stage = TaskRun("p.submit"), TaskRun("p.a", retries=1)
    stage.start_date = submitting.start_date
    pipeline.submit(submitting)
    stage.pulled = []
    states = {"scheduled__1": {"p.submit": "success"}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", told(states))
    begun = pipeline.begin(stage)
    assert begun.replaced == [ahead_of(submitting)]
    assert ahead_of(submitting) not in begun.keys
