"""Figures that a check's jobs print on a sandbox: returned, kept, and a finding where a node has become slow."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Variable
from async_timeout import timeout

from airflow_provider_soperator.operators.cluster import RunActiveCheckOperator
from airflow_provider_soperator.sensors.health import NodeHealthSensor
from airflow_provider_soperator.triggers.events import NodeUnhealthyTrigger
from sandbox.lifecycle import Sandbox
from sandbox.settings import CLUSTER, NAMESPACE
from tests.integration.cluster import SOPERATOR, Cluster
from tests.integration.connections import Connections
from tests.patience import PATIENCE

CHECK = "bandwidth"
#: As nccl-tests end, and a figure of one's own.
SCRIPT = """\
#!/bin/bash
#SBATCH --gpus-per-node=1
echo "# Avg bus bandwidth    : $(cat /root/bandwidth)"
echo "latency 3.5 us"
"""
_RUNS = itertools.count()


@pytest.fixture(scope="module")
def measuring(sandbox: Sandbox) -> Iterator[None]:
    """A check that measures what the test wants it to."""
    spec = {
        "name": CHECK,
        "slurmClusterRefName": CLUSTER,
        "checkType": "slurmJob",
        "runAfterCreation": False,
        "slurmJobSpec": {"eachWorkerJobs": True, "sbatchScript": SCRIPT},
    }
    made = {"apiVersion": "slurm.nebius.ai/v1alpha1", "kind": "ActiveCheck", "metadata": {"name": CHECK}, "spec": spec}
    cluster = Cluster(sandbox)
    cluster.custom_objects.create_namespaced_custom_object(*SOPERATOR, "activechecks", made)
    cron_jobs = ("get", "cronjobs", f"--namespace={NAMESPACE}", "--output=name")
    cluster.wait("the check has a CronJob", lambda: CHECK in cluster.kubectl(*cron_jobs))
    yield
    cluster.kubectl("delete", "activecheck", CHECK, f"--namespace={NAMESPACE}")
    cluster.run("rm", "--force", "/root/bandwidth")
    cluster.close()


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The Variables of an Airflow."""
    kept: dict[str, str] = {}
    monkeypatch.setattr(Variable, "get", lambda key, default: kept.get(key, default))
    monkeypatch.setattr(Variable, "set", kept.__setitem__)
    return kept


class Measurements:
    """Runs of the check, and what is found by them."""

    def __init__(self, cluster: Cluster, connections: Connections) -> None:
        self._cluster = cluster
        self.slurm_conn_id = connections.login_node().slurm_conn_id

    def measure(self, value: float, **options: Any) -> Any:
        self._cluster.run("bash", "-c", f"echo {value} > /root/bandwidth")
        said: dict[str, Any] = {
            "slurm_conn_id": self.slurm_conn_id,
            "poll_interval": 0.2,
            "deferrable": False,
            **options,
        }
        names = {"dag_id": "nightly", "run_id": f"run-{next(_RUNS)}", "task_id": "check", "map_index": -1}
        ti = SimpleNamespace(**names, try_number=1, max_tries=0)
        context: Any = {"ti": ti, "dag_run": SimpleNamespace(start_date=None)}
        return RunActiveCheckOperator(task_id="check", check=CHECK, **said).execute(context)

    def look(self, **options: Any) -> Any:
        found = NodeHealthSensor(
            task_id="slow",
            target_state="any",
            kinds=["slow"],
            checks=[CHECK],
            slurm_conn_id=self.slurm_conn_id,
            **options,
        ).execute({"ti": None})  # type: ignore[typeddict-item]
        return {name: [one["what"] for one in findings] for name, findings in found.items()}

    async def event(self) -> Any:
        trigger = NodeUnhealthyTrigger(
            kinds=["slow"], checks=[CHECK], slurm_conn_id=self.slurm_conn_id, poll_interval=0.2
        )
        running = trigger.run()
        try:
            async with timeout(PATIENCE):
                return (await anext(running)).payload
        finally:
            await running.aclose()


@pytest.fixture
def measurements(measuring: None, cluster: Cluster, connections: Connections) -> Measurements:
    return Measurements(cluster, connections)


def test_a_node_that_becomes_slow_is_a_finding_and_an_event(
    measurements: Measurements, variables: dict[str, str]
) -> None:
    for value in (481.2, 480.9, 482.0):
        result = measurements.measure(value)
        assert (result["figures"], result["slow"]) == ({"worker-0": {"busbw": value}}, {})
    assert measurements.look() == {}
    words = f"busbw of {CHECK} was 300: 38% less than 481.2, the median in its 3 runs before"
    # The check itself passes.
    result = measurements.measure(300)
    assert (result["state"], result["slow"]) == ("Complete", {"worker-0": words})
    assert measurements.look() == {"worker-0": [words]}
    assert measurements.look(tolerance=0.5) == {}
    event = asyncio.run(measurements.event())
    assert (event["node"], [one["what"] for one in event["findings"]]) == ("worker-0", [words])
    assert len(json.loads(variables[f"soperator_figures_{CHECK}"])["worker-0"]) == 4
    measurements.measure(479)
    assert measurements.look() == {}


def test_other_figures_are_read_by_expressions_or_none(measurements: Measurements, variables: dict[str, str]) -> None:
    assert measurements.measure(480, figures={"latency_us": r"latency ([0-9.]+) us"})["figures"] == {
        "worker-0": {"latency_us": 3.5}
    }
    variables.clear()
    assert measurements.measure(480, figures={})["figures"] == {}
    # Without Slurm it is not known where a job ran.
    assert measurements.measure(480, slurm_conn_id=None)["figures"] == {}
    assert variables == {}
