"""Gauges among the metrics of Airflow, in an Airflow worker and in the triggerer."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.observability.stats import Stats as OfTriggerer
from airflow.sdk.observability.stats import Stats as OfWorker

from airflow_provider_soperator.work.protocols import count, emit


@pytest.mark.parametrize("backend", [OfWorker, OfTriggerer])
def test_a_gauge_is_set_wherever_airflow_sends_metrics(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, dict[str, str]]] = []
    monkeypatch.setattr(backend, "gauge", lambda name, value, tags: told.append((name, value, tags)))
    emit([("job.gpu_hours", 1.5, {"state": "COMPLETED"}), ("job.peak_memory", None, {})], dag_id="d")
    assert told == [("soperator.job.gpu_hours", 1.5, {"dag_id": "d", "state": "COMPLETED"})]


@pytest.mark.parametrize("backend", [OfWorker, OfTriggerer])
def test_a_counter_is_raised_there_too(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(backend, "incr", lambda name, tags: told.append((name, tags)))
    count("shift.ended", state="failed")
    assert told == [("soperator.shift.ended", {"state": "failed"})]
