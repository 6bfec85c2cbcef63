"""A recipe's folder that has a state of its own."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.terraform import sources
from airflow_provider_soperator.terraform.failures import RECIPE_MISSING, STATE_ELSEWHERE
from airflow_provider_soperator.terraform.runs import Terraform
from airflow_provider_soperator.terraform.sources import Source, bring
from tests.terraform_errors import fails

DEFAULT, OF_RESEARCH = "terraform.tfstate", "terraform.tfstate.d/research/terraform.tfstate"


def keep(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"resources": [{}]}')


@pytest.mark.parametrize(
    ("there", "workspace", "used"),
    [
        (DEFAULT, None, DEFAULT),
        (DEFAULT, "default", DEFAULT),
        (DEFAULT, "research", OF_RESEARCH),
        (OF_RESEARCH, "research", OF_RESEARCH),
    ],
)
def test_a_local_state_is_not_left_behind_unless_it_is_in_use(
    tmp_path: Path, there: str, workspace: str | None, used: str
) -> None:
    recipe, into = tmp_path / "mine", tmp_path / "home/research/recipe"
    keep(recipe / there)
    (recipe / "main.tf").touch()

    def copy(workspace: str | None) -> None:
        bring(Terraform("terraform", {}), Source(str(recipe)), into, workspace)

    for other in {DEFAULT, OF_RESEARCH} - {used}:
        keep(into / other)
    with fails(STATE_ELSEWHERE, match=re.escape(f"copy the state to {into / used}")):
        copy(workspace)
    keep(into / used)
    copy(workspace)
    if there == OF_RESEARCH:
        copy("another")


def test_a_folder_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "main.tf").touch()
    with fails(RECIPE_MISSING, match="is a folder, which has no ref 'v2': check it out there, or"):
        bring(Terraform("terraform", {}), Source(str(tmp_path), ref="v2"), tmp_path / "copy")


def test_the_digest_is_of_what_the_recipe_consists_of(tmp_path: Path) -> None:
    recipe, into = tmp_path / "all/installations/mine", tmp_path / "home/research/recipe"
    (tmp_path / "all/modules/k8s/templates").mkdir(parents=True)
    (tmp_path / "all/modules/k8s/main.tf").write_text("# none\n")
    for name in ("mine", "others"):
        (tmp_path / "all/installations" / name).mkdir(parents=True)
    (recipe / "main.tf").write_text('module "k8s" {\n  source = "../../modules/k8s"\n}\n')
    found = []
    for path, text in (
        (recipe / "terraform.tfvars", "region = 1"),
        (tmp_path / "all/installations/others/terraform.tfvars", "region = 2"),
        (recipe / "terraform.tfstate", "{}"),
        (recipe / "terraform.tfvars", "region = 3"),
        (tmp_path / "all/modules/k8s/templates/values.yaml.tftpl", "a: 1"),
    ):
        path.write_text(text)
        root, digest = bring(Terraform("terraform", {}), Source(str(recipe)), into)
        # What a run writes there is none of it.
        (root / ".terraform.lock.hcl").touch()
        found.append(digest)
    assert [one != before for before, one in pairwise(found)] == [False, False, True, True]


def test_a_copy_that_was_not_completed_is_of_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    into = tmp_path / "home/research/recipe"
    for version, names in (("v1", "abd"), ("v2", "abcd")):
        (tmp_path / version).mkdir()
        for name in names:
            (tmp_path / version / f"{name}.tf").write_text(f"# {version}\n")
    monkeypatch.setattr(sources, "_download", lambda terraform, source, staging: (tmp_path / source.ref, "."))

    def copy(version: str) -> dict[str, str]:
        root, _ = bring(Terraform("terraform", {}), Source("git::https://example.org/lib", ref=version), into)
        return {path.name: path.read_text().strip("# \n") for path in root.glob("*.tf")}

    def die(source: Path, *arguments: Any, **options: Any) -> None:
        if source.name == "d.tf":
            raise KeyboardInterrupt
        shutil.copyfile(source, *arguments)

    into.parent.mkdir(parents=True)
    copy("v1")
    with monkeypatch.context() as dying:
        dying.setattr(shutil, "copy2", die)
        with pytest.raises(KeyboardInterrupt):
            copy("v2")
    assert copy("v1") == dict.fromkeys(("a.tf", "b.tf", "d.tf"), "v1")
