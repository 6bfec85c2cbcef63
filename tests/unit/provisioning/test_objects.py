"""A cluster as objects of the operator."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_soperator.provisioning.fields import SpecMistake
from airflow_provider_soperator.provisioning.objects import objects_of
from airflow_provider_soperator.provisioning.parts import PartitionSpec, ServiceNodes
from airflow_provider_soperator.provisioning.spec import ClusterSpec, Installation
from tests.unit.provisioning.clusters import cluster, public_key, workers

CPU = {"platform": "cpu-d3", "preset": "16vcpu-64gb"}


def rendered(spec: ClusterSpec, **installation: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return objects_of(spec, Installation(**installation))


def test_images_are_of_one_release() -> None:
    made, (nodeset,) = rendered(cluster(), slurm_version="25.11.3", registry="example.org/soperator")
    nodes = made["spec"]["slurmNodes"]
    assert nodes["login"]["sshd"]["image"] == "example.org/soperator/login_sshd:4.1.7-slurm25.11.3"
    assert made["spec"]["populateJail"]["image"] == "example.org/soperator/populate_jail:4.1.7-slurm25.11.3-cuda12.9.0"
    assert nodeset["spec"]["slurmd"]["image"] == {
        "repository": "example.org/soperator/worker_slurmd",
        "tag": "4.1.7-slurm25.11.3",
    }


@pytest.mark.parametrize(
    ("version", "slurm"), [("3.0.0", "25.11.2"), ("4.1.7", "25.11.3"), ("5.0.0", "26.05.3-nebius-2")]
)
def test_the_slurm_is_that_of_the_release(version: str, slurm: str) -> None:
    _, (nodeset,) = rendered(cluster(operator_version=version))
    assert nodeset["spec"]["slurmd"]["image"]["tag"] == f"{version}-slurm{slurm}"


def test_the_link_to_the_cluster_is_that_of_the_release() -> None:
    _, (old,) = rendered(cluster())
    assert old["metadata"]["annotations"] == {"slurm.nebius.ai/parental-cluster-ref": "research"}
    assert "clusterName" not in old["spec"]
    _, (new,) = rendered(cluster(operator_version="5.0.0", nodesets=(workers(auto_resume=False),)))
    assert new["spec"]["clusterName"] == "research"
    assert new["spec"]["nodeConfig"]["autoResume"] is False
    assert "annotations" not in new["metadata"]
    with pytest.raises(SpecMistake, match=r"auto_resume needs Soperator 5\.0"):
        rendered(cluster(nodesets=(workers(auto_resume=False),)))


def test_workers_with_and_without_gpus() -> None:
    spec = cluster(nodesets=(workers(ephemeral=True, initial=1, features=("h100",)), workers("cpu", 3, **CPU)))
    _, (gpu, cpu) = rendered(spec)
    assert gpu["spec"]["slurmd"]["resources"] == {
        "cpu": "126",
        "memory": "1200Gi",
        "ephemeral-storage": "50Gi",
        "nvidia.com/gpu": "8",
    }
    assert gpu["spec"]["nodeConfig"] == {"features": ["h100"], "gresConfig": ["AutoDetect=nvidia"]}
    assert (gpu["spec"]["ephemeralNodes"], gpu["spec"]["initialNumberEphemeralNodes"]) == (True, 1)
    assert cpu["spec"]["gpu"]["enabled"] is False
    assert "nvidia.com/gpu" not in cpu["spec"]["slurmd"]["resources"]
    assert "initialNumberEphemeralNodes" not in cpu["spec"]


def test_the_cluster_itself() -> None:
    spec = cluster(
        login=ServiceNodes(size=2),
        public_login=False,
        accounting=True,
        rest=True,
        maintenance="downscale",
        partitions=(PartitionSpec("main", config="Default=YES"), PartitionSpec("gpu", ("worker",))),
    )
    made, _ = rendered(spec)
    nodes = made["spec"]["slurmNodes"]
    assert (nodes["login"]["size"], nodes["login"]["sshdServiceType"]) == (2, "NodePort")
    assert nodes["login"]["sshRootPublicKeys"] == [public_key()]
    assert nodes["accounting"]["enabled"]
    assert nodes["rest"]["enabled"]
    assert made["spec"]["maintenance"] == "downscale"
    assert made["spec"]["partitionConfiguration"] == {
        "configType": "structured",
        "partitions": [
            {"name": "main", "config": "Default=YES", "isAll": True},
            {"name": "gpu", "config": "State=UP", "nodeSetRefs": ["worker"]},
        ],
    }
    assert rendered(cluster())[0]["spec"]["partitionConfiguration"] == {"configType": "default"}


def test_overrides_win_and_their_names_are_checked() -> None:
    more = {
        "SlurmCluster": {"spec": {"slurmNodes": {"exporter": {"enabled": True}}}},
        "NodeSet": {"spec": {"maxUnavailable": "10%"}},
        "NodeSet/worker": {"spec": {"slurmd": {"resources": {"cpu": "100"}}}},
    }
    made, (nodeset,) = rendered(cluster(), overrides=more)
    assert made["spec"]["slurmNodes"]["exporter"] == {"enabled": True, "k8sNodeFilterName": "service"}
    assert nodeset["spec"]["maxUnavailable"] == "10%"
    assert nodeset["spec"]["slurmd"]["resources"]["cpu"] == "100"
    assert nodeset["spec"]["slurmd"]["resources"]["nvidia.com/gpu"] == "8"
    with pytest.raises(
        SpecMistake, match="unknown object 'NodeSet/wroker' in overrides: did you mean 'NodeSet/worker'"
    ):
        rendered(cluster(), overrides={"NodeSet/wroker": {}})
