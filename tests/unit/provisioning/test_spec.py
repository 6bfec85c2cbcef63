"""What can be said of a cluster, and what is refused when the DAG is parsed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_soperator.provisioning.fields import SpecMistake
from airflow_provider_soperator.provisioning.parts import Disk, Filesystem, LocalNvme, NodeSet, PartitionSpec, Submount
from airflow_provider_soperator.provisioning.spec import ClusterSpec
from tests.unit.provisioning.clusters import cluster, public_key, workers


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "Research"}, "'Research' is not a name of a cluster"),
        ({"name": "r" * 33}, "must have at most 32 characters, got 33"),
        ({"operator_version": "4.1"}, "must be a release of Soperator"),
        ({"operator_version": 4.1}, "must be a release of Soperator, such as 4.1.7, got 4.1"),
        ({"login_keys": ()}, "no user could log in"),
        ({"login_keys": ("-----BEGIN OPENSSH PRIVATE KEY-----",)}, "login_keys contains a private key"),
        ({"login_keys": ("me@example",)}, "'me@example' is not a public key"),
        ({"login_keys": (public_key()[:40],)}, "is damaged: copy it again"),
        ({"login_keys": (f"{public_key()[:40]}é",)}, "is damaged: copy it again"),
        ({"login_keys": (public_key().replace("ssh-ed25519 ", "ssh-rsa "),)}, "is damaged: copy it again"),
        ({"nodesets": ()}, "at least one node set"),
        ({"nodesets": (workers(), workers())}, "node sets must be unique, got worker twice"),
        ({"project": "my-project"}, "project must be an id that begins with project-, got 'my-project'"),
        ({"tenant": "project-e00"}, "an id that begins with tenant-"),
        ({"rest": True}, "also set accounting=True"),
        ({"rest": True, "accounting": False}, "also set accounting=True"),
        ({"maintenance": "downscal"}, "did you mean 'downscale'"),
        ({"active_checks_scope": "prod-quick"}, "did you mean 'prod_quick'"),
        ({"partitions": (PartitionSpec("gpu", ("workers",)),)}, "there is no node set workers: did you mean 'worker'"),
        (
            {"operator_version": "3.0.8", "nodesets": (workers(ephemeral=True, initial=1),)},
            r"node set worker: initial needs Soperator 4\.0, and this is 3\.0\.8; omit it",
        ),
        ({"nodesets": (workers(auto_resume=False),)}, r"auto_resume needs Soperator 5\.0, and this is 4\.1\.7"),
        ({"jail": 2048}, r"jail is 2048: write Filesystem\(size_gib=…\)"),
        ({"controller": "cpu-d3"}, "controller is 'cpu-d3': write ServiceNodes"),
        ({"partitions": ("gpu",)}, r"partitions is 'gpu': write PartitionSpec\(name=…\)"),
        ({"partitions": (PartitionSpec("a"), PartitionSpec("a"))}, "partitions must be unique, got a twice"),
        ({"extra": {"maintenance": "downscale"}}, "extra has maintenance: set maintenance of the spec"),
        ({"extra": {"slurm_nodesets_partitions": []}}, "slurm_nodesets_partitions: set partitions of the spec"),
    ],
)
def test_a_cluster_that_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecMistake, match=said):
        cluster(**changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "gpu_h100"}, "is not a name of a node set"),
        ({"size": 0}, "size must be >= 1, got 0"),
        ({"size": "two"}, "must be a whole number, got 'two'"),
        ({"size": None}, "must be a whole number, got None"),
        ({"preset": "8gpu"}, "preset must have the form 8gpu-128vcpu-1600gb, got '8gpu'"),
        ({"preset": "16vcpu-64gb"}, "the platform gpu-h100-sxm has no preset 16vcpu-64gb"),
        ({"fabric": "fabric-3", "preset": "1gpu-16vcpu-200gb"}, "only one with all 8 GPUs can"),
        ({"fabric": "fabric-3", "gpu_cluster": "computegpucluster-e00"}, "set fabric or gpu_cluster, not both"),
        ({"boot_disk": 512}, "boot_disk is 512: write Disk"),
        ({"min_size": 3}, "min_size must be <= its size 2, got 3"),
        ({"min_size": 1, "autoscaling": False}, "min_size has no effect without autoscaling"),
        ({"initial": 1}, "initial is for ephemeral nodes"),
        ({"initial": 3, "ephemeral": True}, "initial must be <= its size 2, got 3"),
        ({"extra": {"ephemeral_nodes": True}}, "worker: extra has ephemeral_nodes: set ephemeral, by which"),
        ({"reservation": "strict"}, "must be one of AUTO, FORBID, STRICT"),
        ({"reservation": "STRICT"}, "only from blocks: set blocks"),
        ({"reservation": "FORBID", "blocks": ("capacityblockgroup-a",)}, "omit one of them"),
        ({"preemptible": True, "blocks": ("capacityblockgroup-a",)}, "preemptible machines are never of a block"),
        ({"blocks": ("mk8snodegroup-e00",)}, "must begin with capacityblockgroup-"),
    ],
)
def test_a_node_set_that_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecMistake, match=said):
        workers(**changed)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Disk(size_gib=100, type="NETWORK_SSD_IO_M3"), "must be a multiple of 93"),
        (lambda: Disk(type="SSD"), "must be one of NETWORK_SSD"),
        (lambda: Filesystem(), "and not both"),
        (lambda: Filesystem(size_gib=1, id="computefilesystem-e00"), "and not both"),
        (lambda: Submount("data", "data", Filesystem(size_gib=1)), "must be mounted at an absolute path"),
        (lambda: Submount("data", "/home/", Filesystem(size_gib=1)), "is for home directories"),
        (lambda: Submount("data", "/data", 2048), "filesystem is 2048: write Filesystem"),  # type: ignore[arg-type]
        (lambda: LocalNvme(devices=0, device_gb=3840), "devices of local_nvme must be >= 1, got 0"),
        (lambda: PartitionSpec("a b"), "is not a name of a partition"),
        (lambda: PartitionSpec("a", config="PartitionName=a Nodes=ALL"), "config must not set PartitionName or Nodes"),
    ],
)
def test_a_part_that_is_refused(make: Any, said: str) -> None:
    with pytest.raises(SpecMistake, match=said):
        make()


@pytest.mark.parametrize(
    ("maintenance", "is_taken_down"), [(None, False), ("none", False), ("skipPopulateJail", False), ("downscale", True)]
)
def test_nobody_is_to_wait_for_a_cluster_in_maintenance(maintenance: str | None, is_taken_down: bool) -> None:
    assert cluster(maintenance=maintenance).is_taken_down is is_taken_down


def test_options_of_a_partition_may_end_in_nodes() -> None:
    assert PartitionSpec("a", config="MaxNodes=4 MinNodes=1").config.startswith("MaxNodes")


def test_blocks_are_never_left_for_what_can_be_bought() -> None:
    assert workers().policy is None
    assert workers(blocks=("capacityblockgroup-a",)).policy == "STRICT"
    assert workers(blocks=("capacityblockgroup-a",), reservation="AUTO").policy == "AUTO"


@pytest.mark.parametrize("keeps", [{}, {"autoscaling": False}, {"min_size": "all"}, {"min_size": 2}])
def test_machines_that_stay_behind_ephemeral_nodes_are_warned_of(keeps: dict[str, Any]) -> None:
    (warning,) = cluster(nodesets=(workers(ephemeral=True, **keeps),)).warnings
    assert "the machines stay and hold their GPUs" in warning
    assert ("depends on the recipe" in warning) is (not keeps)
    assert cluster(nodesets=(workers(ephemeral=True, min_size=0),)).warnings == ()
    assert cluster(nodesets=(workers(**keeps),)).warnings == ()
    assert "may be scaled down to 1" in cluster(nodesets=(workers(min_size=1),)).warnings[0]


def test_a_cluster_on_which_checks_or_changes_would_not_work_is_warned_of() -> None:
    assert "Soperator's checks run in the partition hidden" in cluster(partitions=(PartitionSpec("a"),)).warnings[0]
    hidden = PartitionSpec("hidden", config="Hidden=YES State=UP")
    assert cluster(partitions=(PartitionSpec("a"), hidden)).warnings == cluster().warnings
    assert "there is no slurmrestd" in cluster(accounting=False).warnings[0]


def test_racks_are_node_sets_of_their_own() -> None:
    racked = workers(size=36, platform="gpu-gb300", preset="4gpu-128vcpu-800gb", fabric="fabric-9")
    assert racked.slurm_names == ("worker-rack0", "worker-rack1")
    cluster(nodesets=(racked,), partitions=(PartitionSpec("one", ("worker-rack0",)),))
    with pytest.raises(SpecMistake, match="there is no node set worker:"):
        cluster(nodesets=(racked,), partitions=(PartitionSpec("one", ("worker",)),))


def test_templates_are_checked_once_they_are_rendered() -> None:
    set_ = NodeSet("{{ params.set }}", "{{ params.size }}", platform="{{ p }}", preset="{{ q }}", min_size=1)
    said = cluster(name="{{ params.name }}", operator_version="{{ params.version }}", nodesets=(set_,)).write()
    said |= {"name": "a", "operator_version": "5.0.0"}
    said["nodesets"][0] |= {"name": "w", "size": "4", "platform": "cpu-d3", "preset": "16vcpu-64gb", "min_size": "all"}
    read = ClusterSpec.read(said)
    assert (read.nodesets[0].size, read.nodesets[0].min_size) == (4, "all")
    said["nodesets"][0]["size"] = "many"
    with pytest.raises(SpecMistake, match=r"spec.nodesets\[0\].size must be a whole number, got 'many'"):
        ClusterSpec.read(said)


def test_plain_data_and_back() -> None:
    spec = cluster(
        nodesets=(workers(ephemeral=True, min_size="all", local_nvme=LocalNvme(devices=8, device_gb=3840)),),
        submounts=(Submount("data", "/data", Filesystem(id="computefilesystem-e00")),),
        accounting=True,
        extra={"telemetry_enabled": False},
    )
    assert ClusterSpec.read(spec.write()) == spec
    # Nothing that was not said.
    assert set(cluster().write()) == {"name", "operator_version", "nodesets", "login_keys"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"nam": "a"}, "spec has no field 'nam': did you mean 'name'"),
        ({"nodesets": [{"name": "w", "sise": 1}]}, r"spec.nodesets\[0\] has no field 'sise': did you mean 'size'"),
        ({"name": "a"}, "spec is incomplete: .*operator_version"),
        ({"nodesets": "worker"}, "spec.nodesets must be a list, got 'worker'"),
        ({"accounting": "perhaps"}, "spec.accounting must be true or false, got 'perhaps'"),
        ({"k8s_version": 1.32}, "spec.k8s_version must be a string, got 1.32: put it in quotes"),
        ({"jail": 2048}, "spec.jail must be a mapping, got 2048"),
        ([], r"spec must be a mapping, got \[\]"),
    ],
)
def test_files_that_are_refused(said: Any, words: str) -> None:
    with pytest.raises(SpecMistake, match=words):
        ClusterSpec.read(said)


def test_one_text_is_the_only_item_of_a_list() -> None:
    node_set = workers(blocks="capacityblockgroup-e00a", features="ib")
    spec = cluster(login_keys=public_key(), nodesets=(node_set,), partitions=(PartitionSpec("gpu", "worker"),))  # type: ignore[arg-type]
    assert spec.login_keys == (public_key(),)
    assert (node_set.blocks, node_set.features) == (("capacityblockgroup-e00a",), ("ib",))
    assert spec.partitions[0].nodesets == ("worker",)
