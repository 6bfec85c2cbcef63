"""A cluster as objects of the operator."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiException

from airflow_provider_soperator.operators.cluster import ProvisionClusterOperator
from airflow_provider_soperator.provisioning.fields import SpecMistake
from airflow_provider_soperator.provisioning.manifests import manifests_of
from airflow_provider_soperator.provisioning.objects import ObjectsProvisioner, changed_of_pods
from airflow_provider_soperator.provisioning.parts import (
    Disk,
    Filesystem,
    LocalNvme,
    PartitionSpec,
    ServiceNodes,
    Submount,
)
from airflow_provider_soperator.provisioning.spec import ClusterSpec, Installation, KubernetesObjects
from airflow_provider_soperator.transports.transport_errors import ConnectRefused, kubernetes_error
from sandbox.kube.catalogue import NODE_SET, SLURM_CLUSTER
from sandbox.kube.errors import ApiError, apply_conflict, conflict
from sandbox.kube.schemas import shape_of
from sandbox.kube.structure import check, unknown
from tests.unit.provisioning.clusters import cluster, public_key, workers
from tests.unit.provisioning.kubernetes import Namespace

CPU = {"platform": "cpu-d3", "preset": "16vcpu-64gb"}


def rendered(spec: ClusterSpec, **installation: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    made, *nodesets = (one.body for one in manifests_of(spec, Installation(**installation), {}))
    return made, nodesets


def provisioner(spec: ClusterSpec, there: Namespace, **source: Any) -> ObjectsProvisioner:
    return ObjectsProvisioner(KubernetesObjects(**source), spec, there.open, logging.getLogger())  # type: ignore[arg-type]


def provision(spec: ClusterSpec, there: Namespace, *allowed: str, **source: Any) -> dict[str, str]:
    made = provisioner(spec, there, **source)
    planned = made.plan()
    made.guard(allowed)
    made.apply("dag/run/task")
    return dict(planned.changes)


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


def test_workers_with_and_without_gpus() -> None:
    spec = cluster(nodesets=(workers(ephemeral=True, initial=1, features=("fast",)), workers("cpu", 3, **CPU)))
    _, (gpu, cpu) = rendered(spec, priority_class="high")
    assert gpu["spec"]["slurmd"]["resources"] == {
        "cpu": "126",
        "memory": "1200Gi",
        "ephemeral-storage": "50Gi",
        "nvidia.com/gpu": "8",
    }
    # Of CPUs and GPUs slurm.conf has what is said here and nothing else; gres.conf finds the devices by itself.
    assert gpu["spec"]["nodeConfig"] == {
        "features": ["gpu_h100_sxm", "fast"],
        "static": "CPUs=128 Boards=1 SocketsPerBoard=2 CoresPerSocket=32 ThreadsPerCore=2 "
        "Gres=gpu:nvidia_h100_80gb_hbm3:8",
    }
    assert (gpu["spec"]["ephemeralNodes"], gpu["spec"]["initialNumberEphemeralNodes"]) == (True, 1)
    assert (gpu["spec"]["priorityClass"], gpu["spec"]["slurmd"]["volumes"]["sharedMemorySize"]) == ("high", "800Gi")
    assert cpu["spec"]["gpu"]["enabled"] is False
    assert cpu["spec"]["nodeConfig"] == {
        "features": ["cpu_d3"],
        "static": "CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=2",
    }
    assert "nvidia.com/gpu" not in cpu["spec"]["slurmd"]["resources"]
    assert "initialNumberEphemeralNodes" not in cpu["spec"]


@pytest.mark.parametrize(
    ("platform", "preset", "static"),
    [
        (
            "gpu-h200-sxm",
            "8gpu-128vcpu-1600gb",
            "SocketsPerBoard=2 CoresPerSocket=32 ThreadsPerCore=2 Gres=gpu:nvidia_h200:8",
        ),
        (
            "gpu-b200-sxm-a",
            "1gpu-20vcpu-224gb",
            "SocketsPerBoard=1 CoresPerSocket=10 ThreadsPerCore=2 Gres=gpu:nvidia_b200:1",
        ),
        (
            "gpu-b300-sxm",
            "8gpu-192vcpu-2768gb",
            "SocketsPerBoard=2 CoresPerSocket=48 ThreadsPerCore=2 Gres=gpu:nvidia_b300:8",
        ),
        (
            "gpu-gb300",
            "4gpu-112vcpu-800gb",
            "SocketsPerBoard=2 CoresPerSocket=56 ThreadsPerCore=1 Gres=gpu:nvidia_gb300:4",
        ),
        ("cpu-e2", "64vcpu-256gb", "SocketsPerBoard=2 CoresPerSocket=16 ThreadsPerCore=2"),
        ("cpu-d3", "128vcpu-512gb", "SocketsPerBoard=1 CoresPerSocket=64 ThreadsPerCore=2"),
        ("cpu-g1", "56vcpu-224gb", "SocketsPerBoard=1 CoresPerSocket=56 ThreadsPerCore=1"),
    ],
)
def test_the_hardware_of_known_presets(platform: str, preset: str, static: str) -> None:
    _, (made,) = rendered(cluster(nodesets=(workers(platform=platform, preset=preset),)))
    assert made["spec"]["nodeConfig"]["static"].partition(" Boards=1 ")[2] == static


def test_hardware_that_is_not_known_has_to_be_given() -> None:
    other = cluster(nodesets=(workers(platform="gpu-l40s-a", preset="1gpu-8vcpu-32gb"),))
    with pytest.raises(SpecMistake, match=r'gpu-l40s-a with 1gpu-8vcpu-32gb are not known.*"NodeSet/worker".*"static"'):
        rendered(other)
    given = {"NodeSet/worker": {"spec": {"nodeConfig": {"static": "CPUs=8 Gres=gpu:1"}}}}
    _, (made,) = rendered(other, overrides=given)
    assert made["spec"]["nodeConfig"]["static"] == "CPUs=8 Gres=gpu:1"


def test_racks_are_node_sets_of_their_own() -> None:
    racked = workers(size=30, platform="gpu-gb300", preset="4gpu-112vcpu-800gb", ephemeral=True, initial=20)
    _, racks = rendered(cluster(nodesets=(racked,)))
    assert [
        (one["metadata"]["name"], one["spec"]["replicas"], one["spec"]["initialNumberEphemeralNodes"]) for one in racks
    ] == [
        ("worker-rack0", 18, 18),
        ("worker-rack1", 12, 2),
    ]


def test_the_cluster_itself() -> None:
    spec = cluster(
        login=ServiceNodes(size=2),
        public_login=False,
        maintenance="downscale",
        partitions=(PartitionSpec("main", config="Default=YES"), PartitionSpec("gpu", ("worker",))),
    )
    made, _ = rendered(spec)
    nodes = made["spec"]["slurmNodes"]
    assert (nodes["login"]["size"], nodes["login"]["sshdServiceType"]) == (2, "NodePort")
    assert nodes["login"]["sshRootPublicKeys"] == [public_key()]
    assert made["spec"]["maintenance"] == "downscale"
    assert made["spec"]["partitionConfiguration"] == {
        "configType": "structured",
        "partitions": [
            {"name": "main", "config": "Default=YES", "isAll": True},
            {"name": "gpu", "config": "State=UP", "nodeSetRefs": ["worker"]},
        ],
    }


def test_what_a_new_cluster_has_by_default() -> None:
    """All without which no job would run on it, or no check."""
    made, (nodeset,) = rendered(cluster())
    spec, nodes = made["spec"], made["spec"]["slurmNodes"]
    # Without slurmrestd, which needs accounting, Slurm never reads what Soperator has changed.
    assert [nodes[part]["enabled"] for part in ("accounting", "rest", "exporter")] == [True] * 3
    assert nodes["accounting"]["mariadbOperator"]["storage"] == {"ephemeral": False, "size": "64Gi"}
    # No other type of partitions writes NodeName lines.
    assert spec["partitionConfiguration"]["configType"] == "structured"
    assert [(one["name"], one["isAll"]) for one in spec["partitionConfiguration"]["partitions"]] == [
        ("main", True),
        ("hidden", True),
    ]
    assert spec["slurmConfig"] == {
        "prolog": "/opt/slurm_scripts/prolog.sh",
        "epilog": "/opt/slurm_scripts/epilog.sh",
    }
    assert spec["healthCheckConfig"]["healthCheckProgram"] == "/opt/slurm_scripts/hc_program.sh"
    mounts = nodeset["spec"]["slurmd"]["volumes"]["customVolumeMounts"]
    assert [(one["mountPath"], one["volumeSource"]["configMap"]["name"]) for one in mounts] == [
        ("/opt/slurm_scripts/", "slurm-scripts"),
        ("/mnt/jail.upper/opt/slurm_scripts/", "slurm-scripts"),
    ]
    newer, (nodeset,) = rendered(cluster(operator_version="5.0.0", nodesets=(workers(fabric="fabric-3"),)))
    assert newer["spec"]["slurmConfig"]["taskProlog"] == "/opt/slurm_scripts/task_prolog.sh"
    (mount, _) = nodeset["spec"]["slurmd"]["volumes"]["customVolumeMounts"]
    assert mount["volumeSource"]["configMap"]["name"] == "research-slurm-scripts"
    assert nodeset["spec"]["topology"] == {"fabric": "fabric-3"}
    without, (nodeset,) = rendered(cluster(accounting=False), scripts=None)
    assert [without["spec"]["slurmNodes"][part]["enabled"] for part in ("accounting", "rest", "exporter")] == [
        False
    ] * 3
    assert "mariadbOperator" not in without["spec"]["slurmNodes"]["accounting"]
    assert "slurmConfig" not in without["spec"]
    assert "customVolumeMounts" not in nodeset["spec"]["slurmd"]["volumes"]


def test_claims_and_disks_are_mounted_in_the_jail() -> None:
    spec = cluster(
        jail=Filesystem(id="my-jail"),
        submounts=(Submount("data", "/data", Filesystem(id="data-pvc")),),
        accounting_filesystem=Filesystem(size_gib=200),
        nodesets=(workers(local_nvme=LocalNvme(devices=8, device_gb=3840)),),
    )
    made, (nodeset,) = rendered(spec)
    claims = {one["name"]: one["persistentVolumeClaim"]["claimName"] for one in made["spec"]["volumeSources"]}
    assert claims == {"jail": "my-jail", "controller-spool": "controller-spool-pvc", "data": "data-pvc"}
    login = made["spec"]["slurmNodes"]["login"]["volumes"]
    assert login["jailSubMounts"] == [{"name": "data", "mountPath": "/data", "volumeSourceName": "data"}]
    assert made["spec"]["slurmNodes"]["accounting"]["mariadbOperator"]["storage"]["size"] == "200Gi"
    volumes = nodeset["spec"]["slurmd"]["volumes"]
    assert volumes["jail"]["persistentVolumeClaim"]["claimName"] == "my-jail"
    assert [(one["mountPath"], *one["volumeSource"]) for one in volumes["jailSubMounts"]] == [
        ("/data", "persistentVolumeClaim"),
        ("/mnt/local-nvme", "hostPath"),
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"region": "eu-north1"}, "the spec: region cannot be had by KubernetesObjects"),
        ({"controller": ServiceNodes()}, "the spec: controller cannot"),
        ({"extra": {"o11y_enabled": False}}, "the spec: extra cannot"),
        ({"login": ServiceNodes(size=2, preset="16vcpu-64gb")}, "login, but for its size, cannot"),
        ({"jail": Filesystem(size_gib=2048)}, "jail: objects cannot make a file system: create its PersistentVolumeCl"),
        ({"submounts": (Submount("data", "/data", Filesystem(size_gib=1)),)}, "submount data: objects cannot make"),
        ({"accounting_filesystem": Filesystem(id="claim")}, "accounting_filesystem, but for size_gib"),
        ({"partitions": (PartitionSpec("a", topology="tree"),)}, "the topology of partition a cannot"),
        ({"nodesets": (workers(blocks=("capacityblockgroup-a",)),)}, "node set worker: blocks cannot be had"),
        ({"nodesets": (workers(min_size=0),)}, "node set worker: min_size cannot"),
        ({"nodesets": (workers(boot_disk=Disk(size_gib=1024)),)}, "node set worker: boot_disk cannot"),
        ({"nodesets": (workers(fabric="fabric-3"),)}, r"fabric is the machines' own before Soperator 5\.0"),
    ],
)
def test_what_objects_cannot_have_is_refused_when_the_dag_is_parsed(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecMistake, match=said):
        ProvisionClusterOperator(task_id="task", spec=cluster(**changed), source=KubernetesObjects())


def test_templates_are_left_until_they_are_rendered() -> None:
    spec = cluster(
        operator_version="{{ version }}",
        nodesets=(
            workers(
                platform="{{ platform }}",
                preset="{{ preset }}",
                fabric="{{ fabric }}",
                ephemeral=True,
                initial="{{ n }}",
            ),
        ),
    )
    ProvisionClusterOperator(task_id="task", spec=spec, source=KubernetesObjects())


@pytest.mark.parametrize("version", ["3.0.8", "4.0.5", "4.1.7", "5.0.0"])
def test_each_release_accepts_its_objects(version: str) -> None:
    spec = cluster(operator_version=version, nodesets=(workers(), workers("cpu", **CPU)))
    made, nodesets = rendered(spec)
    for kind, things in ((SLURM_CLUSTER, [made]), (NODE_SET, nodesets)):
        wanted = shape_of(kind)
        assert wanted is not None
        for thing in things:
            check(kind, thing, wanted)
            assert unknown(thing, wanted) == []


# What is there


def test_of_a_cluster_that_exists_what_is_not_said_stays() -> None:
    there = Namespace()
    said = {"accounting": True, "rest": True, "login": ServiceNodes(size=3), "maintenance": "none"}
    provision(cluster(**said, partitions=(PartitionSpec("one", config="Hidden=YES"),)), there)
    before = there.spec("SlurmCluster", "research")
    assert provision(cluster(), there) == {}
    assert there.spec("SlurmCluster", "research") == before
    # What others have set is theirs: it is neither changed nor applied again.
    there.put("NodeSet", "worker", {"nodeConfig": {"dynamic": "--extra"}, "replicas": 2}, "kubectl")
    assert provision(cluster(operator_version="4.1.8"), there) == {
        "SlurmCluster/research": "update",
        "NodeSet/worker": "update",
    }
    nodeset = there.spec("NodeSet", "worker")
    assert (nodeset["nodeConfig"]["dynamic"], nodeset["slurmd"]["image"]["tag"]) == ("--extra", "4.1.8-slurm25.11.3")
    assert there.spec("SlurmCluster", "research")["slurmNodes"]["login"]["size"] == 3


def test_of_a_helm_chart_only_what_is_said_is_taken_over() -> None:
    there = Namespace()
    tag = "4.1.7-slurm25.11.3"
    theirs = {
        "replicas": 2,
        "nodeConfig": {"static": "CPUs=128 Boards=1 Gres=gpu:other:8 Weight=3", "gresConfig": ["AutoDetect=off"]},
        "slurmd": {
            "image": {"repository": "cr.eu-north1.nebius.cloud/soperator/worker_slurmd", "tag": tag},
            "resources": {"memory": "1550Gi"},
            "volumes": {"jailSubMounts": [{"name": "home"}], "sharedMemorySize": "1024Gi"},
        },
    }
    there.put("SlurmCluster", "research", {"slurmNodes": {"accounting": {"enabled": True}}})
    there.put("NodeSet", "worker", theirs)
    provision(cluster(nodesets=(workers(size=4),)), there, force=True)
    now = there.spec("NodeSet", "worker")
    assert now["replicas"] == 4
    assert now["nodeConfig"] == theirs["nodeConfig"]
    assert now["slurmd"] == theirs["slurmd"]
    # Machines of another kind have other CPUs and GPUs.
    provision(cluster(nodesets=(workers(size=4, preset="1gpu-16vcpu-200gb"),)), there, force=True)
    now = there.spec("NodeSet", "worker")
    assert now["nodeConfig"]["static"].startswith("CPUs=16 ")
    assert now["slurmd"]["resources"]["nvidia.com/gpu"] == "1"


def test_the_scripts_are_mounted_under_the_name_of_the_release() -> None:
    there = Namespace(config_maps=())
    with pytest.raises(SpecMistake, match=r"there is no ConfigMap slurm-scripts.*Installation\(scripts=None\)"):
        provision(cluster(), there)
    there.config_maps = ("slurm-scripts", "research-slurm-scripts")
    provision(cluster(), there)
    provision(cluster(operator_version="5.0.0"), there)
    mounts = there.spec("NodeSet", "worker")["slurmd"]["volumes"]["customVolumeMounts"]
    assert [one["volumeSource"]["configMap"]["name"] for one in mounts] == ["research-slurm-scripts"] * 2


def test_the_release_is_that_of_the_operator() -> None:
    provision(cluster(), Namespace("4.1.7-5f1f0ab"))
    with pytest.raises(SpecMistake, match=r"installed is Soperator 4\.0\.5, and operator_version is 4\.1\.7: install"):
        provision(cluster(), Namespace("4.0.5"))


@pytest.mark.parametrize(
    ("before", "on", "after", "said"),
    [
        ({"size": 8}, range(8), {"size": 6}, r"shrink and lose worker-\[6-7\]"),
        ({"size": 8}, range(6), {"size": 6}, ""),
        ({"size": 8}, range(8), {"size": 9}, ""),
        ({"size": 8, "ephemeral": True}, [0, 7], {"size": 4, "ephemeral": True}, "shrink and lose worker-7"),
        ({"size": 8, "ephemeral": True}, [0, 3], {"size": 4, "ephemeral": True}, ""),
        (
            {"size": 8},
            range(8),
            {"size": 8, "ephemeral": True},
            r"become ephemeral and lose worker-\[1-7\]",
        ),
        ({"size": 8}, range(8), {"size": 8, "ephemeral": True, "initial": 8}, ""),
        ({"size": 8, "ephemeral": True}, range(8), {"size": 8}, ""),
    ],
)
def test_nodes_that_are_on_are_not_taken_away(before: Any, on: Any, after: Any, said: str) -> None:
    there = Namespace()
    provision(cluster(nodesets=(workers(**before),)), there)
    there.run("worker", *on)
    changed = cluster(nodesets=(workers(**after),))
    if said:
        with pytest.raises(SpecMistake, match=f"NodeSet/worker would {said}.*ScaleNodeSetOperator"):
            provision(changed, there)
        assert there.spec("NodeSet", "worker")["replicas"] == 8
    assert provision(changed, there, "NodeSet/worker")["NodeSet/worker"] == "update" or not said


@pytest.mark.parametrize(
    ("on", "after", "said", "is_refused"),
    [
        ([0, 1], {"nodesets": (workers(preset="1gpu-16vcpu-200gb"),)}, r"slurmd\.resources, worker-\[0-1\]", True),
        (
            [0, 1],
            {"nodesets": (workers(preset="1gpu-16vcpu-200gb"),), "operator_version": "4.1.8"},
            r"munge\.image, slurmd\.image, slurmd\.resources, worker-\[0-1\]",
            True,
        ),
        ([], {"nodesets": (workers(preset="1gpu-16vcpu-200gb"),)}, "", False),
        ([0, 1], {"nodesets": (workers(features=("fast",)),)}, "", False),
        ([0, 1], {"operator_version": "4.1.8"}, r"munge\.image, slurmd\.image, worker-\[0-1\]", False),
        # Its scripts have another name, by which they are mounted.
        (
            [0, 1],
            {"operator_version": "5.0.0"},
            r"munge\.image, slurmd\.image, slurmd\.volumes, worker-\[0-1\]",
            False,
        ),
        (
            [0, 1],
            {"operator_version": "5.0.0", "nodesets": (workers(local_nvme=LocalNvme(devices=8, device_gb=3840)),)},
            r"munge\.image, slurmd\.image, slurmd\.volumes, worker-\[0-1\]",
            True,
        ),
    ],
)
def test_nodes_that_are_on_are_restarted_only_if_that_is_asked_for(
    on: list[int], after: dict[str, Any], said: str, is_refused: bool
) -> None:
    there = Namespace("4.1.7", config_maps=("slurm-scripts", "research-slurm-scripts"))
    provision(cluster(), there)
    there.run("worker", *on)
    there.operator = after.get("operator_version", "4.1.7")
    made = provisioner(cluster(**after), there)
    named = rf"; NodeSet/worker would restart, for another {said}" if said else ""
    assert re.fullmatch(rf"\d to update{named}", made.plan().summary)
    if is_refused:
        with pytest.raises(SpecMistake, match=rf"would restart, for another {said}, which are on.*NodeSet/worker"):
            made.guard(())
    made.guard(["NodeSet/worker"] if is_refused else ())


@pytest.mark.parametrize(
    ("before", "lost"),
    [
        ({"configType": "structured", "partitions": [{"name": "main"}, {"name": "gpu"}]}, "main"),
        ({"configType": "custom", "rawConfig": ["PartitionName=old Nodes=ALL", "PartitionName=gpu Nodes=ALL"]}, "old"),
        # As Soperator has it by default.
        ({}, "hidden, main"),
        ({"configType": "structured", "partitions": [{"name": "gpu"}]}, ""),
    ],
)
def test_partitions_that_the_spec_leaves_out_go_and_are_named(before: dict[str, Any], lost: str) -> None:
    there = Namespace()
    there.put("SlurmCluster", "research", {"partitionConfiguration": before})
    made = provisioner(cluster(partitions=(PartitionSpec("gpu"), PartitionSpec("new"))), there, force=True)
    told = f"; SlurmCluster/research would lose the partitions {lost}" if lost else ""
    assert made.plan().summary == f"1 to create, 1 to update{told}"
    assert made.kept_partitions == ({"gpu", "new"} if lost else None)
    # What the spec does not say stays.
    assert provisioner(cluster(), there, force=True).plan().summary == "1 to create, 1 to update"


def test_what_we_have_scaled_ourselves_is_no_other_owner() -> None:
    there = Namespace()
    provision(cluster(nodesets=(workers(size=4),)), there)
    there.scale("worker", 6)
    there.run("worker", *range(6))
    with pytest.raises(SpecMistake, match=r"NodeSet/worker would shrink and lose worker-\[4-5\]"):
        provision(cluster(nodesets=(workers(size=4),)), there)
    larger = cluster(nodesets=(workers(size=8, features=("fast",)),))
    there.put("NodeSet", "worker", {"nodeConfig": {"features": ["slow"]}})
    with pytest.raises(SpecMistake, match=r'(?s)is managed by others.*with "airflow-provider-soperator".*with "helm"'):
        provision(larger, there)
    assert provision(cluster(nodesets=(workers(size=8),)), there) == {"NodeSet/worker": "update"}
    assert there.spec("NodeSet", "worker")["replicas"] == 8


def test_other_scripts_of_the_same_release_restart_nodes_that_are_on() -> None:
    there = Namespace("4.1.7", config_maps=("slurm-scripts", "my-slurm-scripts"))
    provision(cluster(), there)
    there.run("worker", 0, 1)
    made = provisioner(cluster(), there, installation=Installation(scripts="my-slurm-scripts"))
    made.plan()
    with pytest.raises(SpecMistake, match=r"would restart, for another slurmd\.volumes, worker-\[0-1\], which are on"):
        made.guard(())


def test_fields_that_are_not_known_count_as_those_of_pods() -> None:
    before = {"topology": {"fabric": "a"}, "nodeConfig": {"dynamic": "", "static": ""}, "replicas": 1, "docker": {}}
    after = {"topology": {"fabric": "b"}, "nodeConfig": {"dynamic": "x", "static": "y"}, "replicas": 2, "new": 1}
    assert changed_of_pods(before, {**after, "docker": {}}) == ["new", "nodeConfig.dynamic", "topology.fabric"]
    assert changed_of_pods(before, {**after, "updateStrategy": "slurmAwareRollingUpdate"}) == []


def test_overrides_win_and_their_names_are_checked() -> None:
    more = {
        "SlurmCluster": {"spec": {"slurmNodes": {"exporter": {"size": 2}}}},
        "NodeSet": {"spec": {"maxUnavailable": "10%"}},
        "NodeSet/worker": {"spec": {"slurmd": {"resources": {"cpu": "100"}}}},
    }
    made, (nodeset,) = rendered(cluster(), overrides=more)
    exporter = made["spec"]["slurmNodes"]["exporter"]
    assert (exporter["size"], exporter["k8sNodeFilterName"]) == (2, "service")
    assert nodeset["spec"]["maxUnavailable"] == "10%"
    assert nodeset["spec"]["slurmd"]["resources"]["cpu"] == "100"
    assert nodeset["spec"]["slurmd"]["resources"]["nvidia.com/gpu"] == "8"
    with pytest.raises(
        SpecMistake, match="unknown object 'NodeSet/wroker' in overrides: did you mean 'NodeSet/worker'"
    ):
        rendered(cluster(), overrides={"NodeSet/wroker": {}})
    for name in ("SlurmCluster", "SlurmCluster/research"):
        with pytest.raises(SpecMistake, match=f"overrides of {name} have maintenance: set it in the spec"):
            rendered(cluster(), overrides={name: {"spec": {"maintenance": "downscale"}}})


def test_a_node_set_that_was_ephemeral_before_starts_with_the_nodes_of_then() -> None:
    there = Namespace()
    provision(cluster(nodesets=(workers(size=4),)), there)
    there.run("worker", *range(4))
    there.things["NodeSetPowerState", "worker"] = {
        "metadata": {"name": "worker"},
        "spec": {"nodeSetRef": "worker", "activeNodes": [0, 2]},
    }
    ephemeral = cluster(nodesets=(workers(size=4, ephemeral=True, initial=4),))
    with pytest.raises(SpecMistake, match=r"become ephemeral and lose worker-\[1,3\]"):
        provision(ephemeral, there)


def test_the_volume_of_a_database_gets_the_size_that_is_said() -> None:
    there = Namespace()

    def size(said: int | None) -> str:
        provision(cluster(accounting=True, accounting_filesystem=said and Filesystem(size_gib=said)), there)
        found = there.spec("SlurmCluster", "research")["slurmNodes"]["accounting"]["mariadbOperator"]
        assert found["image"]
        return str(found["storage"]["size"])

    assert [size(None), size(128), size(None)] == ["64Gi", "128Gi", "128Gi"]


@pytest.mark.parametrize(
    ("refusal", "kind", "said"),
    [
        (apply_conflict("nodesets", "worker", [('"helm"', ".spec.replicas")]), SpecMistake, "is managed by others"),
        (conflict("nodesets", "worker"), ConnectRefused, "has been modified"),
    ],
)
def test_a_change_at_the_same_moment_is_no_other_owner(
    refusal: ApiError, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, answer = Namespace(), ApiException(status=409)
    answer.body = json.dumps(refusal.status())

    async def refuse(*args: Any, **options: Any) -> Any:
        raise kubernetes_error(answer, "apply worker") from answer

    monkeypatch.setattr(there, "apply", refuse)
    with pytest.raises(kind, match=said):
        provisioner(cluster(), there).plan()


@pytest.mark.parametrize("destroy", [True, False])
def test_a_node_set_of_another_cluster_is_left_alone(destroy: bool) -> None:
    there = Namespace()
    provision(cluster(), there)
    with pytest.raises(SpecMistake, match="NodeSet/worker is of the cluster research, and not of other: nothing was"):
        provisioner(cluster(name="other"), there).plan(destroy=destroy)


def test_a_destroyed_cluster_leaves_other_node_sets_which_is_told(caplog: pytest.LogCaptureFixture) -> None:
    there = Namespace()
    provision(cluster(nodesets=(workers(), workers("other"))), there)
    assert provisioner(cluster(), there).plan(destroy=True).changes == {
        "SlurmCluster/research": "delete",
        "NodeSet/worker": "delete",
    }
    assert "Node sets that are not in the spec stay: other" in caplog.text


def test_a_try_goes_on_with_what_an_earlier_one_has_begun_and_not_with_anything_else() -> None:
    there, at_work = Namespace(), cluster(maintenance="none")

    def is_begun(spec: ClusterSpec = at_work, owner: str = "dag/run/task") -> bool:
        made = provisioner(spec, there, force=True)
        made.plan()
        return made.is_begun_by(owner)

    assert not is_begun()
    provision(at_work, there)
    assert is_begun()
    assert not is_begun(owner="dag/run/other")
    # Node sets come after the cluster; a try may have died in between.
    there.put("NodeSet", "worker", {"replicas": 1})
    assert is_begun()
    # The same task, cleared, with another description; or where the cluster was changed in the meantime.
    assert not is_begun(cluster(maintenance="downscale"))
    there.put("SlurmCluster", "research", {"maintenance": "downscale"})
    assert not is_begun()
