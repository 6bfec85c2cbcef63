"""What a task returns of its job, whether an Airflow worker or the triggerer ends it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.decorators.sbatch import sbatch_task
from airflow_provider_soperator.hooks.slurm import Settings
from airflow_provider_soperator.operators import files
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.slurm.errors import UnknownJob
from airflow_provider_soperator.slurm.files import ReadPieces
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, AccountingStep, Job
from airflow_provider_soperator.slurm.requests import CommandOutput, JobDetail, Request
from airflow_provider_soperator.slurm.states import JobState
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.transport_errors import Unreachable
from airflow_provider_soperator.triggers import sbatch
from airflow_provider_soperator.triggers.sbatch import SbatchTrigger
from tests.unit.client.tracking import Slurm, queued, run_without_waiting

SECOND = timedelta(seconds=1)
KEY = SubmissionKey("a" * 12)
NAME = KEY.name("train")


class Cluster(Slurm):
    """A Slurm whose jobs have ended, with the files that they have written."""

    async def ask(self, request: Request[Any]) -> Any:
        if isinstance(request, ReadPieces):
            ran = subprocess.run(request.command().argv, capture_output=True)
            return request.read(CommandOutput(ran.returncode, ran.stdout, ran.stderr))
        if isinstance(request, JobDetail):
            raise UnknownJob("Invalid job id specified", "scontrol")
        return await super().ask(request)


class Hook:
    """The hook of a connection to a cluster in memory."""

    def __init__(self, cluster: Cluster, transport: str) -> None:
        self._cluster = cluster
        self._settings = Settings(conn_id="soperator_default", transport=transport)

    @asynccontextmanager
    async def async_client(self) -> AsyncIterator[AsyncSlurmClient]:
        yield AsyncSlurmClient(self._cluster)

    async def async_settings(self) -> Any:
        return self._settings

    async def tell_of_pods(self, nodes: Sequence[str]) -> list[str]:
        return []


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a task's trigger to its event, on a cluster where the job has ended in these parts."""

    def run(
        *parts: Job,
        accounting: list[AccountingJob] | None = None,
        transport: str = "local",
        ti: Any = None,
        job: Any = None,
        **fields: Any,
    ) -> Any:
        cluster = Cluster(*(replace(part, workdir=str(tmp_path)) for part in parts), accounting=accounting)
        cluster.next_id = 8
        monkeypatch.setattr(sbatch, "SlurmHook", lambda conn_id: Hook(cluster, transport))
        trigger = SbatchTrigger(
            "soperator_default",
            {"name": "train", "output": "%A.out", **(job or {"command": "train"})},
            [KEY.text],
            **fields,
        )
        trigger.stream_logs = False
        trigger.task_instance = ti
        return run_without_waiting(trigger.event(), monkeypatch)

    return run


def part(job: str, state: str = "COMPLETED", **fields: Any) -> Job:
    return queued(job, state, name=NAME, raw_id=7, **fields)


def test_without_one_there_is_the_report(ran: Any) -> None:
    event = ran(part("7"))
    assert event["result"]["state"] == "COMPLETED"
    assert "value" not in event


def test_what_the_job_has_printed_last_comes_with_the_report(ran: Any, tmp_path: Path) -> None:
    (tmp_path / "7.out").write_text('begun\n{"loss": 0.1}\n')
    event = ran(part("7"), result="json")
    assert (event["status"], event["value"]) == ("success", {"loss": 0.1})
    # Where the job writes is known even if it was read from accounting.
    assert event["result"]["output"] == str(tmp_path / "7.out")


def test_of_an_array_each_element_has_one(ran: Any, tmp_path: Path) -> None:
    for index in range(3):
        (tmp_path / f"m{index}.json").write_text(str(index))
    event = ran(*(part(f"7_{index}") for index in range(3)), result="file:m%a.json")
    assert event["value"] == [0, 1, 2]


def test_it_is_waited_for_while_the_cluster_is_away(ran: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has succeeded, and its GPUs have worked for days."""
    (tmp_path / "7.out").write_text("done\n")
    ask, away = Cluster.ask, [Unreachable("nothing listens there")] * 50

    async def ask_later(cluster: Cluster, request: Request[Any]) -> Any:
        if isinstance(request, ReadPieces) and away:
            raise away.pop()
        return await ask(cluster, request)

    monkeypatch.setattr(Cluster, "ask", ask_later)
    event = ran(part("7"), result="last_line")
    assert (event["status"], event["value"]) == ("success", "done")


def test_a_job_that_has_failed_has_none(ran: Any) -> None:
    event = ran(part("7", "FAILED"), result="json")
    assert (event["status"], event["value"]) == ("success", None)


@pytest.mark.parametrize(("text", "status"), [("no JSON\n", "refused"), (None, "failed")])
def test_a_result_that_cannot_be_read_fails_the_task(ran: Any, tmp_path: Path, text: str | None, status: str) -> None:
    if text:
        (tmp_path / "m.json").write_text(text)
    event = ran(part("7"), result="file:m.json")
    # A file that is not there yet may come; one with something else in it stays as it is.
    assert event["status"] == status
    assert event["message"].startswith("result: ")


def test_a_connection_without_files_is_refused_before_anything_is_submitted(ran: Any) -> None:
    event = ran(transport="rest", result="json")
    assert event["status"] == "refused"
    assert "cannot read files" in event["message"]


@pytest.mark.parametrize("of", ["a parameter from a template", "a script", "a script on the cluster"])
def test_elements_with_one_file_are_refused_before_anything_is_submitted(ran: Any, of: str, tmp_path: Path) -> None:
    text = "#!/bin/sh\n#SBATCH --array=0-3\n"
    (tmp_path / "fit.sh").write_text(text)
    jobs: dict[str, Any] = {
        "a parameter from a template": {"command": "train", "array": "0-3"},
        "a script": {"script": text},
        "a script on the cluster": {"remote_script": str(tmp_path / "fit.sh")},
    }
    event = ran(job=jobs[of], result="file:out.json")
    assert event["status"] == "refused"
    assert event["message"] == (
        "result: all elements of the array would write the same file, out.json: name it with %a"
    )


def test_a_job_whose_script_has_become_such_an_array_is_followed_to_its_end(ran: Any) -> None:
    job = {"command": "train", "array": "0-1"}
    event = ran(part("7_0"), part("7_1"), job=job, result="file:out.json")
    assert "elements of the array have written the same file" in event["message"]


@pytest.mark.parametrize("result", [None, "last_line"])
def test_a_task_that_ends_in_the_triggerer_leaves_the_same(
    result: str | None, ran: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7.out").write_text("done\n")
    event = ran(part("7"), result=result)
    pushed: dict[str, Any] = {}

    async def push(self: SbatchTrigger, key: str, value: Any) -> None:
        pushed[key] = value

    async def ended(self: SbatchTrigger) -> dict[str, Any]:
        return dict(event)

    async def last() -> Any:
        trigger = SbatchTrigger("c", {}, [], end_from_trigger=True, result=result)
        trigger.task_instance = SimpleNamespace(task_id="t")  # type: ignore[assignment]
        return [one async for one in trigger.run()]

    monkeypatch.setattr(SbatchTrigger, "push", push)
    monkeypatch.setattr(SbatchTrigger, "event", ended)
    [end] = run_without_waiting(last(), monkeypatch)
    assert isinstance(end, TaskSuccessEvent)
    assert pushed == ({"job": event["result"], "return_value": "done"} if result else {"return_value": event["result"]})


@pytest.mark.parametrize("result", [None, "last_line"])
def test_a_task_that_ends_in_an_airflow_worker_returns_the_same(result: str | None, ran: Any, tmp_path: Path) -> None:
    (tmp_path / "7.out").write_text("done\n")
    event = json.loads(json.dumps(ran(part("7"), result=result)))
    pushed: dict[str, Any] = {}
    task = SbatchOperator(task_id="t", command="train", result=result)
    ti = SimpleNamespace(xcom_push=pushed.__setitem__)
    returned = task.execute_complete({"ti": ti}, event)  # type: ignore[typeddict-item]
    assert (returned, pushed) == (("done", {"job": event["result"]}) if result else (event["result"], {}))


def test_a_result_that_is_asked_for_since_the_task_waits_is_read_by_the_worker(
    ran: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7.out").write_text("done\n")
    client = SimpleNamespace(ask=lambda request: asyncio.run(Cluster().ask(request)), patient=lambda log: client)
    monkeypatch.setattr(files, "SlurmHook", lambda conn_id: SimpleNamespace(client=lambda: nullcontext(client)))
    ti = SimpleNamespace(xcom_push=lambda *args: None, dag_id="d", run_id="r", task_id="t", map_index=-1)

    def returned(event: Any, result: str) -> Any:
        task = SbatchOperator(
            task_id="t", command="train", result=result, on_finish={"FAILED": "succeed"}, dag=DAG("d", schedule=None)
        )
        return task.execute_complete({"ti": ti}, event)  # type: ignore[typeddict-item]

    assert returned(ran(part("7")), "last_line") == "done"
    assert returned(ran(part("7", "FAILED")), "last_line") is None
    with pytest.raises(AirflowFailException, match="result: "):
        returned(ran(part("7")), "json")


def test_the_triggerer_renders_the_name_of_a_file() -> None:
    with DAG("d", schedule=None) as dag:
        task = SbatchOperator(task_id="t", command="true", start_from_trigger=True, result="file:{{ run_id }}.json")
    dag.resolve_template_files()
    assert task.start_from_trigger
    assert task.start_trigger_args.trigger_kwargs["result"] == "file:{{ run_id }}.json"
    with DAG("e", schedule=None) as dag:
        task = SbatchOperator(task_id="t", command="true", start_from_trigger=True, result="file:{{ ti.hostname }}")
    dag.resolve_template_files()
    assert not task.start_from_trigger


def test_a_result_that_means_nothing_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(ValueError, match="result must be 'json', 'last_line' or 'file:PATH', got 'stdout'"):
        SbatchOperator(task_id="t", command="true", result="stdout")


def test_the_figures_are_in_the_log_and_among_airflows_metrics(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = AccountingStep(id=JobId(7), cpu_time=SECOND * 30, total_rss=1 << 30)
    done, tres = JobState.parse("COMPLETED"), "cpu=1,mem=2048M,gres/gpu=60"
    record = AccountingJob(id=JobId(7), name=NAME, state=done, elapsed=SECOND * 60, tres=tres, steps=(step,))
    logged: list[str] = []
    gauges: dict[str, Any] = {}
    log = SimpleNamespace(info=lambda line, *words: logged.append(line % words))

    async def no_push(self: SbatchTrigger, *args: Any) -> None: ...

    def emit(figures: Any, **tags: str) -> None:
        gauges.update({name: (value, tags | own) for name, value, own in figures})

    monkeypatch.setattr(SbatchTrigger, "push", no_push)
    monkeypatch.setattr(SbatchTrigger, "log", log)
    monkeypatch.setattr(sbatch, "emit", emit)
    ti = SimpleNamespace(dag_id="d", task_id="t")
    report = ran(part("7", nodelist="worker-0"), accounting=[record], ti=ti)["result"]
    assert (report["gpu_hours"], report["cpu_efficiency"], report["memory_efficiency"]) == (1, 0.5, 0.5)
    assert logged[-1] == "Job 7 used 1.00 GPU-hours, 50 % of its CPU time, at most 1.00 GiB of memory (50 %)"
    tags = {"dag_id": "d", "task_id": "t", "state": "COMPLETED"}
    assert gauges["job.gpu_hours"] == (1, tags)
    assert gauges["job.peak_memory"] == (1 << 30, tags)


def test_a_function_returns_its_own_value() -> None:
    with DAG("d", schedule=None, default_args={"result": "json"}):

        @sbatch_task
        def fit() -> int:
            return 1

        fit()
        task = SbatchOperator(task_id="t", command="true")
        assert task.result == "json"
    with pytest.raises(ValueError, match="this task returns what its function returns"):
        sbatch_task(lambda: 1, result="json", task_id="t")()
