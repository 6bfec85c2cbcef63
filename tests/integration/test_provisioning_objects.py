"""Clusters by the operator's objects, in a namespace in which nobody acts on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from kubernetes_asyncio.client import AppsV1Api, CoreV1Api

from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.provisioning.parts import NodeSet
from airflow_provider_soperator.provisioning.spec import ClusterSpec, Installation, KubernetesObjects
from airflow_provider_soperator.provisioning.spec import Connections as ConnectionIds
from airflow_provider_soperator.soperator.kinds import NODE_SET, SLURM_CLUSTER
from airflow_provider_soperator.soperator.objects import Objects
from tests.integration import provisioning
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.integration.provisioning import CPU, GPU, TaskInstance
from tests.patience import PATIENCE
from tests.unit.provisioning import clusters

pytestmark = pytest.mark.usefixtures("connections")

#: Where the sandbox has no controllers.
ELSEWHERE = "inference"
OBJECTS = KubernetesObjects("kubernetes_default", ELSEWHERE, Installation(scripts=None))
WORKERS = NodeSet("worker", 8, ephemeral=True, initial=1, **GPU)


def spec(cpus: int = 2, **changed: Any) -> ClusterSpec:
    return clusters.cluster(**{"nodesets": (WORKERS, NodeSet("worker-cpu", cpus, **CPU)), **changed})


def provision(source: Any, *args: Any, **options: Any) -> Any:
    return provisioning.provision(source, *args, **{"spec": spec(), **options})


def destroy(source: Any, **options: Any) -> Any:
    return provisioning.destroy(source, **{"spec": spec(), **options})


def seen(ask: Any) -> Any:
    async def look() -> Any:
        async with SoperatorClusterHook("kubernetes_default", ELSEWHERE).objects() as objects:
            return await ask(objects)

    return asyncio.run(look())


def nodesets() -> dict[str, Any]:
    found = seen(lambda objects: Objects.list_all(objects, NODE_SET))
    return {one["metadata"]["name"]: one for one in found}


async def run_node(objects: Objects, nodeset: str, ordinal: int) -> None:
    """Nobody makes Pods in this namespace."""
    labels = {"slurm.nebius.ai/nodeset": nodeset}
    pod: Any = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{nodeset}-{ordinal}", "labels": labels},
        "spec": {"containers": [{"name": "slurmd", "image": "slurmd"}]},
    }
    await CoreV1Api(objects.client).create_namespaced_pod(ELSEWHERE, pod)


def test_objects_are_applied_once_changed_and_deleted(connections: Connections) -> None:
    planned = provision(OBJECTS, plan_only=True)
    assert planned["changes"] == dict.fromkeys(
        ("SlurmCluster/research", "NodeSet/worker", "NodeSet/worker-cpu"), "create"
    )
    assert nodesets() == {}
    provision(OBJECTS, approved_plan=planned, if_exists="fail")
    made = nodesets()
    assert made["worker"]["metadata"]["annotations"] == {"slurm.nebius.ai/parental-cluster-ref": "research"}
    assert made["worker"]["spec"]["initialNumberEphemeralNodes"] == 1
    # The next try finds that it has done it; another task finds a cluster.
    assert provision(OBJECTS, TaskInstance(try_number=2), if_exists="fail")["plan"]["summary"] == "nothing to do"
    with pytest.raises(AirflowFailException, match="there is a cluster research already"):
        provision(OBJECTS, TaskInstance("another run"), if_exists="fail")

    # Where nothing runs nothing is lost.
    fewer = spec(cpus=1)
    assert provision(OBJECTS, spec=fewer, plan_only=True)["changes"] == {"NodeSet/worker-cpu": "update"}
    seen(lambda objects: run_node(objects, "worker-cpu", 1))
    with pytest.raises(AirflowFailException, match=r"worker-cpu would shrink and lose worker-cpu-1.*ScaleN"):
        provision(OBJECTS, spec=fewer)
    assert nodesets()["worker-cpu"]["spec"]["replicas"] == 2
    provision(OBJECTS, spec=fewer, allow_destroy=["NodeSet/worker-cpu"])
    assert nodesets()["worker-cpu"]["spec"]["replicas"] == 1

    seen(lambda objects: CoreV1Api(objects.client).delete_namespaced_pod("worker-cpu-1", ELSEWHERE))
    destroy(OBJECTS, end_jobs=True)
    assert nodesets() == {}
    assert seen(lambda objects: Objects.list_all(objects, SLURM_CLUSTER)) == []
    assert destroy(OBJECTS, end_jobs=True)["plan"]["summary"] == "nothing to do"


def test_what_others_rule_over_is_not_taken_from_them(connections: Connections) -> None:
    own = spec(name="soperator", nodesets=(NodeSet("worker", 4, ephemeral=True, **GPU),))
    with pytest.raises(
        AirflowFailException, match=r"(?s)SlurmCluster/soperator is managed by others.*helm.*set force=True"
    ):
        provision(KubernetesObjects("kubernetes_default"), spec=own)
    with pytest.raises(AirflowFailException, match="there is no namespace nowhere"):
        provision(KubernetesObjects("kubernetes_default", "nowhere"))


@contextmanager
def blind_driver(cluster: Cluster) -> Iterator[None]:
    """A driver that finds no GPU, as nvidia-smi words it."""
    path = "/usr/local/bin/nvidia-smi"
    script = "#!/bin/sh\necho No devices were found\nexit 6\n"
    cluster.run("bash", "-c", f"printf '{script}' > {path} && chmod +x {path}")
    try:
        yield
    finally:
        cluster.run("rm", path)


def test_a_job_on_each_node_set_sees_its_gpus(
    cluster: Cluster, connections: Connections, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = ConnectionIds(slurm=connections.login_node().slurm_conn_id)
    slow = {"connections": ids, "ready_timeout": timedelta(seconds=PATIENCE), "plan_only": False}
    try:
        made = provision(OBJECTS, **slow)
        assert made["tried"] == {"worker": "worker-0", "worker-cpu": "worker-cpu-0"}
        said = capsys.readouterr().out
        assert "worker: 8 of 8 GPUs" in said
        assert "worker-cpu: worker-cpu-0" in said
        # A node whose driver shows fewer than Slurm has allocated is not ready for anybody.
        with (
            blind_driver(cluster),
            pytest.raises(AirflowException, match="the job that tried node set worker has ended FAILED"),
        ):
            provision(OBJECTS, TaskInstance("on blind nodes"), **slow)
        assert "worker: 0 of 8 GPUs" in capsys.readouterr().out
    finally:
        destroy(OBJECTS, end_jobs=True)


def test_the_operator_and_the_scripts_are_looked_for_first(connections: Connections) -> None:
    labels = {"app.kubernetes.io/part-of": "slurm-operator"}
    images = ["registry.example.org/node-exporter:v1", "registry.example.org/slurm-operator:4.0.5"]
    containers = [{"name": f"c{number}", "image": image} for number, image in enumerate(images)]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
    operator: Any = {
        "metadata": {"name": "slurm-operator-manager", "labels": labels},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    with pytest.raises(AirflowFailException, match="there is no ConfigMap slurm-scripts in namespace inference"):
        provision(KubernetesObjects("kubernetes_default", ELSEWHERE))
    scripts: Any = {"metadata": {"name": "slurm-scripts"}, "data": {"prolog.sh": ""}}
    seen(lambda objects: CoreV1Api(objects.client).create_namespaced_config_map(ELSEWHERE, scripts))
    seen(lambda objects: AppsV1Api(objects.client).create_namespaced_deployment(ELSEWHERE, operator))
    try:
        with pytest.raises(AirflowFailException, match=r"installed is Soperator 4\.0\.5, and operator_version is 4\.1"):
            provision(OBJECTS)
        of_its_release = spec(operator_version="4.0.5")
        planned = provision(KubernetesObjects("kubernetes_default", ELSEWHERE), spec=of_its_release, plan_only=True)
        assert planned["summary"] == "3 to create"
    finally:
        seen(lambda objects: CoreV1Api(objects.client).delete_namespaced_config_map("slurm-scripts", ELSEWHERE))
        name = operator["metadata"]["name"]
        seen(lambda objects: AppsV1Api(objects.client).delete_namespaced_deployment(name, ELSEWHERE))
