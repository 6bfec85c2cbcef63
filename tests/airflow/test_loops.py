"""Loops of Airflow 3.4: each iteration has jobs of its own, and its tasks read what those have computed."""

from __future__ import annotations

import pytest

from tests.airflow.jobs import Jobs
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

pytest.importorskip("airflow.sdk.definitions.loop", reason="the first Airflow with loops is 3.4")

HEAD = """
from airflow.sdk import task_group

from airflow_provider_soperator.operators.pipeline import SbatchPipeline

COMPUTED = ("in_worker", "deferred", "chain.second")
"""
BODY = """
@task_group
def repeated():
    how = {"poll_interval": 1, "deferrable": True, "end_from_trigger": True}
    which = {"command": "echo {{ loop.index }}", "result": "json", **how}

    @task
    def numbers(*, loop):
        return [[str(loop.index)], [str(loop.index)]]

    jobs = [
        SbatchOperator(task_id="in_worker", **which | {"deferrable": False, "end_from_trigger": False}),
        SbatchOperator(task_id="deferred", **which),
        SbatchOperator(task_id="from_trigger", command="true", start_from_trigger=True, **how),
        SbatchOperator.partial(
            task_id="mapped", script="#!/bin/bash\\necho $1\\n", result="json", **how
        ).expand(args=numbers()),
    ]
    with SbatchPipeline("chain") as chain:
        SbatchOperator(task_id="first", command="true", **how) >> SbatchOperator(task_id="second", **which)

    @task
    def compare(*, loop, ti):
        computed = ti.xcom_pull([f"repeated.{name}" for name in COMPUTED])
        assert [*computed, *ti.xcom_pull("repeated.mapped")] == [loop.index] * 5, computed
        ids = ti.xcom_pull([f"repeated.{name}" for name in (*COMPUTED, "from_trigger", "mapped")], key="job_id")
        print("jobs", ids, "after", loop.previous if loop.index else "none")
        assert not loop.index or not {*ids} & {*loop.previous}, ids
        return ids

    [*jobs, chain] >> compare()

repeated.loop(max_iterations=2)
"""


def start(stack: Stack, slurm: Cluster) -> Run:
    return stack.add_dag("loops", BODY, head=HEAD).trigger()


def test_each_iteration_has_the_results_of_its_own_jobs(run: Run) -> None:
    run.stack.wait("the loop is over", lambda: run.state() in ("success", "failed"))
    states = [(task["task_id"], task["map_index"], task["state"]) for task in run.tasks()]
    assert {state for *_, state in states} == {"success"}, states
    assert sum(task_id == "repeated.compare" for task_id, *_ in states) == 2


@pytest.mark.parametrize("task_id", ["in_worker", "deferred", "from_trigger", "chain.first", "chain.second"])
def test_each_iteration_has_jobs_of_its_own(run: Run, slurm: Cluster, task_id: str) -> None:
    run.stack.wait("the loop is over", lambda: run.state() in ("success", "failed"))
    assert list(Jobs(slurm, run, f"repeated.{task_id}").states().values()) == ["COMPLETED"] * 2


def test_the_page_has_the_tasks_of_jobs_of_iterations(run: Run) -> None:
    run.stack.wait("the loop is over", lambda: run.state() in ("success", "failed"))
    asked = {"connection": "soperator_default", "jobs": "ended", "search": "repeated"}

    def shown() -> str:
        return run.stack.api.get(f"{run.stack.api.url}/soperator/", params=asked).text

    run.stack.wait("the page has both", lambda: shown().count("loops &rsaquo; repeated.deferred") >= 2)
    assert "repeated.deferred[" not in shown()
    assert "loops &rsaquo; repeated.mapped[0]" in shown()
