"""Terraform with a recipe of the true shape: what is planned, applied and refused, and what becomes of mistakes."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.log import redact

from airflow_provider_soperator.hooks.terraform import TerraformHook
from airflow_provider_soperator.terraform.failures import (
    BACKEND_CHANGED,
    CLOUD_QUOTA_EXCEEDED,
    INVALID_VARIABLE,
    NO_TERRAFORM,
    NOT_A_RECIPE,
    PLAN_OUTDATED,
    PROVIDER_MISSING,
    RECIPE_MISSING,
    STATE_ELSEWHERE,
    TERRAFORM_TOO_OLD,
    UNKNOWN_VARIABLE,
)
from airflow_provider_soperator.terraform.runs import find
from airflow_provider_soperator.transports.transport_errors import ConnectFailed
from tests.integration.terraforming import (
    LOGIN,
    RECIPES,
    STEPS,
    Bench,
    needs_terraform,
    variables,
    worker,
)
from tests.terraform_errors import fails

pytestmark = needs_terraform


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def recipe(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "main.tf").write_text(text)
    return folder


# What is done


def test_a_cluster_is_planned_made_and_told_of(bench: Bench) -> None:
    # All that HCL would take for something else.
    odd = 'ssh-ed25519 ${var.region} %{ if true } "quoted" \\ back\nslash'
    with bench.workspace() as workspace:
        workspace.init()
        values = variables(slurm_login_ssh_root_public_keys=[odd], slurm_nodeset_workers=[worker(size=128)])
        plan = workspace.plan(values)
        assert plan.summary == "6 to create"
        plan.refuse_destruction()
        applied = workspace.apply(plan)
        assert (applied.added, applied.changed, applied.destroyed) == (6, 0, 0)
        # The nodes of one node set are in several node groups.
        assert bench.made == ["cluster", "jail", "slurm", "worker-0", "worker-1"]

        outputs = workspace.outputs()
        assert outputs["node_groups"] == {"worker-0": 100, "worker-1": 28}
        assert outputs["first_key"] == odd
        assert bench.masked == [outputs["backups_password"]]
        assert workspace.show_state_address(LOGIN)["output"] == "203.0.113.7"

        again = workspace.plan(values)
        assert again.is_empty
        assert workspace.apply(again).added == 0
    assert len(bench.made) == 5
    said = str(bench.said)
    for line in (
        "  + module.k8s.terraform_data.this",
        "creating module.k8s.terraform_data.this",
        "There is nothing to do.",
    ):
        assert line in said
    assert "which is lost with this machine" in said or "all Airflow workers need access to this folder" in said


def test_changes_are_told_apart_and_all_is_destroyed(bench: Bench) -> None:
    bench.provision(bench.workspace())
    with bench.workspace() as workspace:
        workspace.init()
        grown = workspace.plan(variables(slurm_nodeset_workers=[worker(size=102)]))
        assert grown.summary == "1 to create, 1 to update"
        moved = workspace.plan(variables(iam_project_id="project-e00other"))
        replaced = [change.address for change in moved.changes if change.action == "replace"]
        assert replaced == ["module.k8s.terraform_data.this"]
        gone = workspace.plan(variables(), destroy=True)
        assert gone.summary == "5 to destroy"
        assert bench.ledger == [line for line in bench.ledger if line.startswith("create ")]
        assert workspace.apply(gone).destroyed == 5
        assert sorted(bench.ledger[-4:]) == [f"destroy {step}" for step in STEPS]


def test_a_plan_is_applied_once_and_not_after_another(bench: Bench) -> None:
    shared = {"local": {"path": str(bench.home / "shared.tfstate")}}
    with bench.workspace(backend=shared) as workspace, bench.workspace(name="other", backend=shared) as other:
        for one in (workspace, other):
            one.init()
        plan, late = workspace.plan(variables()), other.plan(variables())
        assert workspace.apply(plan).added == 5
        with fails(PLAN_OUTDATED, match="this one was already applied"):
            workspace.apply(plan)
        with fails(PLAN_OUTDATED, match=r"stale.*plan again"):
            other.apply(late)
        other.plan(variables())
        with fails(PLAN_OUTDATED, match="there is a newer plan"):
            other.apply(late)
    assert bench.made == STEPS


def test_each_cluster_has_a_state_of_its_own(bench: Bench) -> None:
    bench.provision(bench.workspace())
    for options in ({"name": "other"}, {"terraform_workspace": "other"}):
        with bench.workspace(**options) as workspace:
            workspace.init()
            assert workspace.plan(variables()).summary == "5 to create"


# Where recipes come from


def git(folder: Path, *args: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@y", *args], cwd=folder, check=True, capture_output=True
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One with the recipe and the modules that are beside it, as it is published."""
    folder = tmp_path / "library.git"
    subprocess.run(["cp", "-r", RECIPES, folder], check=True)
    git(folder, "init", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--message=first")
    git(folder, "tag", "v1")
    return folder


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("file://{}", {"subfolder": "soperator", "ref": "v1"}),
        ("git::file://{}//soperator?ref=v1", {}),
        ("git::file://{}", {"subfolder": "soperator"}),
    ],
)
def test_a_recipe_in_git(bench: Bench, repository: Path, address: str, options: dict[str, Any]) -> None:
    with bench.workspace(address.format(repository), **options) as workspace:
        workspace.init()
        assert len(workspace.recipe.variables) > 50


def test_a_version_is_fetched_once_and_no_version_each_time(bench: Bench, repository: Path) -> None:
    def names(**options: Any) -> set[str]:
        with bench.workspace(f"git::file://{repository}", subfolder="soperator", **options) as workspace:
            workspace.init()
            return set(workspace.recipe.variables)

    assert "added" not in names(name="latest") | names(name="fixed", ref="v1")
    (repository / "soperator/more.tf").write_text('variable "added" { default = "" }\n')
    git(repository, "rm", "soperator/terraform.tfvars")
    git(repository, "add", ".")
    git(repository, "commit", "--message=second")
    git(repository, "tag", "v2")
    assert "added" in names(name="latest")
    assert "added" not in names(name="fixed", ref="v1")
    assert not (bench.home / "latest/recipe/soperator/terraform.tfvars").exists()
    # Before the repository is gone.
    assert "added" in names(name="fixed", ref="v2")
    with fails(RECIPE_MISSING, match="v9"):
        names(name="fixed", ref="v9")


def test_a_recipe_with_a_state_of_its_own_is_not_copied(bench: Bench, tmp_path: Path) -> None:
    mine = recipe(tmp_path / "mine", 'resource "terraform_data" "a" {}\n')
    subprocess.run(["terraform", "apply", "-auto-approve"], cwd=mine, check=True, capture_output=True)
    with fails(STATE_ELSEWHERE, match="create a second time"):
        bench.workspace(mine).init()


# Mistakes


def test_variables_that_the_recipe_does_not_have(bench: Bench) -> None:
    with bench.workspace() as workspace:
        workspace.init()
        with fails(UNKNOWN_VARIABLE, match=r"filestore_jail \(did you mean 'filesystem_jail'\?\)"):
            workspace.plan(variables(filestore_jail={}, nodes=1))
    assert not list((bench.home / "training/runs").glob("*"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"slurm_nodeset_workers": [worker(size="many")]},
            r"slurm_nodeset_workers declared at variables\.tf:\d+.*a number is required",
        ),
        ({"region": None}, '"region" is not set'),
        ({"company_name": "Acme!"}, r"2 to 32 lowercase letters.*variables\.tf:\d+"),
        ({"slurm_nodeset_workers": [worker(resource={"platform": "x"})]}, "preset"),
    ],
)
def test_values_that_the_recipe_refuses(bench: Bench, values: dict[str, Any], words: str) -> None:
    with bench.workspace() as workspace:
        workspace.init()
        with fails(INVALID_VARIABLE, match=words):
            workspace.plan(variables(**values))
    assert bench.ledger == []


def test_what_is_no_recipe(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with fails(NOT_A_RECIPE, match=r"has no \.tf files: use the folder"):
        bench.workspace(tmp_path / "empty").init()
    other = recipe(tmp_path / "other", 'resource "terraform_data" "a" {}\n')
    with bench.workspace(other, name="other") as workspace:
        workspace.init()
        with fails(NOT_A_RECIPE, match="declares no variables"):
            workspace.plan(variables())


def test_a_recipe_for_another_terraform(bench: Bench, tmp_path: Path) -> None:
    newer = recipe(tmp_path / "newer", 'terraform {\n  required_version = ">= 99"\n}\n')
    with fails(TERRAFORM_TOO_OLD, match="required_version"):
        bench.workspace(newer).init()


def test_a_newer_release_of_a_recipe_gets_the_newer_providers_that_it_needs(bench: Bench, tmp_path: Path) -> None:
    needs = """terraform {
  required_providers {
    nebius = {
      source  = "nebius/nebius"
      version = "VERSION"
    }
  }
}
"""
    for version in ("0.5.100", "0.5.200"):
        folder = tmp_path / "mirror/registry.terraform.io/nebius/nebius" / version / "linux_amd64"
        folder.mkdir(parents=True)
        (folder / f"terraform-provider-nebius_v{version}").write_text(version)
    (tmp_path / "rc").write_text(
        f'provider_installation {{\n  filesystem_mirror {{\n    path = "{tmp_path / "mirror"}"\n  }}\n}}\n'
    )
    bench.env["TF_CLI_CONFIG_FILE"] = str(tmp_path / "rc")
    for constraint in ("< 0.5.150", "> 0.5.150"):
        bench.workspace(recipe(tmp_path / constraint, needs.replace("VERSION", constraint))).init()
    assert "needs newer providers" in str(bench.said)


def test_a_provider_that_is_not_to_be_had(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "rc").write_text(
        f'provider_installation {{\n  filesystem_mirror {{\n    path = "{tmp_path / "mirror"}"\n  }}\n}}\n'
    )
    bench.env["TF_CLI_CONFIG_FILE"] = str(tmp_path / "rc")
    needing = recipe(
        tmp_path / "needing",
        'terraform {\n  required_providers {\n    nebius = {\n      source = "nebius/nebius"\n    }\n  }\n}\n',
    )
    with fails(PROVIDER_MISSING, match="nebius/nebius"):
        bench.workspace(needing).init()


def test_no_terraform_at_all(bench: Bench) -> None:
    with fails(NO_TERRAFORM, match="nowhere is not on PATH"):
        find("nowhere")


def test_a_backend_that_has_changed_is_not_followed_silently(bench: Bench) -> None:
    first, second = ({"local": {"path": str(bench.home / name)}} for name in ("first.tfstate", "second.tfstate"))
    bench.provision(bench.workspace(backend=first))
    with fails(BACKEND_CHANGED, match="-migrate-state"):
        bench.workspace(backend=second).init()
    bench.provision(bench.workspace(backend=first))
    assert bench.made == STEPS


def test_a_quota_is_named_and_what_was_made_is_kept(bench: Bench) -> None:
    words = (
        "QuotaFailure: quota compute.instance.gpu.h100 of project: limit 16, requested 32 (compute.api.nebius.cloud)"
    )
    bench.env.update(STUB_FAIL="worker-0", STUB_WORDS=words)
    with fails(CLOUD_QUOTA_EXCEEDED, match=r"the quota compute\.instance\.gpu\.h100 is exceeded") as failed:
        bench.provision(bench.workspace())
    assert "limit 16, requested 32" in str(failed.value)
    assert 'FAILED: creating module.node_group["worker-0"].terraform_data.this' in str(bench.said)
    assert bench.made == ["cluster", "jail"]
    bench.env["STUB_FAIL"] = ""
    bench.provision(bench.workspace())
    assert bench.made == STEPS


# Secrets


def test_what_terraform_sees_and_what_is_left_behind(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    nosy = recipe(
        tmp_path / "nosy",
        f"""
        variable "region" {{}}
        variable "iam_token" {{
          sensitive = true
        }}
        resource "terraform_data" "a" {{
          input = sha256(var.iam_token)
          provisioner "local-exec" {{
            command = "env > {seen}; tr '\\\\0' ' ' < /proc/$PPID/cmdline >> {seen}"
          }}
        }}
        """,
    )
    monkeypatch.setenv("TF_LOG", "trace")
    monkeypatch.setenv("TF_CLI_ARGS_plan", "-destroy")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:secret@db/airflow")
    bench.env.update(NEBIUS_IAM_TOKEN="t0ken-of-ours", TF_VAR_iam_token="t0ken-of-ours")
    assert bench.provision(bench.workspace(nosy), {"region": "here"}).added == 1
    env = seen.read_text()
    assert "NEBIUS_IAM_TOKEN=t0ken-of-ours" in env
    assert not any(name in env for name in ("TF_LOG", "AIRFLOW__DATABASE"))
    assert "apply" in env.splitlines()[-1]
    assert "t0ken" not in env.splitlines()[-1]
    files = [path for path in (bench.home / "training").rglob("*") if path.is_file()]
    assert [path for path in files if b"t0ken" in path.read_bytes()] == []
    # A plan is an archive, in which it would be.
    assert [path for path in files if zipfile.is_zipfile(path)] == []
    assert "t0ken" not in str(bench.said)
    assert (bench.home / "training").stat().st_mode & 0o777 == 0o700
    assert (bench.home / "training/variables.tfvars.json").stat().st_mode & 0o777 == 0o600


def test_the_token_of_a_connection(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    nosy = recipe(
        tmp_path / "nosy",
        f"""
        resource "terraform_data" "a" {{
          provisioner "local-exec" {{
            command = "env > {seen}"
          }}
        }}
        """,
    )
    said = {"conn_type": "nebius", "password": "t0ken-of-a-connection"}
    monkeypatch.setenv("AIRFLOW_CONN_NEBIUS_TERRAFORM", json.dumps(said))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    hook = TerraformHook(nebius_conn_id="nebius_terraform", env={"AWS_SECRET_ACCESS_KEY": "t0ken-of-a-bucket"})
    with hook.workspace(str(nosy), "training") as workspace:
        workspace.init()
        assert workspace.apply(workspace.plan({})).added == 1
    told = seen.read_text()
    assert "NEBIUS_IAM_TOKEN=t0ken-of-a-connection" in told
    assert "AWS_SECRET_ACCESS_KEY=t0ken-of-a-bucket" in told
    assert "t0ken" not in str(redact(told))
    assert (tmp_path / "airflow/soperator/terraform/training/recipe").is_dir()
    with pytest.raises(ValueError, match="is not a name of a workspace"):
        hook.workspace(str(nosy), "../training")
    with pytest.raises(ConnectFailed, match="there is no connection nowhere"):
        TerraformHook(nebius_conn_id="nowhere").workspace(str(nosy), "training")
