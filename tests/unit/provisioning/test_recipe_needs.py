"""What a recipe misses on an Airflow worker, all of it and by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_soperator.provisioning.recipe_needs import RecipeNeeds
from airflow_provider_soperator.terraform.root_module import RootModule

#: As the published recipe does: a plugin for tokens, a script in a module, one that takes its token from a profile.
ROOT = """
variable "company_name" {}
variable "region" {}
variable "o11y_profile" {}
variable "public_o11y_enabled" { default = true }
provider "nebius" {
  profile = {}
}
provider "helm" {
  kubernetes = {
    exec = {
      command = "nebius"
      args    = ["mk8s", "v1", "cluster", "get-token"]
    }
  }
}
module "o11y" {
  source = "../../modules/o11y"
}
"""
MODULE = """
resource "terraform_data" "secret" {
  provisioner "local-exec" {
    command = <<EOT
unset NEBIUS_IAM_TOKEN
export NEBIUS_IAM_TOKEN=$(nebius --profile ${var.profile} iam get-access-token)
# flux get all
command -v aws >/dev/null || exit 0
aws s3 ls
cat <<EOF | "${path.module}/../scripts/apply.sh" --context x
EOF
EOT
  }
}
resource "terraform_data" "wait" {
  provisioner "local-exec" {
    command = join(" ", ["kubectl", "wait"])
  }
}
"""
SCRIPT = '#!/bin/bash\nsource "$module/scripts/values.sh"\nhelm_like=1\n'
TOKEN = {"NEBIUS_IAM_TOKEN": "t"}
VALUES = {"company_name": "research", "region": "eu-north1", "o11y_profile": "telemetry"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An account, and a recipe with its modules."""
    files = {
        "recipe/installations/mine/main.tf": ROOT,
        "recipe/modules/o11y/main.tf": MODULE,
        "recipe/modules/scripts/apply.sh": SCRIPT,
        "recipe/modules/scripts/values.sh": "name=$(kubectl get x | yq -r .name)\n",
        "recipe/elsewhere/main.tf": 'provisioner "local-exec" {\n  command = "gcloud"\n}\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for program in ("nebius", "kubectl", "yq"):
        install(tmp_path, program)
    return tmp_path


def install(home: Path, program: str) -> None:
    (home / "bin").mkdir(exist_ok=True)
    (home / "bin" / program).write_text("#!/bin/sh\n")
    (home / "bin" / program).chmod(0o755)


def profile(home: Path, name: str) -> None:
    (home / ".nebius").mkdir()
    (home / ".nebius/config.yaml").write_text(f"default: {name}\nprofiles:\n  {name}:\n    auth-type: federation\n")


def backend(home: Path, settings: str) -> None:
    path = home / "recipe/installations/mine/terraform_backend_override.tf"
    path.write_text(f'terraform {{\n  backend "s3" {{\n    bucket = "b"\n{settings}\n  }}\n}}\n')


def needs(home: Path, values: dict[str, object] | None = None, **env: str) -> RecipeNeeds:
    given = {"PATH": str(home / "bin"), "HOME": str(home), **env}
    return RecipeNeeds(RootModule.read(home / "recipe/installations/mine"), {**VALUES, **(values or {})}, given)


def missing(home: Path, values: dict[str, object] | None = None, **env: str) -> str:
    return "\n".join(needs(home, values, **env).missing())


def test_all_is_named_at_once(home: Path) -> None:
    backend(home, '    endpoints = { s3 = "https://storage.example" }')
    (home / "recipe/installations/mine/terraform.tfvars").write_text('region = "<YOUR-REGION>"\n')
    for program in ("nebius", "kubectl", "yq"):
        (home / "bin" / program).unlink()
    recipe = RootModule.read(home / "recipe/installations/mine")
    found = list(RecipeNeeds(recipe, {}, {"PATH": str(home / "bin"), "HOME": str(home)}).missing())
    assert [line.partition(":")[0] for line in found] == [
        "the program kubectl is not on PATH, and the recipe calls it",
        "the program nebius is not on PATH, and the recipe calls it",
        "the program yq is not on PATH, and the recipe calls it",
        "the Nebius CLI has no credentials, and would wait for a login in a browser",
        "there is no value for company_name, o11y_profile",
        "terraform.tfvars of the recipe has a placeholder for region",
        "there are no keys for the bucket with the state",
    ]


def test_a_program_that_is_never_called_can_be_left_out(home: Path) -> None:
    profile(home, "telemetry")
    (home / "bin/yq").unlink()
    assert "set Recipe(unused_programs=['yq'])" in missing(home)
    without = replace(needs(home), unused_programs=["yq"])
    assert list(without.missing()) == []


def test_a_worker_that_has_it_all(home: Path) -> None:
    profile(home, "telemetry")
    assert list(needs(home).missing()) == []
    assert list(needs(home).doubts()) == []


def test_a_token_does_not_replace_the_profile_of_a_script_that_drops_it(home: Path) -> None:
    said = missing(home, **TOKEN)
    assert said.startswith("the Nebius CLI has no profile telemetry, with which")
    assert "nebius profile create --profile telemetry" in said
    assert missing(home, {"public_o11y_enabled": False}, **TOKEN) == ""
    assert missing(home, TF_VAR_public_o11y_enabled="false", **TOKEN) == ""


def test_a_provider_that_reads_a_profile_is_only_a_doubt_as_there_is_a_token(home: Path) -> None:
    (doubt,) = needs(home, **TOKEN).doubts()
    assert "~/.nebius/config.yaml has none" in doubt


@pytest.mark.parametrize(
    ("settings", "env", "lacks"),
    [
        ('    endpoint = "https://storage.example"', {}, True),
        ("", {"AWS_ENDPOINT_URL": "https://storage.example", "AWS_ACCESS_KEY_ID": "a"}, True),
        ("", {"AWS_ENDPOINT_URL": "x", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, False),
        ("", {"AWS_ENDPOINT_URL": "x", "AWS_PROFILE": "mine"}, False),
        # The machine may have a role.
        ("", {}, False),
    ],
    ids=["none", "half", "both", "profile", "aws"],
)
def test_keys_of_a_bucket(home: Path, settings: str, env: dict[str, str], lacks: bool) -> None:
    profile(home, "telemetry")
    backend(home, settings)
    assert ("keys for the bucket" in missing(home, **env)) is lacks


def test_values_may_come_from_the_environment_or_a_file(home: Path) -> None:
    profile(home, "telemetry")
    recipe = home / "recipe/installations/mine"
    env = {"PATH": str(home / "bin"), "HOME": str(home), "TF_VAR_region": "eu-north1"}
    (recipe / "mine.auto.tfvars").write_text('o11y_profile = "telemetry"\n')
    (found,) = RecipeNeeds(RootModule.read(recipe), {}, env).missing()
    assert found.startswith("there is no value for company_name: ")
    assert "TF_VAR_company_name in Recipe(env=…)" in found


def test_a_bucket_that_only_the_envrc_would_set_up(home: Path) -> None:
    profile(home, "telemetry")
    (home / "recipe/installations/mine/.envrc").write_text("cat > terraform_backend_override.tf << EOF\n")
    (doubt,) = needs(home).doubts()
    assert "set Recipe(backend=…)" in doubt
    backend(home, "")
    assert list(needs(home).doubts()) == []


@pytest.mark.parametrize(
    ("values", "tfvars", "env", "mode"),
    [
        ({}, "", "", ""),
        ({}, "none", "downscale", ""),
        ({}, "", "downscale", "downscale"),
        ({}, "downscale", "", "downscale"),
        ({"maintenance": "skipPopulateJail"}, "downscale", "", ""),
    ],
)
def test_the_mode_of_maintenance_is_the_one_that_terraform_takes(
    home: Path, values: dict[str, object], tfvars: str, env: str, mode: str
) -> None:
    (home / "recipe/installations/mine/terraform.tfvars").write_text(f'maintenance = "{tfvars}"\n' if tfvars else "")
    assert needs(home, values, **({"TF_VAR_maintenance": env} if env else {})).maintenance == mode
