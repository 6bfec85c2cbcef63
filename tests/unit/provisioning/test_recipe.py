"""A cluster as the recipe's variables."""

from __future__ import annotations

import base64
import logging
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from airflow_provider_soperator.provisioning.fields import SpecMistake
from airflow_provider_soperator.provisioning.parts import Filesystem, LocalNvme, PartitionSpec, ServiceNodes, Submount
from airflow_provider_soperator.provisioning.provisioner import Reached
from airflow_provider_soperator.provisioning.recipe import ITS_OWN, RecipeProvisioner, variables
from airflow_provider_soperator.provisioning.spec import Connections
from airflow_provider_soperator.terraform.failures import DESTRUCTION_REFUSED, STATE_LOCKED, TERRAFORM_FAILED, Cause
from airflow_provider_soperator.terraform.plan import TerraformPlan
from airflow_provider_soperator.terraform.root_module import RootModule
from airflow_provider_soperator.terraform.runs import Terraform
from airflow_provider_soperator.terraform.sources import Source
from airflow_provider_soperator.terraform.workspace import Workspace
from tests.terraform_errors import fails
from tests.unit.provisioning.clusters import GPU, cluster, public_key, workers


def test_only_what_was_said() -> None:
    assert variables(cluster()) == {
        "company_name": "research",
        "slurm_operator_version": "4.1.7",
        "slurm_nodeset_workers": [
            {
                "name": "worker",
                "size": 2,
                "autoscaling": {"enabled": True, "min_size": 2},
                "resource": GPU,
                "boot_disk": {"type": "NETWORK_SSD", "size_gibibytes": 512, "block_size_kibibytes": 4},
                "node_local_image_disk": {"enabled": False},
                "node_local_jail_submounts": [],
            }
        ],
        "slurm_login_ssh_root_public_keys": [public_key()],
    }


def test_all_that_can_be_said_of_workers() -> None:
    (found,) = variables(
        cluster(
            operator_version="5.0.0",
            nodesets=(
                workers(
                    fabric="fabric-3",
                    ephemeral=True,
                    initial=1,
                    min_size=0,
                    auto_resume=False,
                    blocks=("capacityblockgroup-a",),
                    features=("h100",),
                    drain_timeout="2h",
                    max_pods=16,
                    local_nvme=LocalNvme(devices=8, device_gb=3840),
                    extra={"extra_labels": {"team": "a"}, "node_local_image_disk": {"enabled": True}},
                ),
            ),
        )
    )["slurm_nodeset_workers"]
    del found["boot_disk"], found["resource"]
    assert found == {
        "name": "worker",
        "size": 2,
        "autoscaling": {"min_size": 0},
        "gpu_cluster": {"infiniband_fabric": "fabric-3"},
        "reservation_policy": {"policy": "STRICT", "reservation_ids": ["capacityblockgroup-a"]},
        "features": ["h100"],
        "ephemeral_nodes": True,
        "initial_number_ephemeral_nodes": 1,
        "auto_resume": False,
        "drain_timeout": "2h",
        "max_pods": 16,
        "local_nvme": {
            "enabled": True,
            "device_count": 8,
            "device_capacity_gigabytes": 3840,
            "mount_path": "/mnt/local-nvme",
        },
        "node_local_image_disk": {"enabled": True},
        "node_local_jail_submounts": [],
        "extra_labels": {"team": "a"},
    }
    (found,) = variables(cluster(nodesets=(workers(preemptible=True),)))["slurm_nodeset_workers"]
    assert found["preemptible"] == {}


def test_the_rest_of_a_cluster() -> None:
    said = cluster(
        partitions=(PartitionSpec("main", config="Default=YES"), PartitionSpec("gpu", ("worker",), topology="tree-ib")),
        jail=Filesystem(size_gib=2048, type="WEKA"),
        submounts=(Submount("data", "/data", Filesystem(id="computefilesystem-e00")),),
        login=ServiceNodes(preset="32vcpu-128gb"),
        system=ServiceNodes(min_size=3, max_size=9),
        accounting=True,
        rest=False,
        extra={"telemetry_enabled": False},
    )
    found = variables(said)
    assert found["slurm_nodesets_partitions"] == [
        {"name": "main", "is_all": True, "slurm_nodeset_refs": [], "topology": "flat", "config": "Default=YES"},
        {"name": "gpu", "is_all": False, "slurm_nodeset_refs": ["worker"], "topology": "tree-ib", "config": "State=UP"},
    ]
    assert found["filesystem_jail"] == {"spec": {"type": "WEKA", "size_gibibytes": 2048, "block_size_kibibytes": 4}}
    assert found["filesystem_jail_submounts"] == [
        {"name": "data", "mount_path": "/data", "existing": {"id": "computefilesystem-e00"}}
    ]
    assert found["slurm_nodeset_login"]["size"] == 1
    assert found["slurm_nodeset_system"].keys() == {"min_size", "max_size", "resource", "boot_disk"}
    # What is off is said, what is not said is not.
    assert (found["accounting_enabled"], found["slurm_rest_enabled"]) == (True, False)
    assert "maintenance" not in found
    assert found["telemetry_enabled"] is False


@pytest.mark.parametrize("keeps", [{"min_size": "all"}, {"min_size": "all", "ephemeral": True}, {}])
def test_all_machines_are_kept_by_number_as_the_recipe_has_another_default(keeps: dict[str, Any]) -> None:
    (found,) = variables(cluster(nodesets=(workers(**keeps),)))["slurm_nodeset_workers"]
    assert found["autoscaling"] == {"enabled": True, "min_size": 2}


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ({"ephemeral": True}, None),
        ({"autoscaling": False}, {"enabled": False}),
        ({"extra": {"autoscaling": {"enabled": True}}}, {"enabled": True}),
    ],
)
def test_no_machines_are_kept_for_what_has_its_own_rule(said: dict[str, Any], sent: dict[str, Any] | None) -> None:
    (found,) = variables(cluster(nodesets=(workers(**said),)))["slurm_nodeset_workers"]
    assert found.get("autoscaling") == sent


def test_a_recipe_without_autoscaling_is_not_asked_for_it() -> None:
    known = {**dict.fromkeys(ITS_OWN), "slurm_nodeset_workers": {"name": None, "size": None}}
    (found,) = variables(cluster(), known)["slurm_nodeset_workers"]
    assert "autoscaling" not in found


def test_an_older_recipe_gets_its_own_names() -> None:
    said = cluster(jail=Filesystem(size_gib=1), submounts=(Submount("data", "/data", Filesystem(size_gib=1)),))
    old = variables(said, dict.fromkeys([*ITS_OWN, "filestore_jail", "filestore_jail_submounts"]))
    assert {"filestore_jail", "filestore_jail_submounts"} <= old.keys()
    assert not {"filesystem_jail", "filesystem_jail_submounts"} & old.keys()


def test_an_older_recipe_is_spared_what_was_not_said() -> None:
    fields = {**dict.fromkeys(ITS_OWN), "slurm_nodeset_workers": {"name": None}, "slurm_nodesets_partitions": {}}

    def sent(topology: str, **extra: Any) -> tuple[set[str], bool]:
        partition = PartitionSpec("main", topology=topology)
        found = variables(cluster(nodesets=(workers(extra=extra),), partitions=(partition,)), fields)
        return {*found["slurm_nodeset_workers"][0]}, "topology" in found["slurm_nodesets_partitions"][0]

    said = {"name", "size", "resource", "boot_disk"}
    assert sent("flat") == (said, False)
    assert sent("tree", node_local_jail_submounts=["a"]) == (said | {"node_local_jail_submounts"}, True)


def test_what_is_no_recipe() -> None:
    with pytest.raises(SpecMistake, match=r"recipe is not for Soperator clusters.*no variable company_name"):
        variables(cluster(), dict.fromkeys(["name", "region"]))


def test_nothing_is_said_twice() -> None:
    with pytest.raises(SpecMistake, match="the cluster and its extra both set company_name"):
        variables(cluster(extra={"company_name": "b"}))
    with pytest.raises(SpecMistake, match="node set worker and its extra both set resource"):
        variables(cluster(nodesets=(workers(extra={"resource": {}}),)))


def planned(
    *changes: dict[str, Any], is_locked: bool = True, digest: str = "1", **changed: Any
) -> tuple[RecipeProvisioner, str]:
    """The provisioner of a cluster after a plan with these changes, and what it says of the plan."""
    recipe = Mock(fields={}, blocks=lambda kind: (), is_locked=is_locked, is_without_bucket=is_locked)
    workspace = Mock(Workspace, recipe=recipe, recipe_digest=digest)
    workspace.plan.return_value = TerraformPlan.read({"resource_changes": changes})
    provisioner = RecipeProvisioner(cluster(**changed), workspace, logging.getLogger())
    return provisioner, provisioner.plan().summary


def change(kind: str, *actions: str, reason: str = "", **names: str | dict[str, Any]) -> dict[str, Any]:
    """A change of one resource, of which nothing but its names may be known."""
    known = {which: {"name": name} if isinstance(name, str) else name for which, name in names.items()}
    said = {"actions": actions, "before": None, "after": {}, **known}
    return {"address": f"a.{kind}", "type": kind, "change": said, "action_reason": reason}


def test_an_approval_is_of_the_values_too() -> None:
    provisioner, _ = planned(change("a", "update"))
    approved = provisioner.plan().write()
    planned(change("a", "update"))[0].plan().check_agreed(approved)
    for other, digest in (({"region": "eu-west1"}, "1"), ({}, "2")):
        changed, _ = planned(change("a", "update"), digest=digest, **other)
        with pytest.raises(SpecMistake, match="description of the cluster, or its recipe, has changed since the plan"):
            changed.plan().check_agreed(approved)
    # Where nothing is left to do, nothing can have another value.
    planned(change("a", "no-op"), digest="2")[0].plan().check_agreed(approved)


@pytest.mark.parametrize("is_locked", [True, False])
def test_a_person_who_approves_a_plan_is_told_of_its_state(is_locked: bool) -> None:
    _, summary = planned(change("a", "create"), is_locked=is_locked)
    assert ("no lock" in summary) is not is_locked
    assert ("not in the bucket" in summary) is is_locked


def test_a_person_who_approves_a_plan_is_told_of_machines_that_it_replaces() -> None:
    groups = [{"name": "a-0", "template": {"os": os, "resources": {}}} for os in ("ubuntu22.04", "ubuntu24.04")]
    _, summary = planned(change("nebius_mk8s_v1_node_group", "update", before=groups[0], after=groups[1]))
    assert summary.startswith("1 to update; ")
    assert summary.endswith("; all machines of a-0 would be replaced, for another os")


@pytest.mark.parametrize(
    ("release", "may_be_in_use"), [("no-op", True), ("update", True), ("create", False)], ids=["same", "new", "none"]
)
def test_what_was_not_finished_is_not_replaced_once_slurm_is_there(release: str, may_be_in_use: bool) -> None:
    half = change("nebius_mk8s_v1_node_group", "delete", "create", reason="replace_because_tainted")
    provisioner, _ = planned(half, change("helm_release", release))
    refused = fails(DESTRUCTION_REFUSED, match="its creation was not finished.*terraform untaint")
    with refused if may_be_in_use else nullcontext():
        provisioner.guard(())
    provisioner.guard([half["address"]])


def test_a_state_of_another_cluster_is_left_alone() -> None:
    kind = "nebius_mk8s_v1_cluster"
    with pytest.raises(SpecMistake, match="that of the cluster soperator-research, and other would be soperator-other"):
        planned(change(kind, "update", before="soperator-research", after="soperator-other"), name="other")
    planned(change(kind, "create", after="soperator-other"), name="other")


def test_a_try_goes_on_with_what_an_earlier_one_has_begun_and_not_with_anything_else(tmp_path: Path) -> None:
    changes = change("a", "delete"), change("b", "delete")

    def of_try(*left: dict[str, Any], **changed: Any) -> RecipeProvisioner:
        provisioner, _ = planned(*left, **changed)
        provisioner._workspace.folder = tmp_path
        return provisioner

    def fail(provisioner: RecipeProvisioner, cause: Cause = TERRAFORM_FAILED) -> None:
        workspace: Any = provisioner._workspace
        workspace.apply.side_effect, workspace.has_begun = cause.error("no answer"), cause is TERRAFORM_FAILED
        with fails(cause):
            provisioner.apply("destroy dag/run/task")

    assert not of_try(*changes).is_begun_by("destroy dag/run/task")
    # Another may be at work in the state.
    fail(of_try(*changes), STATE_LOCKED)
    assert not of_try(*changes).is_begun_by("destroy dag/run/task")
    fail(of_try(*changes))
    # Its first step may have failed, or be half done.
    assert of_try(*changes).is_begun_by("destroy dag/run/task")
    assert not of_try(changes[0]).is_begun_by("dag/run/task")
    # Also after a try that has changed nothing more.
    fail(of_try(changes[0]))
    fail(of_try(changes[0]), STATE_LOCKED)
    assert of_try(changes[0]).is_begun_by("destroy dag/run/task")
    # Another description or another recipe is something else.
    assert not of_try(changes[0], maintenance="downscale").is_begun_by("destroy dag/run/task")
    assert not of_try(changes[0], digest="2").is_begun_by("destroy dag/run/task")
    of_try(*changes).apply("destroy dag/run/task")
    # After a success nothing is left of it.
    assert not of_try(*changes).is_begun_by("destroy dag/run/task")
    assert not of_try(changes[0]).is_begun_by("destroy dag/run/task")
    # A try that only waits for the cluster has nothing left to do.
    assert of_try().is_begun_by("destroy dag/run/task")


def test_what_a_destroyed_cluster_or_a_failed_creation_has_left_is_no_cluster() -> None:
    jail, step = change("nebius_compute_v1_filesystem", "no-op"), change("terraform_data", "no-op")
    group = "nebius_mk8s_v1_node_group"
    half = change(group, "delete", "create", reason="replace_because_tainted")
    for left in ([half], [jail, step], [jail, half]):
        assert not planned(*left, change("a", "create"))[0].plan().exists
    for there in ([step], [jail, change(group, "no-op")], [change(group, "delete", "create")]):
        assert planned(*there)[0].plan().exists


def test_what_a_replacement_has_left_is_not_what_is_there() -> None:
    left = {**change("a", "delete"), "deposed": "1f"}
    provisioner, _ = planned(change("a", "update"), left)
    assert provisioner.plan().changes == {"a.a": "update", "a.a (deposed object 1f)": "delete"}
    with fails(DESTRUCTION_REFUSED, match=r"a\.a \(deposed object 1f\) would be destroyed"):
        provisioner.guard(())
    provisioner.guard(["a.a"])


@pytest.mark.parametrize("said", [None, "downscale", "none"])
def test_a_maintenance_that_only_the_recipe_says_is_rejected(tmp_path: Path, said: str | None) -> None:
    (tmp_path / "main.tf").write_text("".join(f'variable "{name}" {{}}\n' for name in (*ITS_OWN, "maintenance")))
    (tmp_path / "terraform.tfvars").write_text('maintenance = "downscale"\n')
    workspace = Mock(Workspace, recipe=RootModule.read(tmp_path), recipe_digest="1", terraform=Mock(env={}))
    workspace.init.side_effect = lambda check: check()
    workspace.plan.return_value = TerraformPlan.read({"resource_changes": [change("a", "update")]})
    provisioner = RecipeProvisioner(cluster(maintenance=said), workspace, logging.getLogger())
    # Comparing and destroying it are possible.
    assert provisioner.plan().changes
    with nullcontext() if said else pytest.raises(SpecMistake, match="maintenance is 'downscale' by the recipe's own"):
        provisioner.guard(())


@pytest.mark.parametrize(
    ("release", "said", "kept"),
    [
        ("update", ["gpu"], {"gpu", "own"}),
        ("update", [], None),
        # Of a cluster that was never finished, Slurm may not answer.
        ("create", ["gpu"], None),
        ("no-op", ["gpu"], None),
    ],
)
def test_partitions_of_the_spec_are_all_that_stay(release: str, said: list[str], kept: set[str] | None) -> None:
    nodesets = (workers(), workers("own", extra={"create_partition": True}))
    partitions = tuple(map(PartitionSpec, said))
    provisioner, _ = planned(change("helm_release", release), nodesets=nodesets, partitions=partitions)
    assert provisioner.kept_partitions == kept


def ended(*changes: dict[str, Any], **needs: list[str]) -> tuple[RecipeProvisioner, Any]:
    """The provisioner of a cluster that is there, with what depends on what, and the looks that it takes."""
    provisioner, _ = planned(*changes)
    look: Any = provisioner._workspace.plan
    resources = [{"address": f"a.{kind}", "depends_on": on} for kind, on in needs.items()]
    state = {"values": {"root_module": {"child_modules": [{"resources": resources}]}}}
    look.side_effect = [TerraformPlan.read({"resource_changes": changes, "prior_state": state})]
    return provisioner, look


def test_data_stays_if_a_cluster_is_destroyed_or_the_task_fails() -> None:
    jail, bucket = change("nebius_compute_v1_filesystem", "no-op"), change("nebius_storage_v1_bucket", "no-op")
    check, cleanup = ({**change("terraform_data", "no-op"), "address": f"a.{name}[0]"} for name in ("check", "disks"))
    there = [jail, bucket, check, cleanup, change("nebius_mk8s_v1_cluster", "no-op")]
    ends = [change("nebius_mk8s_v1_cluster", "delete"), change("nebius_storage_v1_bucket", "delete")]
    needs = {"nebius_compute_v1_filesystem": ["a.check"], "nebius_mk8s_v1_cluster": ["a.disks"]}
    for lost in (1, 2):
        provisioner, look = ended(*there, **needs)
        look.side_effect = [*look.side_effect, TerraformPlan.read({"resource_changes": ends[:lost]})]
        refused = pytest.raises(SpecMistake, match=r"nothing was changed: Terraform destroys a\.nebius_storage_v1")
        with refused if lost > 1 else nullcontext():
            assert provisioner.plan(destroy=True).changes == {"a.nebius_mk8s_v1_cluster": "delete"}
        # Not the check of the variables, on which file systems depend.
        assert look.call_args.kwargs["targets"] == ["a.disks[0]", "a.nebius_mk8s_v1_cluster"]


def test_nothing_is_left_to_destroy_but_what_data_depends_on() -> None:
    jail, step = change("nebius_compute_v1_filesystem", "no-op"), change("terraform_data", "no-op")
    provisioner, _ = ended(jail, step, nebius_compute_v1_filesystem=["a.terraform_data"])
    assert provisioner.plan(destroy=True).summary == "nothing to do"


#: As `nebius mk8s cluster get-credentials` adds one for each cluster.
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: mine
clusters:
- {name: mine, cluster: {server: "https://127.0.0.1:1"}}
- {name: research, cluster: {server: "https://203.0.113.7", certificate-authority: ca.crt}}
users:
- {name: me, user: {token: not-to-be-told}}
- {name: research, user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: nebius, args: [mk8s]}}}
contexts:
- {name: mine, context: {cluster: mine, user: me}}
- {name: nebius-research-slurm, context: {cluster: research, user: research}}
"""


def reached(home: Path, name: str = "research") -> Reached:
    terraform = Terraform("terraform", {"HOME": str(home), "PATH": os.environ["PATH"]})
    workspace = Workspace(home, Source(str(home)), terraform, logging.getLogger(), print)
    workspace.outputs = lambda: {"login_address": "203.0.113.8"}  # type: ignore[method-assign]
    return RecipeProvisioner(cluster(name=name), workspace, logging.getLogger()).reached()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on PATH")
def test_the_context_that_the_recipe_has_written_is_carried_to_other_machines(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(KUBECONFIG)
    (tmp_path / ".kube/ca.crt").write_text("certificate")
    [made] = reached(tmp_path).connections(Connections(kubernetes="k", airflow_conn_id="api"), "soperator")
    carried = yaml.safe_load(made["extra"]["kube_config"])
    assert [one["name"] for one in carried["contexts"]] == ["nebius-research-slurm"]
    assert carried["current-context"] == "nebius-research-slurm"
    # Without files of this machine, and without what else its account may do.
    assert base64.b64decode(carried["clusters"][0]["cluster"]["certificate-authority-data"]) == b"certificate"
    assert carried["users"][0]["user"]["exec"]["args"] == ["mk8s"]
    assert "not-to-be-told" not in str(made)
    # A recipe that writes none leaves it to the machine.
    [other] = reached(tmp_path, "another").connections(Connections(kubernetes="k", airflow_conn_id="api"), "soperator")
    assert other["extra"]["cluster_context"] == "nebius-another-slurm"
