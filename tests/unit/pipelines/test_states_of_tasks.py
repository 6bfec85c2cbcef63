"""The states that Airflow has a pipeline's tasks in, and what is cancelled by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_soperator.operators.pipeline import SbatchPipeline
from airflow_provider_soperator.pipelines.graph import states_of
from airflow_provider_soperator.pipelines.plan import AHEAD, Ahead, AheadJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from tests.unit.operators.dags import job, taken

#: By task and map index.
States = Mapping[str, Mapping[int, str | None]]


class Ti(SimpleNamespace):
    """A task of the run that asks."""

    def xcom_pull(self, *, task_ids: str, key: str) -> Any:
        assert key == AHEAD
        return self.left[task_ids]


def airflow_with(states: States, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """An Airflow with these tasks, which answers as its execution API does; returns the questions."""
    asked: list[Sequence[str]] = []

    def answer(dag_id: str, task_ids: Sequence[str], run_ids: Sequence[str]) -> dict[str, Any]:
        asked.append(task_ids)
        found: dict[str, Any] = {}
        for name in states.keys() & set(task_ids):
            for index, state in states[name].items():
                found |= {name if index < 0 else f"{name}_{index}": state}
        return {run_ids[0]: found}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(answer))
    return asked


@pytest.mark.parametrize(
    "states",
    [
        {"fit": {0: "success", 1: "running"}, "fit_1": {-1: "failed"}},
        {"fit": {1: "running", 2: None}, "fit_1": {2: "failed"}, "fit_1_2": {-1: "success"}},
        {"p.fit_2": {-1: None}, "p.fit_10": {0: "queued", 11: "success"}, "p.fit": {-1: "skipped"}},
        {"fit": {}, "fit_": {1: "running"}, "fit__1": {-1: "failed"}},
    ],
)
def test_an_instance_and_a_task_of_the_same_name_are_told_apart(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow_with(states, monkeypatch)
    assert states_of(SimpleNamespace(dag_id="d", run_id="r"), sorted(states)) == states


def test_tasks_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"fit_{number}" for number in range(60)]
    asked = airflow_with({name: {-1: "success"} for name in names}, monkeypatch)
    assert states_of(SimpleNamespace(dag_id="d", run_id="r"), names) == {name: {-1: "success"} for name in names}
    assert [len(of_request) for of_request in asked] == [50, 10]


class Cluster:
    """A connection, and its client: all jobs run, until they are cancelled."""

    def __init__(self) -> None:
        self.cancelled: set[str] = set()
        self.cancelled_if_waiting: set[str] = set()

    @contextmanager
    def client(self) -> Iterator[Cluster]:
        yield self

    def patient(self, log: Any) -> Cluster:
        return self

    def unfinished(self, jobs: Mapping[JobId, SubmissionKey]) -> list[JobId]:
        return list(jobs)

    def cancel_many(self, jobs: Sequence[JobId], *, waiting: bool = False) -> None:
        (self.cancelled_if_waiting if waiting else self.cancelled).update(map(str, jobs))


def test_jobs_of_stages_that_have_left_the_dag_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    with taken() as dag, SbatchPipeline("p"):
        job("a", cancel_on_kill=False) >> job("b") >> job("c")
    cluster = Cluster()
    monkeypatch.setattr("airflow_provider_soperator.hooks.slurm.SlurmHook", lambda _: cluster)
    airflow_with(
        {"p.a": {-1: "failed"}, "p.b": {-1: "failed"}, "p.c": {-1: "success"}, "p.gone": {-1: "removed"}}, monkeypatch
    )
    names = ["p.a", "p.b", "p.c", "p.gone", "p.unknown"]
    ahead = Ahead(0, {name: {-1: AheadJob(str(number), "abcdefghijkl")} for number, name in enumerate(names, 1)})
    ti = Ti(dag_id="d", run_id="r", left={"p.submit": ahead.write()})
    dag.get_task("p.cancel_rest").execute({"ti": ti})
    assert cluster.cancelled_if_waiting == {"1"}
    # Also that of c, which was marked while its job ran.
    assert cluster.cancelled == {"2", "3", "4", "5"}
