"""Which objects belong to a cluster, where the sandbox has one cluster only."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from airflow_provider_soperator.soperator.cluster_objects import ClusterObjects
from airflow_provider_soperator.soperator.clusters import ClusterSnapshot
from airflow_provider_soperator.soperator.kinds import NODE_SET, POWER_STATE, SLURM_CLUSTER, Resource
from airflow_provider_soperator.soperator.objects import KindMissing, ObjectMissing, Objects


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **fields.pop("metadata", {})}, **fields}


def pod(name: str, nodeset: str) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"slurm.nebius.ai/nodeset": nodeset}
    return named(name, metadata={"labels": labels}, spec={"nodeName": f"machine-of-{name}"}, status=status)


class Stored:
    """The objects of a namespace, of the kinds that are installed."""

    namespace = "soperator"

    def __init__(self, kinds: dict[Resource, list[dict[str, Any]]], pods: list[dict[str, Any]]) -> None:
        self._kinds, self._pods = kinds, pods

    async def list_all(self, resource: Resource, selector: str = "") -> list[dict[str, Any]]:
        if resource.kind == "Pod":
            return self._pods
        if resource not in self._kinds:
            raise KindMissing(resource.kind)
        return self._kinds[resource]


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("cr.example.org:5000/slurm-operator:4.1.7", "4.1.7"),
        ("cr.example.org:5000/slurm-operator:4.1.7@sha256:9f86d081", "4.1.7"),
        ("cr.example.org:5000/slurm-operator@sha256:9f86d081", None),
    ],
)
def test_the_release_of_the_operator_is_the_tag_of_its_image(image: str, release: str | None) -> None:
    async def answer(*args: Any, **how: Any) -> Any:
        containers = [{"image": "cr.example.org/kube-rbac-proxy:v0.15.0@sha256:d8cc6ffb"}, {"image": image}]
        items = [{"spec": {"template": {"spec": {"containers": containers}}}}]
        return SimpleNamespace(status=200, read=AsyncMock(return_value=json.dumps({"items": items})))

    objects = Objects(SimpleNamespace(call_api=answer), "soperator", "")
    assert asyncio.run(objects.operator_version()) == release


def look(kinds: dict[Resource, list[dict[str, Any]]], name: str | None, *pods: dict[str, Any]) -> ClusterSnapshot:
    return asyncio.run(ClusterObjects(cast(Objects, Stored(kinds, list(pods))), name).look())


def test_nodesets_say_their_cluster_in_the_way_of_their_version() -> None:
    annotation = {"annotations": {"slurm.nebius.ai/parental-cluster-ref": "one"}}
    sets = [
        named("by-annotation", metadata=annotation, spec={"replicas": 1}),
        named("by-spec", metadata=annotation, spec={"clusterName": "two"}),
        named("of-nobody", spec={"replicas": 0}),
    ]
    kinds = {SLURM_CLUSTER: [named("one"), named("two")], NODE_SET: sets, POWER_STATE: []}
    one = look(kinds, "one", pod("by-annotation-0", "by-annotation"), pod("by-spec-0", "by-spec"))
    assert [nodeset.name for nodeset in one.nodesets] == ["by-annotation", "of-nobody"]
    assert {name: found.is_ready for name, found in one.nodesets[0].pods.items()} == {"by-annotation-0": True}
    assert [nodeset.name for nodeset in look(kinds, "two").nodesets] == ["by-spec", "of-nobody"]


def test_of_several_clusters_one_has_to_be_named() -> None:
    kinds = {SLURM_CLUSTER: [named("one"), named("two")], NODE_SET: [], POWER_STATE: []}
    with pytest.raises(ObjectMissing, match="several SlurmClusters in namespace soperator: name one of one, two"):
        look(kinds, None)


def test_where_soperator_is_not_installed() -> None:
    with pytest.raises(KindMissing, match="Soperator is not installed in this Kubernetes cluster"):
        look({}, None)


def test_before_3_0_there_were_no_power_states() -> None:
    seen = look({SLURM_CLUSTER: [named("old")], NODE_SET: [named("worker", spec={"replicas": 2})]}, None)
    assert (seen.cluster.name, seen.nodesets[0].nodes) == ("old", ("worker-0", "worker-1"))
