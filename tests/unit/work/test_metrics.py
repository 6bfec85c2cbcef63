"""Gauges among the metrics of Airflow, in an Airflow worker and in the triggerer."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.observability.stats import Stats as OfTriggerer
from airflow.sdk._shared.observability.metrics import stats as of_worker
from airflow.sdk.observability.stats import Stats as OfWorker

from airflow_provider_soperator.work.protocols import count, emit


@pytest.fixture(params=[OfWorker, OfTriggerer])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is set up in a process of Airflow."""
    monkeypatch.setattr(of_worker, "_factory", object if request.param is OfWorker else None)
    return request.param


def test_a_gauge_is_set_wherever_airflow_sends_metrics(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, dict[str, str]]] = []
    monkeypatch.setattr(backend, "gauge", lambda name, value, tags: told.append((name, value, tags)))
    emit([("job.gpu_hours", 1.5, {"state": "COMPLETED"}), ("job.peak_memory", None, {})], dag_id="d")
    assert told == [("soperator.job.gpu_hours", 1.5, {"dag_id": "d", "state": "COMPLETED"})]


def test_a_counter_is_raised_there_too(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(backend, "incr", lambda name, tags: told.append((name, tags)))
    count("shift.ended", state="failed")
    assert told == [("soperator.shift.ended", {"state": "failed"})]


def test_where_a_worker_has_what_the_scheduler_has_set_up_as_well_an_end_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    # As LocalExecutor forks it.
    monkeypatch.setattr(of_worker, "_factory", object)
    monkeypatch.setattr(OfWorker, "incr", lambda name, tags: told.append("worker"))
    monkeypatch.setattr(OfTriggerer, "incr", lambda name, tags: told.append("triggerer"))
    count("shift.ended", state="done")
    assert told == ["worker"]
