"""Tasks that look at a cluster, its queue and its file system, without Airflow's processes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.operators.queue import (
    CancelJobsOperator,
    HoldJobsOperator,
    ReleaseJobsOperator,
    TopJobsOperator,
    UpdateJobsOperator,
)
from airflow_provider_soperator.operators.stats import SlurmStatsOperator
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections

Perform = Callable[..., Any]


@pytest.fixture
def perform(connections: Connections) -> Perform:
    """Executes a task as a worker would, over a connection to the sandbox."""
    hook = connections.login_node()

    def perform(operator: type[Any], **options: Any) -> Any:
        return operator(task_id="task", **{"slurm_conn_id": hook.slurm_conn_id, **options}).execute({"ti": None})

    return perform


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], float]:
    """What Airflow is told to set, by name and tags."""
    from airflow.sdk._shared.observability.metrics import stats
    from airflow.sdk.observability.stats import Stats

    # As Airflow sets it up in a worker.
    monkeypatch.setattr(stats, "_factory", object)
    found: dict[tuple[str, ...], float] = {}

    def gauge(name: str, value: float, *, tags: dict[str, str]) -> None:
        own = {tag: said for tag, said in tags.items() if tag != "slurm_conn_id"}
        assert len(own) == len(tags) - 1
        found[(name, *own.values())] = value

    monkeypatch.setattr(Stats, "gauge", gauge)
    return found


def waiting(cluster: Cluster, *options: str) -> str:
    """A job that waits for a day, and could be held, moved or changed."""
    return cluster.sbatch("--begin=now+1day", *options)


@pytest.mark.leaves("drains")
def test_stats_are_those_of_the_cluster(
    perform: Perform, cluster: Cluster, gauges: dict[tuple[str, ...], float], capsys: pytest.CaptureFixture[str]
) -> None:
    running = cluster.held_job("--gpus=3", "--nodelist=worker-0")
    cluster.wait_job(running, "RUNNING")
    cluster.sbatch("--gpus=8", "--nodes=1", "--nodelist=worker-0", "--array=0-1")
    waiting(cluster, "--hold", "--partition=hidden")
    cluster.run("scontrol", "update", "nodename=worker-cpu-0", "state=drain", "reason=test")
    stats = perform(SlurmStatsOperator, top=5)
    json.dumps(stats, allow_nan=False)
    main, hidden = stats["queue"]["main"], stats["queue"]["hidden"]
    assert main["RUNNING"] == {"jobs": 1, "nodes": 1, "gpus": 3}
    assert main["PENDING"] == {"jobs": 2, "nodes": 2, "gpus": 16}
    assert hidden["PENDING"]["jobs"] == 1
    assert stats["waits"]["jobs"] == 2
    known = {word: stats["nodes"][word] for word in ("total", "usable", "off", "busy", "drained")}
    assert known == {"total": 6, "usable": 2, "off": 3, "busy": 1, "drained": 1}
    figures = {"total": 32, "allocated": 3, "idle": 5, "drained": 0, "booting": 0, "off": 24, "down": 0}
    assert stats["gpus"] == figures
    assert stats["users"][0] == {
        "user": "root",
        "has": {"jobs": 1, "nodes": 1, "gpus": 3},
        "waits_for": {"jobs": 3, "nodes": 3, "gpus": 16},
    }
    assert {(share["account"], share["user"]) for share in stats["shares"]} == {("research", "alice"), ("root", "root")}
    assert re.search(r"main +RUNNING +1 +1 +3\n", capsys.readouterr().out)
    assert gauges["soperator.queue.gpus", "main", "RUNNING"] == 3
    assert gauges["soperator.queue.jobs", "hidden", "PENDING"] == 1
    assert gauges["soperator.gpus", "off"] == 24
    assert gauges["soperator.nodes", "drained"] == 1


def test_only_named_jobs_are_cancelled(perform: Perform, cluster: Cluster) -> None:
    running, other = cluster.held_job("--nodelist=worker-0"), waiting(cluster)
    array = waiting(cluster, "--array=0-4")
    cluster.wait_job(running, "RUNNING")
    named = [running, f"{array}_3", f"{array}_[0-1]"]
    assert perform(CancelJobsOperator, job_ids=",".join([*named, "999999"])) == {"jobs": sorted(named), "already": []}
    cluster.wait_job(running, "CANCELLED")
    left = cluster.run("squeue", "--noheader", "--states=PD", "--array", "--format=%i").split()
    assert sorted(left) == sorted([other, f"{array}_2", f"{array}_4"])


def test_jobs_are_held_and_released_once(perform: Perform, cluster: Cluster) -> None:
    jobs = sorted([waiting(cluster, "--job-name=fit-1"), waiting(cluster, "--job-name=fit-2", "--array=0-2")])
    other = waiting(cluster, "--job-name=prepare")
    chosen = {"name": "fit-*", "user": "root"}
    entries = sorted([jobs[0], f"{jobs[1]}_[0-2]"])
    assert perform(HoldJobsOperator, job_filter=chosen) == {"jobs": entries, "already": []}
    assert perform(HoldJobsOperator, job_filter=chosen) == {"jobs": entries, "already": entries}
    held = cluster.run("squeue", "--noheader", "--states=PD", "--format=%F %r").splitlines()
    assert sorted(held) == sorted([f"{jobs[0]} JobHeldAdmin", f"{jobs[1]} JobHeldAdmin", f"{other} BeginTime"])
    assert perform(ReleaseJobsOperator, job_ids=",".join([*jobs, "999999"])) == {"jobs": entries, "already": []}
    assert "JobHeld" not in cluster.run("squeue", "--noheader", "--format=%r")
    assert perform(ReleaseJobsOperator, job_ids=[]) == {"jobs": [], "already": []}


def test_a_job_is_put_before_others_of_its_user(perform: Perform, cluster: Cluster, connections: Connections) -> None:
    first, second, array = waiting(cluster), waiting(cluster), waiting(cluster, "--array=0-1")
    assert perform(TopJobsOperator, job_ids=[array, second])["jobs"] == sorted([f"{array}_[0-1]", second])
    order = cluster.run("squeue", "--noheader", "--sort=-p", "--states=PD", "--format=%F %Q").split()
    priorities = dict(zip(order[::2], map(int, order[1::2]), strict=True))
    assert priorities[array] >= priorities[second] > priorities[first]
    alice = connections.login_node(login="alice").slurm_conn_id
    with pytest.raises(AirflowFailException, match="enable_user_top"):
        perform(TopJobsOperator, job_ids=[first], slurm_conn_id=alice)


def test_jobs_are_changed_once(perform: Perform, cluster: Cluster) -> None:
    job = waiting(cluster)
    running = cluster.held_job("--nodelist=worker-0")
    cluster.wait_job(running, "RUNNING")
    wanted = {"partition": "hidden", "time_limit": "2:00:00", "priority": "77"}
    assert perform(UpdateJobsOperator, job_filter={"user": "root"}, **wanted) == {"jobs": [job], "already": []}
    assert perform(UpdateJobsOperator, job_filter={"user": "root"}, **wanted) == {"jobs": [job], "already": [job]}
    assert cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%P %l %Q").split() == [
        "hidden",
        "2:00:00",
        "77",
    ]
    longer = perform(UpdateJobsOperator, job_ids=running, time_limit="3:00:00", include_running=True)
    assert longer["jobs"] == [running]
    with pytest.raises(AirflowFailException, match="no partition has that name"):
        perform(UpdateJobsOperator, job_ids=job, partition="mian")
