"""What a task makes of a check's end, and what it refuses when the DAG is read."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Variable
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_provider_soperator.health.figures import kept_figures
from airflow_provider_soperator.operators.cluster import CheckFailed, RunActiveCheckOperator
from airflow_provider_soperator.sensors.health import ActiveCheckSensor
from airflow_provider_soperator.work.checks import CheckRun
from airflow_provider_soperator.work.protocols import Watch, Work, WorkTimeout, failed, refused, succeeded, timed_out

TI = {"dag_id": "nightly", "run_id": "r", "task_id": "check", "map_index": -1}
RUN = SimpleNamespace(start_date=datetime(2026, 11, 23, 7, tzinfo=timezone.utc))
CONTEXT: Any = {"ti": SimpleNamespace(**TI, try_number=2, max_tries=2), "dag_run": RUN}


def run_of(**options: Any) -> RunActiveCheckOperator:
    return RunActiveCheckOperator(task_id="check", **{"check": "gpu-checks", "retries": 2, **options})


def result(state: str, drained: tuple[str, ...] = ()) -> dict[str, Any]:
    return succeeded({"check": "gpu-checks", "state": state, "words": f"{state}: words", "drained": list(drained)})


@pytest.mark.parametrize(
    ("on_failure", "event", "raised"),
    [
        ("fail", result("Complete"), None),
        ("fail", result("Failed"), CheckFailed),
        ("fail", result("Cancelled"), CheckFailed),
        ("fail", result("Unknown"), CheckFailed),
        ("drain", result("Failed", ("worker-1",)), None),
        # No node of it is known, so none could be drained.
        ("drain", result("Error"), CheckFailed),
        ("report", result("Failed"), None),
        ("report", result("Skipped"), AirflowSkipException),
        ("report", failed("why"), AirflowException),
        ("report", timed_out("where"), WorkTimeout),
        ("report", refused("what"), AirflowFailException),
    ],
)
def test_what_a_task_makes_of_the_end(on_failure: Any, event: dict[str, Any], raised: Any) -> None:
    operator = run_of(on_failure=on_failure, slurm_conn_id="soperator_default")
    if raised:
        with pytest.raises(raised) as stopped:
            operator.execute_complete({}, event)
        assert type(stopped.value) is raised
    else:
        assert operator.execute_complete({}, event)["check"] == "gpu-checks"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_failure": "drian"}, "on_failure must be one of 'fail', 'drain', 'report', got 'drian'"),
        ({"if_running": "kill"}, "if_running must be one of 'wait', 'join', 'fail', got 'kill'"),
        ({"on_failure": "drain"}, "on_failure='drain' needs slurm_conn_id"),
        ({"reason": "[node_problem] broken"}, r"Soperator does not act on '\[node_problem\] broken'"),
    ],
)
def test_what_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        run_of(**options)


def test_what_a_template_has_made_is_refused_as_well() -> None:
    operator = run_of(on_failure="{{ params.on_failure }}")
    operator.on_failure = "nothing"
    with pytest.raises(AirflowFailException, match=r"on_failure must be one of .* got 'nothing'"):
        operator.execute(CONTEXT)


def test_a_try_that_finds_the_run_of_the_one_before_keeps_its_figures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, str] = {}
    monkeypatch.setattr(Variable, "get", lambda key, default: kept.get(key, default))
    monkeypatch.setattr(Variable, "set", kept.__setitem__)
    event = result("Complete")
    event["result"] |= {"figures": {"worker-0": {"busbw": 481.2}}, "begun": "2026-11-23T07:00:05+00:00"}
    for _ in range(2):
        run_of().execute_complete({}, json.loads(json.dumps(event)))
    assert kept_figures("gpu-checks") == {"worker-0": [[1795417205, {"busbw": 481.2}]]}


def test_what_is_deferred_can_be_stored() -> None:
    options = {"slurm_conn_id": "soperator_default", "on_failure": "drain", "drain_owner": "night", "reason": "no GPUs"}
    with pytest.raises(TaskDeferred) as deferred:
        run_of(deferrable=True, **options).execute(CONTEXT)
    trigger: Any = deferred.value.trigger
    work = Work.read(json.loads(json.dumps(trigger.serialize()[1]))["work"])
    assert isinstance(work, CheckRun)
    # A try before this one may have left a run behind.
    assert (len(work.keys), work.task, work.drain_reason) == (2, "nightly/r/check/-1", "airflow:night: no GPUs")


def test_a_sensor_refuses_what_it_could_never_see() -> None:
    with pytest.raises(ValueError, match="target_state must be one of 'complete', 'failed', 'ended'"):
        ActiveCheckSensor(task_id="sense", check="gpu-checks", target_state="good")
    with pytest.raises(ValueError, match="since='noon' is not a date and time"):
        ActiveCheckSensor(task_id="sense", check="gpu-checks", since="noon")
    with pytest.raises(TaskDeferred) as deferred:
        ActiveCheckSensor(
            task_id="sense", check="gpu-checks", since="2026-11-22T00:00:00Z", slurm_conn_id="slurm", deferrable=True
        ).execute(CONTEXT)
    trigger: Any = deferred.value.trigger
    watch: Any = Watch.read(json.loads(json.dumps(trigger.serialize()[1]))["watch"])
    assert (watch.since, watch.where.slurm_conn_id) == (datetime(2026, 11, 22, tzinfo=timezone.utc), "slurm")
