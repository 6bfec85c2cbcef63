"""Jobs that a pipeline has submitted ahead and cancels hours later."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferred,
)

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.pace import Pace
from airflow_provider_soperator.client.sync import SlurmClient
from airflow_provider_soperator.operators.pipeline import SbatchPipeline, after, afterany, aftercorr
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.pipelines import member, submit
from airflow_provider_soperator.pipelines.graph import Graph, Link, Segment, Stage
from airflow_provider_soperator.pipelines.member import Member
from airflow_provider_soperator.pipelines.plan import AHEAD as AHEAD_KEY
from airflow_provider_soperator.pipelines.plan import Ahead, AheadJob, PlannedJob
from airflow_provider_soperator.pipelines.submit import CancelRestOperator, SubmitAheadOperator
from airflow_provider_soperator.slurm.dependencies import dependency_text
from airflow_provider_soperator.slurm.errors import NotPermitted, SubmissionWithdrawn, TogetherRefused
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import CancelJobs, Request
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Together, Withdraw
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.transport_errors import Unreachable
from airflow_provider_soperator.triggers.sbatch import LaterStartTrigger
from tests.unit.client.tracking import Slurm, queued
from tests.unit.operators.dags import job, taken

OURS, THEIRS = (SubmissionKey(letter * 12) for letter in "az")
AHEAD = Ahead(0, {"fit": {index: AheadJob(str(8 + index), OURS.text) for index in range(4)}})


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """One job is there, others were given the numbers of the second and the fourth, and the third has ended."""
    slurm = Slurm(
        queued("8", "PENDING", OURS.name("fit")),
        queued("9", "PENDING", THEIRS.name("fit")),
        queued("10", "COMPLETED", OURS.name("fit")),
        # Anybody can give a job this name.
        queued("11", "PENDING", OURS.name("fit"), user="mallory"),
    )

    class Hook:
        def __init__(self, slurm_conn_id: str) -> None: ...

        @contextlib.contextmanager
        def client(self) -> Iterator[SlurmClient]:
            yield SlurmClient(AsyncSlurmClient(slurm))

    monkeypatch.setattr("airflow_provider_soperator.hooks.slurm.SlurmHook", Hook)
    states = dict.fromkeys(range(4)) | {-1: "running"}
    monkeypatch.setattr(submit, "states_of", lambda ti, tasks: dict.fromkeys(tasks, states))
    return slurm


def test_what_is_left_of_a_stage_that_was_marked_as_succeeded_before_its_turn_is_cancelled(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = dict.fromkeys(range(4), "success")
    monkeypatch.setattr(submit, "states_of", lambda ti, tasks: dict.fromkeys(tasks, states))
    test_what_is_left_is_cancelled_by_its_number_and_key(slurm, True)


@pytest.mark.parametrize("cancel_on_kill", [True, False])
def test_what_is_left_is_cancelled_by_its_number_and_key(slurm: Slurm, cancel_on_kill: bool) -> None:
    with DAG("d", schedule=None):
        SbatchOperator(task_id="fit", command="fit", cancel_on_kill=cancel_on_kill)
        rest = CancelRestOperator(task_id="cancel_rest", submits={"submit": "cluster"})
    context: Any = {"ti": SimpleNamespace(xcom_pull=lambda **_: AHEAD.write())}
    rest.execute(context)
    assert slurm.orders == [CancelJobs(ids=(JobId(8),), waiting=not cancel_on_kill)]


@pytest.mark.parametrize("error", [RuntimeError, AirflowTaskTimeout])
def test_what_can_never_run_is_cancelled_by_its_number_and_key(slurm: Slurm, error: type[BaseException]) -> None:
    graph = Graph({"prepare": Stage("prepare", "c"), "fit": Stage("fit", "c", (Link("prepare"),))})
    pipeline: Any = SimpleNamespace(submits={"submit": "cluster"}, graph=graph, followed={})
    task = SimpleNamespace(task_id="prepare", slurm_conn_id="cluster", log=logging.getLogger(__name__))
    ti = SimpleNamespace(xcom_pull=lambda **_: [AHEAD.write()], map_index=-1, try_number=1, max_tries=0)
    context: Any = {"ti": ti}
    with pytest.raises(error), Member(pipeline, task, context).ending():
        raise error("it failed")
    assert slurm.orders == [CancelJobs(ids=(JobId(8),), waiting=True)]


@pytest.mark.parametrize("state", ["skipped", "failed"])
def test_what_follows_a_skipped_stage_is_skipped(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with taken() as dag, SbatchPipeline("p") as p:
        prepare, other, fit = map(job, ("prepare", "other", "fit"))
        prepare >> fit
        other >> afterany() >> fit
    states = {"p.prepare": {-1: state}, "p.other": {-1: "failed"}}
    monkeypatch.setattr(member, "states_of", lambda ti, names: {name: states[name] for name in names})
    context: Any = {"ti": SimpleNamespace(xcom_pull=lambda **_: [], map_index=-1)}
    ends = AirflowSkipException if state == "skipped" else AirflowFailException
    with pytest.raises(ends, match=rf"p\.prepare, which this was to follow \(afterok\), is {state}"):
        Member(p, dag.get_task("p.fit"), context).check()


@pytest.mark.parametrize(
    ("state", "waits"), [("deferred", "aftercorr:12"), (None, "aftercorr:7"), ("success", ""), ("failed", None)]
)
def test_a_task_that_begins_early_and_submits_its_job_says_what_it_follows(
    state: str | None, waits: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with taken() as dag, SbatchPipeline("p") as p:
        job("sweep", array="0-3") >> aftercorr() >> job("fit", array="0-3")
    ahead = Ahead(0, {"p.sweep": {-1: AheadJob("7", THEIRS.text)}, "p.fit": {-1: AheadJob("8", OURS.text)}})
    monkeypatch.setattr(member, "states_of", lambda ti, names: {"p.sweep": {-1: state}})
    pulled = {AHEAD_KEY: [ahead.write()], "job_id": "12"}
    ti = SimpleNamespace(xcom_pull=lambda key, **_: pulled[key], map_index=-1)
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(clear_number=None)}
    fit, one = BatchJob(command="fit", dependency="singleton"), Member(p, dag.get_task("p.fit"), context)
    # The first try goes on with what was submitted ahead.
    assert one.waiting(fit, [OURS]) == fit
    for keys in ([SubmissionKey("b" * 12)], [OURS, SubmissionKey("b" * 12)]):
        with pytest.raises(AirflowFailException) if waits is None else contextlib.nullcontext():
            found = one.waiting(fit, keys)
            assert dependency_text(found.dependency or "") == ",".join(filter(None, ["singleton", waits]))


@pytest.mark.parametrize("ends", [False, True])
def test_a_task_that_begins_early_waits_for_what_was_cleared_with_it_and_has_no_new_job_yet(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By "only failed": `submit` does not run again, and has told of a job that has ended."""
    with taken() as dag, SbatchPipeline("p") as p:
        job("sweep", array="0-3") >> aftercorr() >> job("fit", array="0-3")
    ahead = Ahead(0, {"p.sweep": {-1: AheadJob("7", THEIRS.text)}, "p.fit": {-1: AheadJob("8", OURS.text)}})
    pulled = {AHEAD_KEY: [ahead.write()], "job_id": None}
    states = {-1: "queued"}
    monkeypatch.setattr(member, "states_of", lambda ti, names: {"p.sweep": states})

    def sleep(_: float) -> None:
        if states[-1] == "running":
            pulled["job_id"], states[-1] = "12", "success" if ends else "deferred"
        else:
            states[-1] = "running"

    monkeypatch.setattr("time.sleep", sleep)
    ti = SimpleNamespace(xcom_pull=lambda key, **_: pulled[key], map_index=-1)
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(clear_number=1)}
    found = Member(p, dag.get_task("p.fit"), context).waiting(BatchJob(command="fit"), [OURS, SubmissionKey("b" * 12)])
    assert dependency_text(found.dependency or "") == ("" if ends else "aftercorr:12")


def test_meanwhile_a_task_that_is_deferred_takes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waits for may need that one."""
    with taken() as dag, SbatchPipeline("p"):
        job("server") >> after() >> job("client", deferrable=True)
    client = dag.get_task("p.client")
    with pytest.raises(TaskDeferred) as deferred:
        client.start_later(0.0)
    trigger: Any = deferred.value.trigger
    assert isinstance(trigger, LaterStartTrigger)
    started = []
    monkeypatch.setattr(SbatchOperator, "execute", lambda self, context: started.append(self.task_id))
    monkeypatch.setattr("airflow_provider_soperator.work.sbatch.forget_published", lambda ti: None)

    async def event() -> Any:
        return [fired.payload async for fired in trigger.run()]

    [fired] = asyncio.run(event())
    getattr(client, deferred.value.method_name)({"ti": None}, event=fired)
    assert started == ["p.client"]


@pytest.fixture
def away(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first requests are not answered."""
    monkeypatch.setattr(Pace, "after_failure", lambda _: 0.0)

    def before() -> None:
        if len(slurm.asked) < 5:
            raise Unreachable("nothing listens there")

    slurm.before = before


@pytest.mark.usefixtures("away")
def test_what_is_left_is_cancelled_once_the_cluster_is_back(slurm: Slurm) -> None:
    test_what_is_left_is_cancelled_by_its_number_and_key(slurm, True)


def submitting_task() -> SubmitAheadOperator:
    with DAG("d", schedule=None):
        return SubmitAheadOperator(
            task_id="submit", graph=Graph({}), segment=Segment("cluster", frozenset(), ()), slurm_conn_id="cluster"
        )


def new_job() -> tuple[SubmissionKey, dict[PlannedJob, BatchJob]]:
    key = SubmissionKey("b" * 12)
    return key, {PlannedJob("fit"): BatchJob(command="fit", name=key.name("fit"))}


def context_of(push: Callable[[str, Any], None]) -> Any:
    run = SimpleNamespace(start_date=None, clear_number=1)
    return {"dag_run": run, "ti": SimpleNamespace(xcom_push=push, xcom_pull=lambda **_: 2)}


@pytest.mark.usefixtures("away")
def test_jobs_are_submitted_ahead_once_the_cluster_is_back(slurm: Slurm) -> None:
    submit = submitting_task()
    key, rendered = new_job()
    pushed: dict[str, Any] = {}
    submitted = submit._submit(context_of(pushed.__setitem__), rendered, {}, [OURS])
    assert list(submitted) == ["fit"]
    # Before that what was submitted ahead of the clear.
    assert slurm.orders == [CancelJobs(ids=(JobId(8),))]
    assert pushed[AHEAD_KEY]["jobs"] == {"fit": {"-1": {"job": submitted["fit"], "key": key.text, "tries": 2}}}


@pytest.fixture
def task() -> Iterator[SubmitAheadOperator]:
    """A task that a signal tells to end, as in Airflow's workers."""
    task = submitting_task()
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    yield task
    signal.signal(signal.SIGTERM, before)


def tell_to_end() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def test_a_task_that_is_told_to_end_as_it_submits_takes_the_jobs_back(slurm: Slurm, task: SubmitAheadOperator) -> None:
    slurm.before = lambda: tell_to_end() if is_submission(slurm.asked[-1]) else None
    key, rendered = new_job()
    with pytest.raises(AirflowException, match="told to end while it submitted"):
        task._submit(context_of(pytest.fail), rendered, {}, [])
    assert_taken_back(slurm, key)


@pytest.mark.parametrize("error", [None, AirflowTaskTimeout])
def test_a_task_that_is_told_to_end_as_it_notes_the_jobs_takes_them_back(
    slurm: Slurm, task: SubmitAheadOperator, error: type[BaseException] | None
) -> None:
    def push(*_: Any) -> None:
        if error:
            raise error
        tell_to_end()

    key, rendered = new_job()
    with pytest.raises(error or AirflowException):
        task._submit(context_of(push), rendered, {}, [])
    assert_taken_back(slurm, key)


@pytest.mark.parametrize("state", ["failed", "restarting", None])
def test_a_task_that_was_marked_while_it_submitted_takes_the_jobs_back_before_airflow_tells_it(
    slurm: Slurm, state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "states_of", lambda ti, tasks: {tasks[0]: {-1: state} if state else {}})
    key, rendered = new_job()
    with pytest.raises(AirflowException, match="told to end while it submitted"):
        submitting_task()._submit(context_of(lambda *_: None), rendered, {}, [])
    assert_taken_back(slurm, key)


def test_one_that_was_marked_as_succeeded_leaves_the_jobs_to_its_stages(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "states_of", lambda ti, tasks: {tasks[0]: {-1: "success"}})
    _, rendered = new_job()
    assert list(submitting_task()._submit(context_of(lambda *_: None), rendered, {}, [])) == ["fit"]
    assert not [one for one in slurm.asked if isinstance(one, Withdraw)]


@pytest.mark.parametrize("is_last", [True, False])
def test_a_try_that_fails_takes_the_jobs_back_if_no_other_goes_on_with_them(slurm: Slurm, is_last: bool) -> None:
    def push(*_: Any) -> None:
        raise AirflowException("no API server")

    key, rendered = new_job()
    context = context_of(push)
    vars(context["ti"]).update(try_number=3 if is_last else 2, max_tries=2)
    with pytest.raises(AirflowException, match="no API server"):
        submitting_task()._submit(context, rendered, {}, [])
    if is_last:
        assert_taken_back(slurm, key)
    else:
        assert not [one for one in slurm.asked if isinstance(one, Withdraw)]


def test_jobs_that_cannot_be_taken_back_are_named_and_the_task_ends_for_its_own_reason(
    slurm: Slurm, task: SubmitAheadOperator, capsys: pytest.CaptureFixture[str]
) -> None:
    def before() -> None:
        if is_submission(slurm.asked[-1]):
            tell_to_end()
        elif isinstance(slurm.asked[-1], SubmitOnce):
            raise NotPermitted("the account is locked")

    slurm.before = before
    _, rendered = new_job()
    with pytest.raises(AirflowException, match="told to end while it submitted"):
        task._submit(context_of(pytest.fail), rendered, {}, [])
    assert "may be left in the queue, of these: fit" in capsys.readouterr().out


def test_what_another_process_withdraws_is_submitted_by_the_next_try(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier try that was cut off, and told to end long after that."""

    def refuse(*_: Any, **__: Any) -> None:
        raise TogetherRefused("fit", 0, SubmissionWithdrawn("the submission was withdrawn", "sbatch"))

    monkeypatch.setattr(SlurmClient, "submit_together", refuse)
    _, rendered = new_job()
    with pytest.raises(AirflowException) as caught:
        submitting_task()._submit(context_of(pytest.fail), rendered, {}, [])
    assert not isinstance(caught.value, AirflowFailException)


def test_a_task_that_was_told_to_end_submits_nothing(slurm: Slurm, task: SubmitAheadOperator) -> None:
    task.on_kill()
    _, rendered = new_job()
    with pytest.raises(AirflowException, match="told to end"):
        task._submit(context_of(pytest.fail), rendered, {}, [])
    assert not any(map(is_submission, slurm.asked))


def is_submission(request: Request[Any]) -> bool:
    return isinstance(request, SubmitOnce) and request.together is Together.START


def assert_taken_back(slurm: Slurm, key: SubmissionKey) -> None:
    *_, withdrawal, end = slurm.asked
    assert withdrawal == Withdraw((key,), names=("fit.withdrawn",))
    assert isinstance(end, SubmitOnce)
    assert (end.together, end.submission_keys()) == (Together.END, (key,))
