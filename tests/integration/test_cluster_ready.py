"""Clusters are waited for until they are ready, and told of when they are no longer available."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from async_timeout import timeout

from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections
from airflow_provider_soperator.sensors.cluster import ClusterReadySensor
from airflow_provider_soperator.soperator import readiness
from airflow_provider_soperator.soperator.readiness import Readiness, Wanted
from airflow_provider_soperator.triggers.events import ClusterUnavailableTrigger
from airflow_provider_soperator.triggers.work import WatchTrigger
from airflow_provider_soperator.work.clusters import look
from sandbox.settings import EPHEMERAL_SET, NAMESPACE, STATIC_SET
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.patience import PATIENCE

pytestmark = [pytest.mark.usefixtures("connections"), pytest.mark.leaves("drains")]

FIRST, LAST = (f"{STATIC_SET}-{ordinal}" for ordinal in range(2))
Sense = Callable[..., Any]


@pytest.fixture
def sense(connections: Connections) -> Sense:
    """Executes a sensor as a worker would."""
    conn_id = connections.login_node().slurm_conn_id

    def sense(**options: Any) -> Any:
        said = {"slurm_conn_id": conn_id, "poke_interval": 0.2, "timeout": 120, **options}
        return ClusterReadySensor(task_id="task", **said).execute({"ti": None})  # type: ignore[typeddict-item]

    return sense


def seen(*nodesets: str, wanted: Wanted | None = None, slurm: str | None = None) -> Readiness:
    """What Kubernetes says, and Slurm, if its connection is given."""

    async def run() -> Readiness:
        async with ClusterConnections("kubernetes_default", NAMESPACE, slurm_conn_id=slurm).open() as sides:
            return (await look(sides, nodesets, 0, wanted or Wanted()))[1]

    return asyncio.run(run())


def wait_until_said(cluster: Cluster, words: str) -> None:
    cluster.wait(f"it is said that {words}", lambda: words in str(seen()))


def test_a_cluster_that_is_ready_is_described(sense: Sense) -> None:
    found = sense()
    assert (found["cluster"], found["nodesets"][EPHEMERAL_SET]["nodes"]) == ("soperator", ["worker-0"])
    assert found["nodesets"][STATIC_SET] == {"replicas": 2, "ephemeral": False, "nodes": [FIRST, LAST]}


def test_what_was_asked_for_is_compared_with_what_is_there(sense: Sense, connections: Connections) -> None:
    slurm = connections.login_node().slurm_conn_id
    there = sense()
    sizes = {name: one["replicas"] for name, one in there["nodesets"].items()}
    asked = Wanted(there["version"], sizes, {EPHEMERAL_SET: 8})
    assert sense(operator_version=there["version"]) == there
    assert seen(wanted=asked, slurm=slurm).is_ready
    assert "not of 9.0.0 yet" in str(seen(wanted=replace(asked, version="9.0.0")))
    assert "worker has 4 nodes, not 9 yet" in str(seen(wanted=replace(asked, replicas={EPHEMERAL_SET: 9})))
    more = replace(asked, gpus={EPHEMERAL_SET: 9})
    assert str(seen(wanted=more, slurm=slurm)) == "worker-0 has 8 of 9 GPUs in Slurm"


def test_what_no_wait_mends_fails_the_sensor_at_once(cluster: Cluster, sense: Sense) -> None:
    cluster.run("scontrol", "update", f"nodename={LAST}", "state=drain", "reason=my test")
    assert sense(slurm_conn_id=None)["cluster"] == "soperator"
    assert sense(nodesets=[EPHEMERAL_SET])["cluster"] == "soperator"
    with pytest.raises(AirflowFailException, match=f"{LAST} is drained by root: my test"):
        sense()
    with pytest.raises(AirflowFailException, match="there is no NodeSet gpu: there are worker, worker-cpu"):
        sense(nodesets="gpu")


@pytest.mark.parametrize(
    ("phase", "conditions", "says"),
    [
        ("Pending", ["CommonAvailable=Unknown:SetUpCondition"], "is being set up"),
        ("Reconciling", [], "is Reconciling"),
        ("Not available", ["LoginAvailable=False:NotAvailable"], "is not available: the login nodes"),
        ("Available", ["NodeSetRefsResolved=False:IgnoredNodeSetRefs"], "has partitions with NodeSets"),
    ],
)
def test_a_cluster_of_another_phase_is_waited_for(
    cluster: Cluster, phase: str, conditions: Sequence[str], says: str
) -> None:
    cluster.fault("cluster-phase", phase=phase, conditions=conditions)
    wait_until_said(cluster, says)


def test_the_phase_of_a_nodeset_is_not_what_counts(cluster: Cluster) -> None:
    cluster.fault("nodeset-phase", nodeset=STATIC_SET, phase="Provisioning")
    cluster.wait("it says so", lambda: cluster.custom("nodesets", STATIC_SET)["status"]["phase"] == "Provisioning")
    assert seen().is_ready


def test_a_trigger_waits_for_the_end_of_maintenance(
    cluster: Cluster, sense: Sense, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "SETTLES", timedelta(seconds=2))
    cluster.fault("maintenance", switch="on")
    try:
        cluster.wait("its nodes are gone", lambda: cluster.pod(LAST) is None)
        assert "is in maintenance: spec.maintenance is downscale" in str(seen())
        with pytest.raises(TaskDeferred) as deferred:
            sense(deferrable=True)
        trigger = deferred.value.trigger
        assert isinstance(trigger, WatchTrigger)

        async def end() -> dict[str, Any]:
            event = asyncio.ensure_future(anext(trigger.run()))
            await asyncio.to_thread(cluster.fault, "maintenance", switch="off")
            async with timeout(PATIENCE):
                return dict((await event).payload)

        assert asyncio.run(end())["result"]["cluster"] == "soperator"
        assert cluster.pod(LAST) is not None
    finally:
        cluster.fault("maintenance", switch="off")


class Store:
    """What Airflow keeps for a watcher."""

    def __init__(self) -> None:
        self.kept: Any = None

    def get(self, key: str) -> Any:
        return self.kept

    def set(self, key: str, value: Any) -> None:
        self.kept = value


def test_a_cluster_that_is_gone_is_told_once(cluster: Cluster, sense: Sense) -> None:
    trigger, store = ClusterUnavailableTrigger(poll_interval=0.2), Store()
    trigger.asset_state_store = store  # type: ignore[assignment]

    async def remembered(*, is_told: bool) -> None:
        while store.kept is not is_told:
            await asyncio.sleep(0.1)

    async def watch() -> None:
        events = trigger.run()
        told = asyncio.ensure_future(anext(events))
        cluster.fault("slurmdbd-down")
        async with timeout(PATIENCE):
            event = (await told).payload
        assert (event["cluster"], event["phase"]) == ("soperator", "Not available")
        assert event["conditions"] == {"AccountingAvailable": "Slurm accounting is not available yet"}
        again = asyncio.ensure_future(anext(events))
        async with timeout(PATIENCE):
            await remembered(is_told=True)
        with pytest.raises(AirflowException, match="has timed out"):
            await asyncio.to_thread(sense, slurm_conn_id=None, timeout=2)
        assert not again.done()
        await asyncio.to_thread(cluster.sandbox.up)
        await asyncio.to_thread(sense)
        # It has seen by itself that the cluster is back.
        async with timeout(PATIENCE):
            await remembered(is_told=False)
        cluster.fault("slurmdbd-down")
        async with timeout(PATIENCE):
            assert (await again).payload["since"] > event["since"]
        await events.aclose()

    asyncio.run(watch())
