"""A recipe's folder that has a state of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_soperator.terraform.failures import STATE_ELSEWHERE
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
