"""A recipe in its folder, with a Terraform that only prints."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_provider_soperator.terraform.failures import UNKNOWN_VARIABLE, TerraformError
from airflow_provider_soperator.terraform.runs import Terraform
from airflow_provider_soperator.terraform.sources import Source
from airflow_provider_soperator.terraform.workspace import Workspace

#: What Terraform has to say of a value in a file of values that no variable takes.
TERRAFORM = r"""#!/bin/sh
case $1 in
version) echo "Terraform v1.9.0" ;;
plan) echo '{"type":"diagnostic","diagnostic":{"severity":"warning","summary":"Value for undeclared variable"}}' ;;
show) echo '{}' ;;
esac
"""


def test_a_value_that_terraform_ignores_is_refused_also_if_the_recipe_cannot_be_parsed_here(tmp_path: Path) -> None:
    recipe, binary = tmp_path / "recipe", tmp_path / "terraform"
    recipe.mkdir()
    (recipe / "main.tf").write_text('variable "size" {}\n')
    (recipe / "new.tf").write_text("of a newer { language\n")
    binary.write_text(TERRAFORM)
    binary.chmod(0o755)
    terraform, log = Terraform(str(binary), {"PATH": "/usr/bin:/bin"}), logging.getLogger(__name__)
    workspace = Workspace(tmp_path / "workspace", Source(str(recipe)), terraform, log, lambda text: None)
    workspace.init()
    with pytest.raises(TerraformError, match="Value for undeclared variable") as refused:
        workspace.plan({"sizee": 2})
    assert refused.value.cause is UNKNOWN_VARIABLE
