"""What the DAG that looks at a cluster each night makes of the times of its jail."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.common.compat.sdk import Stats
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.hooks.slurm import SlurmHook

FILE = Path(__file__).parents[2] / "dags/nightly_health.py"


def test_the_figures_of_a_slow_jail_are_kept_before_its_task_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    dag = DagBag(FILE).dags["nightly_health"]
    job: Any = dag.get_task("jail")
    # The job ends well, however slow it was: else there would be no figures.
    assert "env" not in job.job
    figures: Any = dag.get_task("jail_figures")
    printed, kept, gauges = "", dict[str, Any](), list[float]()
    monkeypatch.setattr(
        SlurmHook, "client", lambda self: nullcontext(SimpleNamespace(read_file=lambda path: printed.encode()))
    )
    monkeypatch.setitem(
        figures.python_callable.__globals__, "keep_figures", lambda check, figures, *more: kept.update(figures) or {}
    )
    monkeypatch.setattr(Stats, "gauge", lambda name, value, tags: gauges.append(value))

    def look(p95: float) -> Any:
        nonlocal printed
        times = {"node": "worker-0", "seconds": {"create": {"p50": 0.5, "p95": p95}}}
        printed = f"starting\n{json.dumps(times)}\n"
        return figures.python_callable({"output": "/jail.out", "ended": "2026-11-25T02:10:00+00:00"})

    assert [one["node"] for one in look(0.9)] == ["worker-0"]
    kept.clear()
    with pytest.raises(AirflowFailException, match=r"create on worker-0 takes 1\.1 s \(p95\), and may take 1\.0 s"):
        look(1.1)
    assert kept == {"worker-0": {"create_seconds": 0.5}}
    assert gauges == [0.5, 0.9, 0.5, 1.1]
