"""DAGs that run because of what happens on the cluster, which a watcher in the triggerer has seen."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.airflow.stack import Dag, Stack
from tests.integration.cluster import Cluster

HEAD = """
from airflow.sdk import Asset, AssetWatcher

from airflow_provider_soperator.triggers.events import SlurmJobFinishedTrigger, SlurmQueueLongTrigger

watched = Asset("{name}", watchers=[AssetWatcher(name="{name}", trigger={trigger})])
"""
TASKS = """
@task(retries=2, retry_delay=timedelta(0))
def heard(*, triggering_asset_events):
    return [event.extra["payload"] for event in triggering_asset_events[watched]]

heard()
"""


def add_dag(stack: Stack, name: str, trigger: str) -> Dag:
    return stack.add_dag(name, TASKS, head=HEAD.format(name=name, trigger=trigger), schedule="[watched]")


@pytest.fixture(scope="module")
def of_jobs(stack: Stack) -> Dag:
    # Jobs end as soon as they begin, maybe before the watcher has.
    return add_dag(stack, "of_jobs", 'SlurmJobFinishedTrigger(name="watched-*", look_back=3600, poll_interval=1)')


@pytest.fixture(scope="module")
def of_queues(stack: Stack) -> Dag:
    return add_dag(
        stack, "of_queues", 'SlurmQueueLongTrigger(min_jobs=2, min_duration=3, name="queued-*", poll_interval=1)'
    )


def payloads(dag: Dag) -> list[dict[str, Any]]:
    """Those of all events so far, the oldest first."""
    params = {"asset_id": dag.stack.asset(dag.dag_id), "order_by": "timestamp", "limit": 100}

    def answered() -> httpx.Response | None:
        answer = dag.stack.api.get("/assets/events", params=params)
        # Airflow 3.3 cannot show an event while a run that it has begun is queued (DagRunAssetReference.start_date).
        return None if answer.status_code == 500 else answer

    answer = dag.stack.wait(f"Airflow shows the events of {dag.dag_id}", answered)
    return [event["extra"]["payload"] for event in answer.raise_for_status().json()["asset_events"]]


def wait_told(dag: Dag, job: str) -> dict[str, Any]:
    def told() -> dict[str, Any] | None:
        return next((report for report in payloads(dag) if report["job_id"] == job), None)

    return dag.stack.wait(f"the watcher of {dag.dag_id} has told of job {job}", told)


def wait_remembered(dag: Dag, memory: Any) -> None:
    dag.stack.wait(f"the watcher of {dag.dag_id} remembers {memory}", lambda: memory in dag.stack.memories(dag.dag_id))


# It wants the DAG's only run.
@pytest.mark.in_order
def test_a_dag_runs_when_a_job_has_finished(of_jobs: Dag, slurm: Cluster) -> None:
    slurm.wait_job(slurm.sbatch("--job-name=other"), "COMPLETED")
    job = slurm.sbatch("--job-name=watched-1", wrap="exit 3")
    [run] = of_jobs.stack.wait("the DAG runs", of_jobs.runs)
    run.wait("heard", "success")
    [report] = run.xcom("heard")
    assert report["job_id"] == job
    assert report["state"] == "FAILED"
    assert report["exit_code"] == "3:0"
    assert report["name"] == "watched-1"
    assert report["nodes"]


@pytest.mark.in_order
@pytest.mark.soak
def test_nothing_is_lost_or_told_twice_when_the_triggerer_restarts(stack: Stack, of_jobs: Dag, slurm: Cluster) -> None:
    before = slurm.sbatch("--job-name=watched-before")
    wait_told(of_jobs, before)
    # Killed before that it would tell of the job again.
    stack.wait(
        "the watcher remembers it", lambda: any(before in memory["told"] for memory in stack.memories(of_jobs.dag_id))
    )
    stack.end("triggerer")
    meanwhile = slurm.sbatch("--job-name=watched-meanwhile")
    slurm.wait_job(meanwhile, "COMPLETED")
    stack.start_all()
    wait_told(of_jobs, meanwhile)
    after = slurm.sbatch("--job-name=watched-after")
    wait_told(of_jobs, after)
    told = [report["job_id"] for report in payloads(of_jobs)]
    assert told[-3:] == [before, meanwhile, after]
    # A watcher without a memory would have told of all before once more.
    assert len(set(told)) == len(told)


def test_a_dag_runs_once_each_time_that_the_queue_is_long(of_queues: Dag, slurm: Cluster) -> None:
    for number in (1, 2):
        wait_remembered(of_queues, False)
        jobs = [slurm.held_job("--job-name=queued-1"), slurm.held_job("--job-name=queued-2")]
        wait_remembered(of_queues, True)
        # Events that Airflow finds together are those of one run.
        of_queues.stack.wait("the DAG runs", lambda number=number: len(of_queues.runs()) == number)
        for job in jobs:
            slurm.let_go(job)
    wait_remembered(of_queues, False)
    told = payloads(of_queues)
    assert [report["count"] for report in told] == [2, 2]
    assert len({report["since"] for report in told}) == 2
    of_queues.stack.wait("the DAG has run for each", lambda: len(of_queues.runs()) == 2)
