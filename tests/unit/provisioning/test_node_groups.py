"""Nodes that an update of a node group loses, and releases of Soperator that an update of Flux changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_soperator.provisioning.fields import SpecMistake
from airflow_provider_soperator.provisioning.guards import other_releases, refuse_lost_nodes, refuse_older_release
from airflow_provider_soperator.terraform.plan import TerraformPlan

ADDRESS = "module.k8s.nebius_mk8s_v1_node_group.worker_v2[0]"


def update(before: dict[str, Any], after: dict[str, Any], kind: str = "nebius_mk8s_v1_node_group") -> TerraformPlan:
    change = {"actions": ["update"], "before": {"name": "a-0", **before}, "after": {"name": "a-0", **after}}
    return TerraformPlan.read({"resource_changes": [{"address": ADDRESS, "type": kind, "change": change}]})


def scaled(size: int) -> dict[str, Any]:
    return {"fixed_node_count": None, "autoscaling": {"min_node_count": 0, "max_node_count": size}}


def made_of(preset: str) -> dict[str, Any]:
    return {"template": {"resources": {"platform": "gpu-h100-sxm", "preset": preset}}}


def templated(**fields: Any) -> dict[str, Any]:
    return {"template": {**made_of("8gpu")["template"], **fields}}


def with_disk(size: int, **fields: Any) -> dict[str, Any]:
    return templated(boot_disk={"size_gibibytes": size, "block_size_bytes": 4096}, **fields)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"fixed_node_count": 128}, {"fixed_node_count": 2}, "the node group a-0 would shrink from 128 to 2 machines"),
        ({"fixed_node_count": 128}, scaled(64), "from 128 to 64"),
        (scaled(4), {"fixed_node_count": 3, "autoscaling": None}, "from 4 to 3"),
        (
            made_of("8gpu"),
            made_of("1gpu"),
            "all machines of a-0 would be replaced, gpu-h100-sxm 8gpu by gpu-h100-sxm 1gpu",
        ),
        (with_disk(512), with_disk(1024), "all machines of a-0 would be replaced, for another boot_disk;"),
        (
            {"version": "1.31", **templated(cloud_init_user_data="a", preemptible=None)},
            {"version": "1.32", **templated(cloud_init_user_data="b", preemptible={})},
            "replaced, Kubernetes 1.31 by 1.32, for another cloud_init_user_data, for another preemptible;",
        ),
        (templated(filesystems=[{"mount_tag": "jail"}]), templated(filesystems=[]), "for another filesystems"),
        ({}, {"name": "b-0"}, r"turn from a-0 into b-0 in place: keep the order of nodesets"),
    ],
)
def test_what_is_refused(before: dict[str, Any], after: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecMistake, match=said):
        refuse_lost_nodes(update(before, after), ["module.other.*"])
    refuse_lost_nodes(update(before, after), [ADDRESS])
    refuse_lost_nodes(update(before, after, kind="another"), [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"fixed_node_count": 2}, {"fixed_node_count": 4}),
        ({"fixed_node_count": 2}, scaled(2)),
        (made_of("8gpu"), {"fixed_node_count": 4, **made_of("8gpu")}),
        (made_of("8gpu"), {"template": None}),
        # Existing machines are left as they are.
        (templated(taints=[], metadata={"labels": {"a": "b"}}), templated(taints=[{"key": "a"}], metadata=None)),
        # What Terraform does not know yet, or only the state has.
        ({**with_disk(512, os="ubuntu24.04"), "version": "1.31"}, {**templated(boot_disk={}), "version": None}),
        (
            templated(network_interfaces=[{"subnet_id": "a"}, {}]),
            templated(network_interfaces=[{"public_ip_address": None}, None]),
        ),
        ({}, {}),
    ],
)
def test_what_is_not(before: dict[str, Any], after: dict[str, Any]) -> None:
    refuse_lost_nodes(update(before, after), [])


def of_git(release: str) -> dict[str, Any]:
    name = "kustomization.spec.postBuild.substitute.soperator_version"
    flux = {"chart": "flux2-sync", "version": "1.8.2"}
    return {**flux, "set": [{"name": "kustomization.spec.prune", "value": "true"}, {"name": name, "value": release}]}


def of_bootstrap(release: str) -> dict[str, Any]:
    registry = {"name": "helmRepository.url", "value": "oci://cr.nebius.cloud/soperator"}
    return {"chart": "helm-soperator-fluxcd-bootstrap", "version": release, "set": [registry]}


@pytest.mark.parametrize("of_release", [of_git, of_bootstrap], ids=["git", "chart"])
def test_an_older_release_is_refused_and_a_newer_one_is_told(of_release: Callable[[str], dict[str, Any]]) -> None:
    back = update(of_release("5.0.0"), of_release("4.1.12"), "helm_release")
    with pytest.raises(SpecMistake, match=r"Soperator would go back from 5\.0\.0 to 4\.1\.12: set operator_version"):
        refuse_older_release(back, [])
    refuse_older_release(back, [ADDRESS])
    newer = update(of_release("4.1.7"), of_release("4.1.12-1"), "helm_release")
    refuse_older_release(newer, [])
    assert [pair for _, *pair in other_releases(newer)] == [["4.1.7", "4.1.12-1"]]
    assert not [*other_releases(update({}, of_release("4.1.7"), "helm_release"))]
    values = {"chart": "raw", "version": "2.0.1"}
    assert not [*other_releases(update(values, {**values, "version": "2.0.0"}, "helm_release"))]
