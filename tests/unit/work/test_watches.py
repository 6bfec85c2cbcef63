"""What the looks of watches say in the log."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_soperator.health.assessment import HealthQuery, Observations
from airflow_provider_soperator.hooks.cluster_clients import HealthSources
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.notations import ExitCode
from airflow_provider_soperator.slurm.queue_filter import QueueFilter
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.work.protocols import Look, WorkFailed
from airflow_provider_soperator.work.watches import HealthWatch, JobWatch, QueueWatch
from tests.unit.client.tracking import queued

IDLE = NodeState.parse("IDLE")
NODES = (
    *(Node(name=f"worker-{number}", state=IDLE, partitions=("main",)) for number in range(3)),
    Node(name="cpu-0", state=IDLE, partitions=("cpu",)),
)


def client(answer: Any) -> Any:
    async def ask_shared(request: Any, max_age: float) -> Any:
        return answer

    return SimpleNamespace(ask_shared=ask_shared)


@pytest.mark.parametrize(
    ("state", "states", "is_reached"),
    [
        ("RUNNING", (), False),
        ("COMPLETED", (), True),
        ("RUNNING", ("RUNNING",), True),
        # squeue shows the flag alone, slurmrestd both.
        ("CONFIGURING", ("RUNNING",), False),
        ("RUNNING+CONFIGURING", ("RUNNING",), False),
        ("TIMEOUT", ("TIMEOUT",), True),
    ],
)
def test_a_job_is_looked_at_until_it_has_succeeded_or_is_as_awaited(
    state: str, states: tuple[str, ...], is_reached: bool
) -> None:
    assert look_at_job(state, states).is_reached is is_reached


def test_a_job_that_has_failed_says_why() -> None:
    with pytest.raises(WorkFailed, match="job 7 failed on worker-3 with exit code 3"):
        look_at_job("FAILED", ("RUNNING",), nodelist="worker-3", exit_code=ExitCode(3))


def look_at_job(state: str, states: tuple[str, ...], **fields: Any) -> Look:
    status = JobStatus(id=JobId(7), parts=(queued("7", state, **fields),))

    async def newest() -> JobStatus:
        return status

    watch = JobWatch(slurm_conn_id="a", job_id="7", states=states)
    return asyncio.run(watch.look(SimpleNamespace(next=newest), 0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"max_jobs": 0}, "0 jobs, awaited are at most 0"),
        ({"min_jobs": 2, "max_jobs": 9}, "0 jobs, awaited are at least 2 and at most 9"),
    ],
)
def test_a_queue_is_told_with_what_is_awaited(limits: dict[str, int], says: str) -> None:
    watch = QueueWatch(slurm_conn_id="a", jobs=QueueFilter(), min_duration=timedelta(0), **limits)
    assert asyncio.run(watch.look(client(()), 0)).says == (says,)


def test_nodes_that_are_well_are_counted_with_who_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Observations()

    async def ask(self: HealthSources, max_age: float) -> Observations:
        return seen

    monkeypatch.setattr(HealthSources, "ask", ask)
    watch = HealthWatch(slurm_conn_id="a", watched=HealthQuery(partition="main"), witnesses=HealthSources())
    assert asyncio.run(watch.look(client(NODES), 0)).says == ("3 nodes of main are healthy (Slurm)",)
    watch = HealthWatch(slurm_conn_id="a", watched=HealthQuery(), witnesses=HealthSources())
    assert asyncio.run(watch.look(client(NODES), 0)).says == ("4 nodes are healthy (Slurm)",)
