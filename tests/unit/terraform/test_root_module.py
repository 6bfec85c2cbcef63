"""What a recipe's files declare, also where they are written in ways that a reader may stumble over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.terraform.failures import NOT_A_RECIPE, UNKNOWN_VARIABLE
from airflow_provider_soperator.terraform.root_module import RootModule, reach, texts_of
from airflow_provider_soperator.terraform.sources import Source
from tests.terraform_errors import fails

STUB = Path(__file__).parents[3] / "dags/provision_cluster/recipe/soperator"

#: Blocks, strings, templates, heredocs and comments within each other.
ODD = r"""
# variable "in_a_comment" {}
/* variable "in_a_longer_one" {
*/ variable "first" {
  description = "a } brace, a \" quote and ${upper("a \"}\" in a template")} // no comment"
  default     = { a = [1, "}"], b = { c = "${var.x["y"]}" } }
}
variable second { type = string }
variable "third" {
  default = <<-EOT
    variable "in_a_heredoc" {
      ${"}"}
    EOT
  type = object({
    size = number
  })

  validation {
    condition     = length(var.third) > 0 && true != false
    error_message = <<EOF
variable "in_another" {
EOF
  }
}
output "variable" { value = "variable \"in_an_output\" {" }
"""


def recipe(folder: Path, **files: str) -> RootModule:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return RootModule.read(folder)


def test_variables_are_found_and_nothing_else(tmp_path: Path) -> None:
    found = recipe(tmp_path, main__tf=ODD)
    assert found.variables == ("first", "second", "third")
    assert [name for name, attributes in found.blocks("variable") if "default" in attributes] == ["first", "third"]


def test_sources_are_as_they_mean(tmp_path: Path) -> None:
    sources = ['"../a" # b', '"${c}"', '"./d" == "e"', "f", '"acme/g/cloud"']
    text = "".join(f'module "m{n}" {{\n  source = {source}\n}}\n' for n, source in enumerate(sources))
    recipe(tmp_path / "root", main__tf=text)
    recipe(tmp_path / "a", main__tf="", more__tf='module "m" {\n  source = "./inner"\n}\n')
    recipe(tmp_path / "a/inner", main__tf="")
    recipe(tmp_path / "b", main__tf="")
    found = texts_of(tmp_path / "root")
    assert {path.parent for path in found} == {tmp_path / "root", tmp_path / "a", tmp_path / "a/inner"}
    assert reach(tmp_path / "root") == tmp_path
    assert reach(tmp_path / "b") == tmp_path / "b"


def test_of_a_file_with_a_mistake_terraform_says_what_is_wrong(tmp_path: Path) -> None:
    found = recipe(tmp_path, main__tf='variable "a" {}\n', more__tf='variable "b" {\n')
    assert found.variables == ("a",)
    found.check({"b": 1})


def test_the_stub_has_what_the_published_recipe_wants() -> None:
    stub = RootModule.read(STUB)
    needed = {name for name, attributes in stub.blocks("variable") if "default" not in attributes}
    assert {"company_name", "region", "iam_project_id", "filesystem_jail", "slurm_nodeset_workers"} <= needed
    assert {"slurm_nodeset_login", "slurm_nodesets_partitions", "slurm_rest_enabled"} <= set(stub.variables) - needed
    assert reach(STUB) == STUB.parent


@pytest.mark.parametrize(
    ("files", "backend"),
    [
        ({"main__tf": 'terraform {\n  required_version = ">= 1.5"\n}\n'}, "local"),
        ({"main__tf": 'terraform {\n  backend "s3" {\n    bucket = "b"\n  }\n}\n'}, "s3"),
        ({"main__tf": "terraform {\n  cloud {\n  }\n}\n"}, "cloud"),
        ({"main__tf": "", "terraform_backend_override__tf": 'terraform {\n  backend "s3" {\n  }\n}\n'}, "s3"),
        ({"main__tf": "", "a_override__tf__json": '{"terraform": {"backend": {"gcs": {"bucket": "b"}}}}'}, "gcs"),
    ],
)
def test_the_backend(tmp_path: Path, files: dict[str, str], backend: str) -> None:
    assert recipe(tmp_path, **files).backend == backend


@pytest.mark.parametrize(
    ("backend", "is_locked"),
    [
        ("", True),
        ('backend "gcs" {\n  }', True),
        ('backend "s3" {\n    bucket = "b"\n  }', False),
        ('backend "s3" {\n    bucket = "b"\n    use_lockfile = true\n  }', True),
        ('backend "s3" {\n    bucket = "b"\n    use_lockfile = false\n  }', False),
    ],
)
def test_whether_a_backend_has_locks(tmp_path: Path, backend: str, is_locked: bool) -> None:
    assert recipe(tmp_path, main__tf=f"terraform {{\n  {backend}\n}}\n").is_locked is is_locked


def test_variables_and_modules_in_json(tmp_path: Path) -> None:
    text = '{"variable": {"a": {"type": "string"}, "b": [{"default": 1}]}, "module": {"c": {"source": "../d"}}}'
    found = recipe(tmp_path / "root", main__tf__json=text)
    assert {name: "default" in attributes for name, attributes in found.blocks("variable")} == {"a": False, "b": True}
    recipe(tmp_path / "d", main__tf="")
    assert reach(tmp_path / "root") == tmp_path


def test_a_value_that_no_variable_takes(tmp_path: Path) -> None:
    found = recipe(tmp_path, main__tf='variable "region" {}\nvariable "filesystem_jail" {}\n')
    found.check({"region": {"a": 1}})
    with fails(
        UNKNOWN_VARIABLE, match=r"no variable filestore_jail \(did you mean 'filesystem_jail'\?\), nodes: correct"
    ):
        found.check(dict.fromkeys(["region", "filestore_jail", "nodes"]))


TYPED = """
variable "nodes" {
  type = list(object({
    name   = string
    policy = optional(object({ ids = optional(list(string)) }), { other = [] })
    labels = optional(map(object({ value = string })), {})
    "rest" = any # of which all is known
    none   = optional(object({}))
  }))
}
variable "anything" {}
"""


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"policies": {}}, r"nodes\.policies \(did you mean 'policy'\?\)"),
        ({"policy": {"ids": ["a"], "other": []}}, r"nodes\.policy\.other"),
        ({"none": {"a": 1}, "q": 1}, r"nodes\.none\.a, nodes\.q: correct"),
    ],
)
def test_a_field_that_no_variable_takes(tmp_path: Path, field: dict[str, Any], said: str) -> None:
    # What Terraform itself would report of another file says nothing of these.
    found = recipe(tmp_path, main__tf=TYPED, more__tf='variable "b" {\n')
    known = {"name": "a", "policy": {"ids": []}, "labels": {"a": {"value": "b"}}, "rest": {"a": {}}, "none": {}}
    found.check({"nodes": [known], "anything": [{"a": 1}]})
    with fails(UNKNOWN_VARIABLE, match=f"the recipe has no field {said}"):
        found.check({"nodes": [known, {**known, **field}]})


def test_an_override_may_give_a_variable_its_default(tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text('variable "a" {}\nvariable "b" {}\nvariable "c" {}\n')
    (tmp_path / "mine_override.tf").write_text('variable "a" {\n  default = 1\n}\n')
    assert RootModule.read(tmp_path).unset(["c"]) == ["b"]


def test_no_recipe(tmp_path: Path) -> None:
    with fails(NOT_A_RECIPE, match=r"has no \.tf files: use the folder"):
        RootModule.read(tmp_path)
    with fails(NOT_A_RECIPE, match="there is no folder"):
        RootModule.read(tmp_path / "nowhere")
    with fails(NOT_A_RECIPE, match="declares no variables, so region"):
        recipe(tmp_path, main__tf="").check({"region": 1})


def test_modules_above_a_recipe_belong_to_it(tmp_path: Path) -> None:
    recipe(tmp_path / "modules", main__tf="")
    recipe(tmp_path / "modules/a", main__tf='module "b" {\n  source = "../b"\n}\n')
    recipe(tmp_path / "modules/b", main__tf='module "far" {\n  source = "acme/far/cloud"\n}\n')
    (tmp_path / "installations").mkdir()
    recipe(tmp_path / "installations/example", main__tf='module "a" {\n  source = "../../modules/a"\n}\n')
    assert reach(tmp_path / "installations/example") == tmp_path
    assert reach(tmp_path / "modules/b") == tmp_path / "modules/b"


@pytest.mark.parametrize(
    ("source", "module"),
    [
        (Source("git::https://x.org/lib?ref=v1", "soperator"), "git::https://x.org/lib//soperator?ref=v1"),
        (Source("https://x.org/lib.git//soperator", "a/b", "v1"), "git::https://x.org/lib.git//soperator/a/b?ref=v1"),
        (Source("git@x.org:lib.git", "a"), "git@x.org:lib.git//a"),
        (Source("ssh://git@x.org/lib", "a", "v1"), "git::ssh://git@x.org/lib//a?ref=v1"),
        (Source("git::file:///srv/lib", "a"), "git::file:///srv/lib//a"),
        (Source("github.com/acme/lib", "a", "v1"), "github.com/acme/lib//a?ref=v1"),
        (Source("https://x.org/lib.zip?archive=zip", "a"), "https://x.org/lib.zip//a?archive=zip"),
    ],
)
def test_how_terraform_is_told_of_a_source(source: Source, module: str) -> None:
    assert source.module() == {"source": module}


def test_a_module_of_a_registry_has_a_version() -> None:
    said = Source("app.terraform.io/acme/cluster/nebius", "a", "1.2.0").module()
    assert said == {"source": "app.terraform.io/acme/cluster/nebius//a", "version": "1.2.0"}
