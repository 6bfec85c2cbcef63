"""Where a task ends: in the triggerer, which costs no Airflow worker, or in a worker, where something needs one."""

from __future__ import annotations

import inspect
import json
import logging
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, ExceptionRetryPolicy
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.xcom import XCom
from airflow.serialization.serialized_objects import BaseSerialization, DagSerialization
from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent, TriggerEvent
from jinja2 import UndefinedError

from airflow_provider_soperator.operators.nodes import DrainNodesOperator
from airflow_provider_soperator.operators.pipeline import SbatchPipeline, afterany
from airflow_provider_soperator.operators.sbatch import SbatchOperator
from airflow_provider_soperator.sensors.jobs import SlurmJobSensor, SlurmQueueSensor
from airflow_provider_soperator.slurm.job import job_of
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.job_reports import report_of
from airflow_provider_soperator.triggers.base import NO_WORKER
from airflow_provider_soperator.triggers.sbatch import SbatchStartTrigger, SbatchTrigger
from airflow_provider_soperator.work.protocols import failed, refused, succeeded, timed_out
from tests.unit.client.tracking import queued, run_without_waiting
from tests.unit.operators.task_runs import TaskRun


def asked(operator: Any, run: TaskRun | None = None) -> tuple[bool, bool]:
    """Whether success and failure end in the triggerer."""
    run = run or TaskRun(operator.task_id, retries=operator.retries or 0)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(run.begin())
    trigger: Any = deferred.value.trigger
    return trigger.end_from_trigger, trigger.fail_from_trigger


def deferred(**options: Any) -> SbatchOperator:
    return SbatchOperator(task_id="fit", command="true", deferrable=True, **options)


def nothing(context: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (True, True)),
        ({"end_from_trigger": False}, (False, False)),
        ({"outlets": [Asset("model")]}, (False, True)),
        ({"on_success_callback": nothing}, (False, True)),
        ({"do_xcom_push": False}, (False, True)),
        ({"on_failure_callback": nothing}, (True, False)),
        ({"retry_policy": ExceptionRetryPolicy(rules=[])}, (True, False)),
        ({"on_finish": {"TIMEOUT": "skip"}}, (True, False)),
    ],
    ids=lambda value: ",".join(value) or "nothing" if isinstance(value, dict) else None,
)
def test_a_worker_ends_what_needs_one(options: dict[str, Any], expected: tuple[bool, bool]) -> None:
    assert asked(deferred(**options)) == expected


#: What Airflow's worker asks of a task. The operators of this provider ask for these themselves before they do without
#: a worker,
SEEN = {
    *("_post_execute_hook", "_pre_execute_hook", "dag", "do_xcom_push", "email", "execute", "execution_timeout"),
    *("iter_mapped_dependants", "multiple_outputs", "outlets", "post_execute", "pre_execute", "render_template_fields"),
    *("retry_policy", "returns_dag_result"),
}
#: these are about names, processes and templates of the worker itself,
OF_WORKERS = {
    *("__class__", "dag_id", "duration", "inlets", "map_index_template", "overwrite_rtif_after_execution", "queue"),
    *("prepare_for_execution", "resume_execution", "run_as_user", "task_id", "template_fields"),
    "template_fields_renderers",
}
#: these about failures that a retry may follow, which always end in a worker, or about kills, which triggers answer
#: themselves, and links are pushed by the triggers.
ELSEWHERE = {"email_on_failure", "email_on_retry", "on_kill", "operator_extra_links", "retries", "retry_delay"}


def test_all_that_a_worker_asks_of_a_task_is_known() -> None:
    """What another Airflow adds has to be sorted into one of these, or tasks would silently do without it."""
    asked = re.findall(r'\btask\.(\w+)|getattr\((?:ti\.)?task, "(\w+)"', inspect.getsource(task_runner))
    assert {one or other for one, other in asked} <= SEEN | OF_WORKERS | ELSEWHERE


class Followed(SbatchOperator):
    """A user's own class."""

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        return {"more": super().execute_complete(context, event)}


class Drained(DrainNodesOperator):
    """A user's own class."""

    def post_execute(self, context: Any, result: Any = None) -> None: ...


class Sensed(SlurmQueueSensor):
    """A user's own class."""

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:
        return len(super().execute_complete(context, event))


NODES = {"nodes": "worker-0", "reason": "hot"}


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (DrainNodesOperator, NODES, (True, True)),
        (SlurmQueueSensor, {"max_jobs": 0}, (True, True)),
        (SlurmQueueSensor, {"max_jobs": 0, "soft_fail": True}, (True, False)),
        (SlurmQueueSensor, {"max_jobs": 0, "never_fail": True}, (True, False)),
        (SlurmJobSensor, {"job_id": 7}, (True, True)),
        (Followed, {"command": "true"}, (False, False)),
        (Drained, NODES, (False, True)),
        (Sensed, {"max_jobs": 0}, (False, False)),
    ],
)
def test_so_does_any_other_task_that_only_waits(
    kind: type[Any], options: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    assert asked(kind(task_id="t", deferrable=True, **options)) == expected


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_worker_pushes_what_tasks_are_mapped_over(is_mapped: bool) -> None:
    with DAG("d", schedule=None):
        one, other = (SbatchOperator(task_id=name, command="true", deferrable=True) for name in ("one", "other"))
        SbatchOperator.partial(task_id="of_each", command="true").expand(args=one.output)
    # Of a mapped task Airflow counts the results themselves.
    assert asked(one, TaskRun("one", retries=0, is_mapped=is_mapped)) == (is_mapped, True)
    assert asked(other) == (True, True)


def test_a_worker_pushes_the_result_of_the_dag() -> None:
    with DAG("d", schedule=None) as dag:
        one = deferred()
        dag.add_result(one.output)
    assert asked(one) == (False, True)


def test_a_worker_ends_the_first_failure_that_is_to_end_the_run() -> None:
    with DAG("d", schedule=None, fail_fast=True):
        one = deferred()
    assert asked(one) == (True, False)


def test_a_failure_that_a_retry_may_follow_ends_in_a_worker() -> None:
    run = TaskRun("fit", retries=1)
    operator = deferred(retries=1)
    assert [asked(operator, run) for _ in range(2)] == [(True, False), (True, True)]


def test_listeners_are_told_by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    one = SimpleNamespace(get_hookimpls=lambda: ["OpenLineage"])
    hook = SimpleNamespace(on_task_instance_success=one, on_task_instance_failed=one)
    monkeypatch.setattr("airflow.sdk.listener.get_listener_manager", lambda: SimpleNamespace(hook=hook))
    assert asked(deferred()) == (False, False)


def test_a_stage_whose_end_dooms_others_ends_in_a_worker() -> None:
    with DAG("d", schedule=None), SbatchPipeline("p"):
        first, second, last = (
            SbatchOperator(task_id=task_id, command="true", deferrable=True) for task_id in ("a", "b", "c")
        )
        first >> second >> afterany() >> last
    assert [one.needs_a_worker_after("failed") for one in (first, second, last)] == [True, False, False]
    assert not any(one.needs_a_worker_after("success") for one in (first, second, last))


def test_one_that_starts_in_the_triggerer_knows_whether_it_may_fail_there() -> None:
    with DAG("d", schedule=None) as dag:
        for retries in (0, 1):
            SbatchOperator(task_id=f"r{retries}", command="true", start_from_trigger=True, retries=retries)
    dag.resolve_template_files()
    found = [dag.get_task(name).start_trigger_args.trigger_kwargs["fail_from_trigger"] for name in ("r0", "r1")]
    assert found == [True, False]


def test_the_indices_of_an_array_are_stored_as_they_are() -> None:
    with DAG("d", schedule=None) as dag:
        SbatchOperator(task_id="fit", command="true", start_from_trigger=True, array=range(3))
    dag.resolve_template_files()
    [stored] = DagSerialization.to_dict(dag)["dag"]["tasks"]
    kwargs = BaseSerialization.deserialize(stored["__var"]["start_trigger_args"]["trigger_kwargs"])
    assert job_of(kwargs["job"]).argv() == ["--array=0-2"]


def report(state: str) -> dict[str, Any]:
    return json.loads(json.dumps(report_of(JobStatus(id=JobId(7), parts=(queued("7", state),)))))


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (succeeded(report("COMPLETED")), TaskSuccessEvent),
        (succeeded(report("FAILED")), TaskFailedEvent),
        (failed("the cluster was away"), TaskFailedEvent),
        (refused("no such partition"), TaskFailedEvent),
        # Only a worker can raise what Airflow takes for the end of a task's time.
        (timed_out("job 7"), TriggerEvent),
    ],
    ids=lambda value: value["status"] if isinstance(value, dict) else "",
)
def test_airflow_is_told_how_the_task_has_ended(
    event: dict[str, Any], expected: type[TriggerEvent], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    async def has_ended(trigger: SbatchTrigger) -> dict[str, Any]:
        return event

    async def push(trigger: SbatchTrigger, key: str, value: Any) -> None: ...

    monkeypatch.setattr(SbatchTrigger, "event", has_ended)
    monkeypatch.setattr(SbatchTrigger, "push", push)
    monkeypatch.setattr(SbatchTrigger, "log", logging.getLogger("task"))
    killed: list[str] = []

    async def cancelled(trigger: SbatchTrigger) -> None:
        killed.append("cancelled")

    monkeypatch.setattr(SbatchTrigger, "cancel", cancelled)

    async def ends() -> list[TriggerEvent]:
        trigger = SbatchTrigger("c", {}, [], end_from_trigger=True, fail_from_trigger=True, made=NO_WORKER)
        trigger.task_instance = SimpleNamespace(task_id="t")  # type: ignore[assignment]
        found = []
        async for one in trigger.run():
            found.append(one)
            # Airflow removes a trigger that has not ended soon after its event as if the user had ended its task.
            await trigger.on_kill()
        return found

    [end] = run_without_waiting(ends(), monkeypatch)
    assert (type(end), killed) == (expected, [])
    if expected is TaskFailedEvent and "message" in event:
        assert caplog.records[-1].levelname == "ERROR"
        assert event["message"] in caplog.text


def test_a_worker_stores_what_an_xcom_backend_does_not_take_from_the_triggerer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def has_ended(trigger: SbatchTrigger) -> dict[str, Any]:
        return succeeded(report("COMPLETED"))

    def refuse(*args: Any, **values: Any) -> None:
        raise PermissionError("read-only bucket")

    monkeypatch.setattr(SbatchTrigger, "event", has_ended)
    monkeypatch.setattr(SbatchTrigger, "log", logging.getLogger("task"))
    monkeypatch.setattr(XCom, "set", refuse)

    async def ends() -> list[TriggerEvent]:
        trigger = SbatchTrigger("c", {}, [], end_from_trigger=True, fail_from_trigger=True, made=NO_WORKER)
        trigger.task_instance = TaskRun("fit").begin_in_the_triggerer()
        return [one async for one in trigger.run()]

    [end] = run_without_waiting(ends(), monkeypatch)
    assert (type(end), end.payload["status"]) == (TriggerEvent, "success")
    assert "so a worker does it: read-only bucket" in caplog.text


@pytest.mark.parametrize("fails", [True, False])
def test_a_job_that_slurm_would_refuse_fails_where_it_may(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    retries = 0 if fails else 1
    operator = SbatchOperator(task_id="fit", command="true", nodes="none", start_from_trigger=True, retries=retries)
    trigger = SbatchStartTrigger(**operator._asked(), **operator.endings())
    trigger.task_instance = TaskRun("fit").begin_in_the_triggerer()

    async def run() -> Any:
        return [one async for one in trigger.run()]

    [end] = run_without_waiting(run(), monkeypatch)
    assert type(end) is (TaskFailedEvent if fails else TriggerEvent)


def test_what_is_rendered_in_the_triggerer_is_rendered_as_strictly() -> None:
    operator = SbatchOperator(
        task_id="fit", script="#!/bin/sh\nrm -r /scratch/{{ params.dri }}\n", start_from_trigger=True
    )
    trigger = SbatchStartTrigger(**operator._asked(), **operator.endings())
    trigger.template_fields = ("script",)
    with pytest.raises(UndefinedError, match="no attribute 'dri'"):
        trigger.render_template_fields({"params": {"dir": "a"}})
    trigger.render_template_fields({"params": {"dri": "a"}})
    assert trigger.script == "#!/bin/sh\nrm -r /scratch/a"


def test_what_no_worker_came_before_waits_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = SbatchOperator(task_id="fit", command="true", start_from_trigger=True, retries=1)
    trigger = SbatchStartTrigger(**operator._asked(), **operator.endings())
    trigger.task_instance = TaskRun("fit").begin_in_the_triggerer()

    async def seconds() -> float:
        began = time.monotonic()
        await trigger.resume({})
        return time.monotonic() - began

    assert run_without_waiting(seconds(), monkeypatch) == 0


def test_a_task_does_not_wait_longer_as_the_clock_of_its_worker_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def seconds(ahead: float) -> float:
        trigger = SbatchTrigger("c", {}, [], made=time.time() + ahead)
        trigger.task_instance = TaskRun("fit").begin_in_the_triggerer()
        began = time.monotonic()
        await trigger.resume({})
        return time.monotonic() - began

    usual = run_without_waiting(seconds(0), monkeypatch)
    assert 5 < usual < 60
    assert run_without_waiting(seconds(600), monkeypatch) == pytest.approx(usual, abs=1)


def test_a_later_try_that_is_handed_to_a_worker_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = SbatchOperator(task_id="fit", command="true", start_from_trigger=True, retries=1)
    trigger = SbatchStartTrigger(**operator._asked(), **operator.endings())
    run, killed = TaskRun("fit"), list[bool]()
    run.begin_in_the_triggerer()
    trigger.task_instance = run.begin_in_the_triggerer()

    async def kill() -> None:
        killed.append(True)

    monkeypatch.setattr(trigger, "_kill", kill)

    async def events() -> Any:
        found = []
        async for one in trigger.run():
            found.append(one)
            await trigger.on_kill()
        return found

    [end] = run_without_waiting(events(), monkeypatch)
    assert (end.payload, killed) == ({"start": True}, [])


def test_a_later_try_has_no_results_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"return_value": {"state": "COMPLETED"}, "job_id": "7", "_link_job_link": "https://portal/7", "mine": 1}
    monkeypatch.setattr(BaseXCom, "get_one", lambda *, key, **where: there.get(key))
    monkeypatch.setattr(XCom, "delete", lambda *, key, **where: there.pop(key))
    operator = SbatchOperator(task_id="fit", command="true", start_from_trigger=True)
    with pytest.raises(TaskDeferred):
        operator.execute_complete(TaskRun("fit").begin(), {"start": True})
    assert there == {"mine": 1}
