"""What sensors and event triggers see of nodes that fall ill, in each of the ways that there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import TriggerEvent
from async_timeout import timeout

from airflow_provider_soperator.health.assessment import HealthQuery
from airflow_provider_soperator.hooks.cluster_clients import HealthSources
from airflow_provider_soperator.hooks.prometheus import PrometheusHook
from airflow_provider_soperator.sensors.health import NodeHealthSensor
from airflow_provider_soperator.transports.transport_errors import ConnectFailed
from airflow_provider_soperator.triggers.events import NodeUnhealthyTrigger
from airflow_provider_soperator.triggers.work import WatchTrigger
from airflow_provider_soperator.work.watches import HealthWatch
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.patience import PATIENCE

Poke = Callable[..., tuple[bool, dict[str, Any]]]


@pytest.fixture
def conn_id(connections: Connections) -> str:
    return connections.login_node().slurm_conn_id


@pytest.fixture
def prometheus(connections: Connections, cluster: Cluster) -> str:
    return connections.define("http", host=cluster.access["prometheus"]["url"])


@pytest.fixture
def poke(conn_id: str) -> Poke:
    """One look of a sensor at all nodes, Kubernetes included."""

    def poke(**options: Any) -> tuple[bool, dict[str, Any]]:
        common = {"slurm_conn_id": conn_id, "kubernetes_conn_id": "kubernetes_default"}
        said = NodeHealthSensor(task_id="healthy", **{**common, **options}).poke({})
        return said.is_done, said.xcom_value

    return poke


def kinds(found: dict[str, Any]) -> dict[str, list[str]]:
    return {name: [finding["kind"] for finding in findings] for name, findings in found.items()}


def test_drains_are_judged_by_their_reasons(cluster: Cluster, poke: Poke) -> None:
    # Three of four workers are off, which is no illness.
    assert poke() == (True, {})
    for reason, kind in (
        ("gpu-health", "node_problem"),
        ("hardware", "hardware_problem"),
        ("boot-disk-full", "user_problem"),
        ("maintenance", "maintenance"),
        ("kill-task-failed", "reboot"),
        ("someone's own", "drained"),
    ):
        cluster.fault("node-drain", node="worker-0", reason=reason)
        is_done, found = poke()
        assert (is_done, kinds(found)) == (False, {"worker-0": [kind]})
    assert poke(target_state="unhealthy")[0]
    assert poke(kinds=["hardware_problem"])[0]
    assert poke(nodes="worker-cpu-[0-1]")[0]
    with pytest.raises(AirflowFailException, match="there is no node worker-9"):
        poke(nodes="worker-9")


def test_the_machine_is_ill(cluster: Cluster, poke: Poke) -> None:
    cluster.fault(
        "node-condition", node="worker-0", type="NebiusMaintenanceScheduled", status="True", reason="", message=""
    )
    _, found = poke()
    assert kinds(found) == {"worker-0": ["maintenance"]}
    assert found["worker-0"][0]["takes_machine"]
    # Slurm has not heard of it.
    assert poke(kubernetes_conn_id=None) == (True, {})
    cluster.fault(
        "node-condition", node="worker-0", type="NebiusMaintenanceScheduled", status="False", reason="", message=""
    )
    assert poke() == (True, {})


def test_the_machine_dies(cluster: Cluster, poke: Poke) -> None:
    cluster.power_up("worker-1")
    cluster.fault("node-dies", node="worker-1")
    # Slurm finds out half a minute later.
    found = cluster.wait("Kubernetes has missed it", lambda: poke()[1].get("worker-1"))
    assert "kubernetes" in {finding["source"] for finding in found}


def test_a_node_does_not_boot(cluster: Cluster, poke: Poke) -> None:
    cluster.fault("node-no-boot", node="worker-1")
    cluster.run("scontrol", "power", "up", "worker-1")
    cluster.give_up_boot("worker-1")
    assert kinds(poke()[1]) == {"worker-1": ["boot_failed"]}


def test_a_gpu_is_ill(cluster: Cluster, poke: Poke, prometheus: str) -> None:
    asked = {"prometheus_conn_id": prometheus}
    assert poke(**asked) == (True, {})
    cluster.fault("gpu-metric", node="worker-0", metric="DCGM_FI_DEV_XID_ERRORS", value=79.0, gpu=3)
    [finding] = cluster.wait("Prometheus has it", lambda: poke(**asked)[1])["worker-0"]
    assert (finding["kind"], finding["source"]) == ("metric", "prometheus")
    assert finding["what"].startswith("GPU 3: a GPU has reported an XID: GPU has fallen off the bus")
    # Of another cluster nothing is known.
    assert poke(**asked, series={"cluster": "other"}) == (True, {})


def test_what_is_wrong_with_a_question_to_prometheus(
    connections: Connections, prometheus: str, cluster: Cluster
) -> None:
    with pytest.raises(ConnectFailed, match="there is no connection nowhere"):
        asyncio.run(PrometheusHook("nowhere").faults())
    with pytest.raises(ConnectFailed, match=r"could not answer up\{ .bad_data"):
        asyncio.run(PrometheusHook(prometheus).query("up{"))
    kubernetes = connections.define(
        "http", host=f"http://127.0.0.1:{cluster.access['nebius']['endpoint'].rpartition(':')[2]}"
    )
    with pytest.raises(ConnectFailed, match=r"Prometheus at .* does not answer|no Prometheus"):
        asyncio.run(PrometheusHook(kubernetes).faults())


async def first(events: AsyncIterator[TriggerEvent]) -> Any:
    async with timeout(PATIENCE):
        return (await anext(events)).payload


def test_a_sensor_that_is_deferred_sees_the_same(cluster: Cluster, conn_id: str) -> None:
    witnesses = HealthSources(kubernetes_conn_id="kubernetes_default")

    def waits(**watched: Any) -> AsyncIterator[TriggerEvent]:
        watch = HealthWatch(
            slurm_conn_id=conn_id, watched=HealthQuery(**watched), witnesses=witnesses, poll_interval=0.2
        )
        return WatchTrigger(watch.write()).run()

    async def main() -> None:
        assert (await first(waits()))["result"] == {}
        told = asyncio.ensure_future(first(waits(target_state="unhealthy")))
        await asyncio.to_thread(cluster.fault, "node-drain", node="worker-0", reason="hardware")
        assert kinds((await told)["result"]) == {"worker-0": ["hardware_problem"]}
        unknown = await first(waits(nodes=("worker-9",)))
        assert (unknown["status"], "there is no node worker-9" in unknown["message"]) == ("refused", True)

    asyncio.run(main())


def test_each_episode_is_an_event(cluster: Cluster, conn_id: str) -> None:
    trigger = NodeUnhealthyTrigger(slurm_conn_id=conn_id, kubernetes_conn_id="kubernetes_default", poll_interval=0.2)

    async def main() -> None:
        events = trigger.run()
        for reason, kind in (("boot-disk-full", "user_problem"), ("hardware", "hardware_problem")):
            await asyncio.to_thread(cluster.fault, "node-drain", node="worker-0", reason=reason)
            event = await first(events)
            assert (event["node"], [finding["kind"] for finding in event["findings"]]) == ("worker-0", [kind])
        # The same is not told again, and what happens to another node is.
        await asyncio.to_thread(cluster.fault, "node-drain", node="worker-cpu-0", reason="boot-disk-full")
        assert (await first(events))["node"] == "worker-cpu-0"
        await events.aclose()

    asyncio.run(main())
