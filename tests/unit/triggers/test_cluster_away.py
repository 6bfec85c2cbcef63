"""A task whose cluster is away: as it is submitted, after its triggerer was replaced, and as it is ended."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, AirflowTaskTimeout, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ConnectionResult, ErrorResponse, GetConnection

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.hooks import slurm
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.slurm.errors import ControllerUnreachable, NotPermitted, SubmitRefused
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import CancelJobs, Request, UpdateJob
from airflow_provider_soperator.slurm.requests.submission import SubmitOnce, Withdraw
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey, key_of_try
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, Unreachable
from airflow_provider_soperator.triggers import base, sbatch
from airflow_provider_soperator.triggers.sbatch import SbatchStartTrigger, SbatchTrigger
from airflow_provider_soperator.work import polling
from tests.unit.client.tracking import Slurm, queued, run_without_waiting
from tests.unit.operators.task_runs import TaskRun

KEY = SubmissionKey("a" * 12)
NAME = KEY.name("train")
HOUR = 3600.0


class Cluster(Slurm):
    """A Slurm behind a connection, whose clients are closed as those of Airflow's processes are."""

    #: Until when there is a failure, and which.
    away_until = -math.inf
    failure: Exception = Unreachable("nothing listens there")

    async def ask(self, request: Request[Any]) -> Any:
        if time.monotonic() < 1000 + self.away_until:
            raise self.failure
        if isinstance(request, CancelJobs):
            self.queue = [queued(str(job.id), "CANCELLED", NAME) for job in self.queue]
        return await super().ask(request)

    def end_jobs_at(self, seconds: float) -> None:
        def look() -> None:
            if time.monotonic() >= 1000 + seconds:
                self.queue = [queued(str(job.id), "COMPLETED", NAME) for job in self.queue]

        self.before_look = look


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(accounting=[])

    class Hook:
        def __init__(self, slurm_conn_id: str) -> None: ...

        @asynccontextmanager
        async def async_client(self) -> AsyncIterator[AsyncSlurmClient]:
            yield AsyncSlurmClient(cluster)

        async def async_settings(self) -> Any:
            return SimpleNamespace(links={}, transport="ssh", conn_id="c")

        tell_of_pods = None

    for module in (sbatch, polling):
        monkeypatch.setattr(module, "SlurmHook", Hook)
    return cluster


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    return lambda work: run_without_waiting(work, monkeypatch)


def trigger(**fields: Any) -> SbatchTrigger:
    job = {"command": "train", "name": "train"}
    return SbatchTrigger(**{"slurm_conn_id": "c", "job": job, "keys": [KEY.text], "stream_logs": False, **fields})


AWAY = [Unreachable("nothing listens there"), ControllerUnreachable("connect failure")]


@pytest.mark.parametrize("failure", AWAY)
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("keys", [[KEY.text], [KEY.text, "b" * 12]])
def test_a_job_is_submitted_or_found_again_once_the_cluster_is_back(
    keys: list[str],
    there: bool,
    failure: Exception,
    cluster: Cluster,
    run: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.queue = [queued("5", "RUNNING", NAME)] * there
    cluster.away_until, cluster.failure = 2 * HOUR, failure
    cluster.end_jobs_at(3 * HOUR)
    event = run(trigger(keys=keys).event())
    assert (event["status"], event["result"]["job_id"]) == ("success", "5" if there else "7")
    said = capsys.readouterr().out
    # At first, and each half hour.
    assert said.count("The cluster cannot be asked at present") == 4
    assert str(failure) in said


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (ConnectFailed("the login was refused"), "failed"),
        (SubmitRefused("no"), "refused"),
        (NotPermitted("Access/permission denied", "sbatch"), "refused"),
    ],
)
def test_what_cannot_pass_by_itself_fails_the_task_at_once(
    failure: Exception, status: str, cluster: Cluster, run: Callable[..., Any]
) -> None:
    cluster.away_until, cluster.failure = math.inf, failure
    event = run(trigger().event())
    assert (event["status"], event["message"]) == (status, str(failure))


@pytest.mark.parametrize("failure", [*AWAY, ConnectFailed("the token has expired")])
@pytest.mark.parametrize("begun", [True, False])
def test_a_kill_is_carried_out_once_the_cluster_is_back_or_the_connection_mended(
    begun: bool,
    failure: Exception,
    cluster: Cluster,
    run: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def killed() -> None:
        told = trigger()
        if begun:
            event = asyncio.ensure_future(told.event())
            await asyncio.sleep(10)
            event.cancel()
            await asyncio.wait([event])
        else:
            # That of the triggerer before.
            cluster.queue = [queued("7", "RUNNING", NAME)]
        cluster.away_until, cluster.failure = 5 * HOUR, failure
        await told.on_kill()

    run(killed())
    assert [str(job.state) for job in cluster.queue] == ["CANCELLED"]
    said = capsys.readouterr().out
    assert str(failure) in said
    assert "The task was told to end, and job 7 was cancelled" in said


def test_a_triggerer_that_is_relieved_of_a_task_does_not_submit_its_job_later(
    cluster: Cluster, run: Callable[..., Any]
) -> None:
    async def relieved() -> None:
        cluster.away_until = 5 * HOUR
        event = asyncio.ensure_future(trigger().event())
        await asyncio.sleep(HOUR)
        event.cancel()
        await asyncio.wait([event])
        await asyncio.sleep(5 * HOUR)

    run(relieved())
    assert cluster.queue == []


@pytest.mark.parametrize("cancel_on_kill", [True, False])
@pytest.mark.parametrize("state", ["failed", "success", "skipped", "scheduled", "deferred", None])
def test_a_job_goes_with_its_task_unless_another_triggerer_has_that(
    state: str | None,
    cancel_on_kill: bool,
    cluster: Cluster,
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Marked, in a run that takes too long, cleared, or deleted: what Airflow makes of the task is no matter."""

    async def of_task(self: SbatchTrigger) -> str | None:
        return state

    async def killed() -> None:
        told = trigger(cancel_on_kill=cancel_on_kill)
        event = asyncio.ensure_future(told.event())
        await asyncio.sleep(10)
        event.cancel()
        await asyncio.wait([event])
        await told.on_kill()

    monkeypatch.setattr(SbatchTrigger, "state", of_task)
    run(killed())
    goes = cancel_on_kill and state != "deferred"
    assert [str(job.state) for job in cluster.queue] == ["CANCELLED" if goes else "PENDING"]


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Airflow answers who asks for the states of tasks: an error, or the states."""
    answers: list[Any] = [UNTOLD] * 2

    async def call(function: Any, *args: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def push(*args: Any) -> None: ...

    monkeypatch.setattr(base, "call", call)
    monkeypatch.setattr(SbatchTrigger, "push", push)
    return answers


def of_a_task(**fields: Any) -> SbatchTrigger:
    told = trigger(**fields)
    told.task_instance = SimpleNamespace(task_id="fit", map_index=-1)  # type: ignore[assignment]
    return told


def test_a_task_that_ends_while_airflow_is_away_takes_its_job_with_it(
    cluster: Cluster, airflow: list[Any], run: Callable[..., Any]
) -> None:
    airflow.append({"fit": {-1: "failed"}})
    cluster.queue = [queued("7", "RUNNING", NAME)]
    run(of_a_task().on_kill())
    assert [str(job.state) for job in cluster.queue] == ["CANCELLED"]


def test_the_next_iteration_of_a_loop_that_waits_already_does_not_keep_a_job_of_this_one(
    cluster: Cluster, airflow: list[Any], run: Callable[..., Any]
) -> None:
    # As Airflow 3.4 answers, which knows a state of the newest iteration only.
    airflow.append({"fit": {-1: "deferred"}})
    cluster.queue = [queued("7", "RUNNING", NAME)]
    told = of_a_task()
    told.task_instance.region_id, told.task_instance.region_index = UUID(int=1), 0  # type: ignore[union-attr]
    run(told.on_kill())
    assert [str(job.state) for job in cluster.queue] == ["CANCELLED"]


def test_a_job_that_waits_in_vain_is_let_go_once_airflow_is_back(
    cluster: Cluster, airflow: list[Any], run: Callable[..., Any]
) -> None:
    airflow.append({"prepare": {-1: "success"}})
    waits = {"reason": "Dependency", "dependency": "afterok:5(failed)", "raw_id": 7}
    cluster.queue = [queued("7", "PENDING", NAME, **waits)]

    async def waiting() -> None:
        event = asyncio.ensure_future(of_a_task(chain={"follows": [["prepare", "afterok"]]}).event())
        await asyncio.sleep(HOUR)
        event.cancel()
        await asyncio.wait([event])

    run(waiting())
    assert cluster.orders == [UpdateJob(JobId(7), {"Dependency": ""})]


def test_a_try_that_is_ended_before_a_worker_begins_it_takes_the_job_of_the_triggerer_with_it(
    cluster: Cluster, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def of_task(self: SbatchTrigger) -> None:
        return None

    monkeypatch.setattr(SbatchTrigger, "state", of_task)
    task = TaskRun()
    first, second = task.begin_in_the_triggerer(), task.begin_in_the_triggerer()
    cluster.queue = [queued("7", "RUNNING", key_of_try(first, task.start_date, 1).name("train"))]
    told = SbatchStartTrigger("c", {"command": "train"})
    told.task_instance = second
    run(told.on_kill())
    assert [str(job.state) for job in cluster.queue] == ["CANCELLED"]


class Supervisor:
    """Airflow's supervisor, and what it answers who asks for a connection; the last answer stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def send(self, question: Any) -> Any:
        if not isinstance(question, GetConnection):
            return None
        answer = self.answers.pop(0) if self.answers[1:] else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def asend(self, question: Any) -> Any:
        return self.send(question)


UNTOLD = AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR))
NONE = ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND)
EMPTY = dict.fromkeys(("host", "schema", "login", "password", "port"))
TOLD = ConnectionResult(**EMPTY, conn_id="c", conn_type="soperator", extra='{"transport": "local"}')  # type: ignore[arg-type]


@pytest.mark.parametrize("answers", [[UNTOLD, UNTOLD, TOLD], [*[UNTOLD] * 30, TOLD], [UNTOLD, TOLD]])
def test_a_job_is_followed_once_airflow_tells_the_connection(
    answers: list[Any], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the triggerer: the job would run on, and Airflow would take the task for failed."""
    cluster = Cluster(queued("7", "RUNNING", NAME), accounting=[])
    cluster.end_jobs_at(3 * HOUR)
    monkeypatch.setattr(slurm, "open_transport", lambda settings: cluster)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(*answers), raising=False)
    event = run(trigger().event())
    assert (event["status"], event["result"]["job_id"]) == ("success", "7")


def test_the_time_of_a_task_counts_while_airflow_does_not_tell_the_connection(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbatch.time, "time", lambda: time.monotonic())
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(UNTOLD), raising=False)
    ended: list[float] = []

    async def ends() -> dict[str, Any]:
        event = await trigger(deadline=1000 + HOUR).event()
        ended.append(time.monotonic())
        return event

    event = run(ends())
    assert (event["status"], event["message"]) == ("timeout", "the wait for the connection c")
    assert ended[0] >= 1000 + HOUR


@pytest.mark.parametrize("answers", [[NONE], [UNTOLD, NONE]])
def test_a_connection_that_airflow_does_not_have_is_not_waited_for(
    answers: list[Any], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(*answers), raising=False)
    event = run(trigger().event())
    assert event["message"] == "there is no connection c: add it, or name another one"
    assert event["status"] == "refused"


def test_what_is_killed_before_it_could_be_submitted_is_not_submitted_later(
    cluster: Cluster, run: Callable[..., Any]
) -> None:
    async def killed() -> None:
        cluster.away_until = 5 * HOUR
        told = trigger()
        event = asyncio.ensure_future(told.event())
        await asyncio.sleep(HOUR)
        event.cancel()
        await asyncio.wait([event])
        await told.on_kill()

    run(killed())
    assert cluster.queue == []
    assert cluster.count(SubmitOnce) == 0
    assert [one.keys for one in cluster.asked if isinstance(one, Withdraw)][:1] == [(KEY,)]


def test_a_submission_that_is_under_way_as_the_task_is_killed_leaves_no_job(
    cluster: Cluster, run: Callable[..., Any]
) -> None:
    async def killed() -> None:
        told = trigger()
        event = asyncio.ensure_future(told.event())
        await asyncio.sleep(10)
        event.cancel()
        await asyncio.wait([event])
        await told.on_kill()

    async def slow(request: Request[Any]) -> Any:
        if isinstance(request, SubmitOnce):
            await asyncio.sleep(120)
            return cluster.submit(request)
        return await Cluster.ask(cluster, request)

    cluster.ask = slow  # type: ignore[method-assign]
    run(killed())
    assert [str(job.state) for job in cluster.queue] == ["CANCELLED"]


@pytest.mark.parametrize("is_over", [False, True])
def test_a_task_whose_time_is_over_while_the_cluster_is_away_ends_with_its_job(
    is_over: bool, cluster: Cluster, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbatch.time, "time", lambda: time.monotonic())
    told: list[str] = []
    cluster.queue = [queued("7", "RUNNING", NAME)]
    cluster.away_until = 5 * HOUR

    async def ends() -> dict[str, Any]:
        made = trigger(deadline=1000 + (-HOUR if is_over else HOUR))
        monkeypatch.setattr(made.log, "warning", lambda said, *words: told.append(said % words))
        return await made.event()

    event = run(ends())
    assert (event["status"], event["message"]) == ("timeout", "job 7")
    assert [str(job.state) for job in cluster.queue] == ["CANCELLED"]
    # The page shows the task as deferred until then.
    assert any("The task's time is over (execution_timeout)" in line for line in told)


def test_a_job_that_is_not_cancelled_with_its_task_outlasts_the_tasks_time(
    cluster: Cluster, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbatch.time, "time", lambda: time.monotonic())

    async def ends() -> dict[str, Any]:
        return await trigger(deadline=1000 + HOUR, cancel_on_kill=False).event()

    event = run(ends())
    assert (event["status"], event["message"]) == ("timeout", "job 7")
    assert [str(job.state) for job in cluster.queue] == ["PENDING"]
    with pytest.raises(AirflowTaskTimeout, match="job 7 did not end within 1:00:00: left alone"):
        SbatchOperator(
            task_id="fit", command="fit", execution_timeout=timedelta(hours=1), cancel_on_kill=False
        ).execute_complete({}, event)
