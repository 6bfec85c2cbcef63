"""The figures of a shift as metrics and as an XCom, also of one that has failed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Variable
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from airflow_provider_soperator.errors import CapacityBusy
from airflow_provider_soperator.operators import capacity
from airflow_provider_soperator.operators.capacity import ShiftCapacityOperator
from tests.unit.operators.test_shift_refused import shift

FIGURES = {
    "late_seconds": 60.0,
    "arrive_seconds": None,
    "idle_gpu_seconds": 7200.0,
    "target_gpu_seconds": {"training": 10.0, "inference": 5.0},
    "bought_gpus": None,
}
REPORT = {
    "seconds": 120.4,
    "gpu_hours": {"training": 0.01, "inference": 0.0},
    "idle_gpu_hours": 2.0,
    "limbo_gpu_hours": 0.5,
    "lost_gpu_hours": None,
    "bought_gpus": None,
    "jobs": {"ended": 2, "requeued": None, "killed": None},
    "figures": FIGURES,
}
DONE = {"state": "done", "allocation": {}, "missing": [], "figures": FIGURES}


class Metrics:
    """What Airflow is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gauges: dict[tuple[str, str], Any] = {}
        self.ends: list[str] = []
        monkeypatch.setattr(capacity, "emit", self._emit)
        monkeypatch.setattr(capacity, "count", self._count)

    def _emit(self, gauges: Any) -> None:
        for name, value, tags in gauges:
            assert tags["task_id"] == "shift"
            self.gauges[name, tags.get("target", "")] = (value, tags["state"])

    def _count(self, name: str, **tags: str) -> None:
        assert name == "shift.ended"
        self.ends.append(tags["state"])


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Metrics:
    return Metrics(monkeypatch)


@pytest.mark.parametrize(
    ("state", "event", "error"),
    [
        ("done", {"status": "success", "result": DONE}, None),
        ("superseded", {"status": "success", "result": {"superseded": "another"}}, AirflowSkipException),
        ("failed", {"status": "failed", "message": "no machine"}, AirflowException),
        ("timed_out", {"status": "timeout", "message": "too long"}, BaseException),
    ],
)
def test_however_a_shift_ends_its_figures_are_told(
    metrics: Metrics, caplog: pytest.LogCaptureFixture, state: str, event: dict[str, Any], error: Any
) -> None:
    pushed: dict[str, Any] = {}
    context: Any = {"ti": SimpleNamespace(xcom_push=pushed.__setitem__)}
    report = {"state": state, **REPORT}
    operator = shift()
    if error:
        with pytest.raises(error):
            operator.execute_complete(context, {**event, "report": report})
    else:
        operator.execute_complete(context, {**event, "report": report})
    assert metrics.gauges["shift.late_seconds", ""] == (60.0, state)
    assert metrics.gauges["shift.target_gpu_seconds", "training"] == (10.0, state)
    assert metrics.ends == [state]
    assert pushed["report"]["figures"] == FIGURES


def test_a_shift_that_could_not_even_begin_is_counted(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: Any, **__: Any) -> None:
        raise CapacityBusy("another shift")

    monkeypatch.setattr("airflow_provider_soperator.capacity.reconciliation.begin", begin)
    monkeypatch.setattr("airflow_provider_soperator.hooks.cluster_clients.installation_id", lambda: "airflow")
    with pytest.raises(AirflowException, match="another shift"):
        shift().execute({})  # type: ignore[typeddict-item]
    assert metrics.ends == ["failed"]


def test_what_is_unknown_is_said_in_the_log(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    log = SimpleNamespace(info=lambda line, *words: said.append(line % words))
    monkeypatch.setattr(ShiftCapacityOperator, "log", log)
    shift()._tell({"state": "done", **REPORT})
    assert said == [
        "It took 0:02:00\n"
        "GPU-hours: training 0.01, inference 0.0, idle 2.0, limbo 0.5\n"
        "Jobs on nodes that left: 2 ended\n"
        "GPUs bought beside the block: unknown"
    ]


def test_the_shift_of_a_capacity_dag_reports_the_window_before(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: dict[str, Any] = {}
    windows = [{"window": "night", "gpu_hours": {"training": 768.0}}, {"window": "day"}]
    monkeypatch.setattr(Variable, "get", lambda key, default: {"shifts_windows": json.dumps(windows)}.get(key, default))
    context: Any = {"ti": SimpleNamespace(xcom_push=pushed.__setitem__)}
    end = {"status": "success", "result": DONE, "report": {"state": "done", **REPORT}}
    with DAG("shifts", schedule=None):
        operator = shift(overrides_variable="shifts_overrides")
    operator.execute_complete(context, end)
    assert pushed["report"]["window"] == {"window": "day"}
