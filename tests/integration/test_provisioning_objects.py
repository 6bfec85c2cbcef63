"""Clusters by the operator's objects, in a namespace in which nobody acts on them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.provisioning.parts import NodeSet
from airflow_provider_soperator.provisioning.spec import KubernetesObjects
from airflow_provider_soperator.soperator.kinds import NODE_SET, SLURM_CLUSTER
from airflow_provider_soperator.soperator.objects import Objects
from tests.integration.connections import Connections
from tests.integration.provisioning import CPU, GPU, TaskInstance, destroy, provision, spec

pytestmark = pytest.mark.usefixtures("connections")

#: Where the sandbox has no controllers.
ELSEWHERE = "inference"
OBJECTS = KubernetesObjects("kubernetes_default", ELSEWHERE)
WORKERS = NodeSet("worker", 8, ephemeral=True, initial=1, **GPU)


def seen(ask: Any) -> Any:
    async def look() -> Any:
        async with SoperatorClusterHook("kubernetes_default", ELSEWHERE).objects() as objects:
            return await ask(objects)

    return asyncio.run(look())


def nodesets() -> dict[str, Any]:
    found = seen(lambda objects: Objects.list_all(objects, NODE_SET))
    return {one["metadata"]["name"]: one for one in found}


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

    fewer = spec(nodesets=(WORKERS, NodeSet("worker-cpu", 1, **CPU)))
    with pytest.raises(AirflowFailException, match=r"NodeSet/worker-cpu would shrink from 2 to 1 nodes.*ScaleNodeSet"):
        provision(OBJECTS, spec=fewer)
    assert nodesets()["worker-cpu"]["spec"]["replicas"] == 2
    provision(OBJECTS, spec=fewer, allow_destroy=["NodeSet/worker-cpu"])
    assert nodesets()["worker-cpu"]["spec"]["replicas"] == 1

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
