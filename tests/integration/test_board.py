"""What the page asks a cluster beside nodes and queue: health, usage, and the last lines of a job."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_soperator.board import looks, usage
from airflow_provider_soperator.board.check_history import look_at_health
from airflow_provider_soperator.board.queue_rows import output_tail
from airflow_provider_soperator.board.usage import look_at_usage
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.requests import ListJobs
from tests.integration.cluster import Cluster
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("connections")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look waits for a slow machine, so that what it shows is what there is."""
    monkeypatch.setattr(looks.attempt, "__defaults__", (float(PATIENCE),))


def test_a_connection_with_kubernetes_has_pods_and_the_results_of_checks(cluster: Cluster) -> None:
    seen = asyncio.run(look_at_health("soperator_kubernetes"))
    # Figures are in Airflow's database, which there is none of here.
    assert seen.failures.keys() <= {"figures of checks"}
    assert "worker-0" in (seen.observations.kubernetes or {})
    assert cluster.node_check in {check.name.removeprefix("soperator-") for check in seen.checks}
    assert asyncio.run(look_at_health("soperator_default")).observations.kubernetes is None


def test_usage_and_output_are_of_the_jobs_that_ran(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tasks are in Airflow's database, which there is none of here.
    monkeypatch.setattr(usage, "find_ended", lambda jobs, until=None, ever=False: {})
    job = cluster.sbatch(wrap="seq 1000")
    cluster.wait_job(job, "COMPLETED")

    async def printed() -> str:
        async with SlurmHook("soperator_default").async_client() as client:
            [found] = await client.ask(ListJobs(ids=(JobId.parse(job),)))
        return await output_tail("soperator_default", found)

    lines = asyncio.run(printed()).split("\n")
    assert (len(lines), lines[-1]) == (200, "1000")

    def used() -> Any:
        seen = asyncio.run(look_at_usage("soperator_default"))
        assert seen.failure == ""
        return [row for row in seen.tables(lambda dag: True)["user"] if row.name == "root" and row.jobs]

    cluster.wait("accounting has the job", used)
