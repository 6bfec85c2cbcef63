"""Advice from the accounting of a cluster and the Prometheus of a service."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
from airflow_provider_soperator.cli import advise
from tests.integration.cluster import Cluster
from tests.integration.test_demand import Service, service
from tests.unit.cli.calls import called
from tests.unit.cli.test_advise import few_proposals, written

__all__ = ["few_proposals", "service"]

pytestmark = pytest.mark.usefixtures("connections")


def test_jobs_of_the_cluster_are_replayed(
    cluster: Cluster, service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.requests = 20.0
    array = cluster.sbatch("--array=1-30", "--gpus-per-node=1", "--time=10")
    requeued = cluster.held_job("--requeue", "--gpus-per-node=2")
    cluster.wait_job(requeued, "RUNNING")
    cluster.run("scontrol", "requeue", requeued)
    cluster.let_go(requeued)
    cluster.start_soon(requeued)
    cluster.wait("all jobs have ended", lambda: not cluster.active_jobs())
    nodes = SlurmNodesTarget(name="training", nodes="worker-[0-3]")
    now = datetime.now(timezone.utc)

    def gpus() -> dict[str, tuple[int, int]]:
        jobs = advise._jobs(nodes, now - timedelta(days=2), now + timedelta(minutes=5))
        return {str(job.id): (job.gpus, job.restarts) for job in jobs if job.ended}

    wanted = {f"{array}_{number}": (1, 0) for number in range(1, 31)} | {requeued: (2, 1)}
    cluster.wait("accounting has all of them", lambda: wanted.items() <= gpus().items())
    file = written(tmp_path, **{', slurm_conn_id="gpus"': ""})
    found = called(capsys, "advise", file, "--days", "14", "--json")
    assert found.status == 0, found
    assert "Asking soperator_default for jobs" in found.err
    assert {row["proposal"] for row in found.rows} == {"fixed split", "demand, headroom 1", "as it is"}
