"""What the task that submits leaves for the others, by way of XCom."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.pipelines.graph import Graph, Segment
from airflow_provider_soperator.pipelines.plan import Ahead, AheadJob, Plan, ahead_key
from airflow_provider_soperator.pipelines.rendering import Rendered
from airflow_provider_soperator.pipelines.submit import SubmitAheadOperator
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests.submission import Submitted

NAMES = st.text("abc._-", min_size=1, max_size=5)
JOBS = st.builds(AheadJob, st.integers(1, 10**9).map(str), st.just("abcdefghijkl"))


@given(st.integers(0, 5), st.dictionaries(NAMES, st.dictionaries(st.integers(-1, 5), JOBS)))
def test_it_is_read_as_it_was_left(cleared: int, jobs: dict[str, dict[int, AheadJob]]) -> None:
    left = Ahead(cleared, jobs)
    assert Ahead.read(json.loads(json.dumps(left.describe()))) == left


def test_the_jobs_of_some_stages() -> None:
    jobs = {name: {index: AheadJob(f"{name}{index}", "k") for index in (0, 1)} for name in "ab"}
    left = Ahead(0, jobs)
    assert [one.job for one in left.of(["b", "unknown"])] == ["b0", "b1"]
    assert [one.job for one in left.all()] == ["a0", "a1", "b0", "b1"]


def test_each_job_has_a_key_of_its_own() -> None:
    keys = {
        ahead_key(dag, run, task, index, cleared).text
        for dag in ("d", "e")
        for run in ("r", "s")
        for task in ("a", "b")
        for index in (-1, 0, 1)
        for cleared in (0, 1)
    }
    assert len(keys) == 2 * 2 * 2 * 3 * 2
    assert ahead_key("d", "r", "a", -1, 0) == ahead_key("d", "r", "a", -1, 0)


def test_earlier_jobs_are_looked_for_from_before_the_run_on_as_clocks_may_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[datetime] = []

    class Client:
        def submit_together(self, jobs: list[BatchJob], *, since: datetime) -> list[Submitted]:
            looked.append(since)
            return [Submitted(JobId(7)) for _ in jobs]

    @contextlib.contextmanager
    def client(hook: SlurmHook) -> Iterator[Client]:
        yield Client()

    monkeypatch.setattr(SlurmHook, "client", client)
    with DAG("d", schedule=None):
        segment = Segment("c", frozenset(), ())
        submit = SubmitAheadOperator(task_id="submit", graph=Graph(), segment=segment, slurm_conn_id="c")
    begun = datetime(2026, 3, 2, 10, tzinfo=timezone.utc)
    context: Any = {
        "dag_run": SimpleNamespace(start_date=begun, clear_number=0),
        "ti": SimpleNamespace(xcom_push=lambda key, value: None),
    }
    submit._submit(context, [Rendered("fit", -1, BatchJob(command="fit"), ahead_key("d", "r", "fit", -1, 0))], Plan())
    assert looked == [begun - timedelta(hours=1)]
