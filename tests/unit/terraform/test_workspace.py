"""A recipe in its folder, with a Terraform that only prints."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.terraform.failures import (
    BACKEND_CHANGED,
    DESTRUCTION_REFUSED,
    INTERRUPTED,
    NO_WORKSPACES,
    PLAN_OUTDATED,
    STATE_LOCKED,
    TERRAFORM_FAILED,
    UNKNOWN_VARIABLE,
    Cause,
    TerraformError,
)
from airflow_provider_soperator.terraform.runs import Terraform
from airflow_provider_soperator.terraform.sources import Source
from airflow_provider_soperator.terraform.workspace import Workspace
from tests.terraform_errors import fails

#: What Terraform has to say of a value in a file of values that no variable takes.
TERRAFORM = r"""#!/bin/sh
case $1 in
version) echo "Terraform v1.9.0" ;;
plan) echo '{"type":"diagnostic","diagnostic":{"severity":"warning","summary":"Value for undeclared variable"}}' ;;
show) echo '{}' ;;
workspace) [ "$2" = show ] && echo default || { echo "workspaces not supported" >&2; exit 1; } ;;
esac
"""

#: It prints the values with which it plans.
PLANNER = r"""#!/bin/sh
case $1 in
version) echo "Terraform v1.9.0" ;;
plan) for one; do case $one in -var-file=*) cat "${one#*=}" >&2 ;; esac; done ;;
show) echo '{}' ;;
esac
"""


#: What it answers is in a file; another may be at work in the state, or it is to be moved.
ANSWERING = """#!/bin/sh
case $1 in
init) [ ! -e {0}/moved ] || { cat {0}/moved >&2; exit 1; } ;;
plan) [ ! -e {0}/locked ] || { cat {0}/locked; exit 1; }
    for one; do case $one in -out=*) touch "${one#*=}" ;; esac; done ;;
apply) cat {0}/applied; exit 1 ;;
show) cat {0}/shown ;;
esac
"""


def workspace_in(folder: Path, name: str | None = None, program: str = TERRAFORM) -> Workspace:
    recipe, binary = folder / "recipe", folder / "terraform"
    recipe.mkdir(exist_ok=True)
    (recipe / "main.tf").write_text('variable "size" {}\n')
    (recipe / "new.tf").write_text("of a newer { language\n")
    binary.write_text(program)
    binary.chmod(0o755)
    terraform, log = Terraform(str(binary), {"PATH": "/usr/bin:/bin"}), logging.getLogger(__name__)
    source = Source(str(recipe))
    return Workspace(folder / "workspace", source, terraform, log, lambda text: None, terraform_workspace=name)


def test_a_backend_without_workspaces_has_the_default_one(tmp_path: Path) -> None:
    workspace_in(tmp_path, "default").init()
    with fails(NO_WORKSPACES, match='use the workspace "default"'):
        workspace_in(tmp_path, "research").init()


def test_a_value_that_terraform_ignores_is_refused_also_if_the_recipe_cannot_be_parsed_here(tmp_path: Path) -> None:
    workspace = workspace_in(tmp_path)
    workspace.init()
    with pytest.raises(TerraformError, match="Value for undeclared variable") as refused:
        workspace.plan({"sizee": 2})
    assert refused.value.cause is UNKNOWN_VARIABLE


def test_a_task_plans_with_its_own_values_also_if_another_plans_in_the_workspace_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = workspace_in(tmp_path, program=PLANNER), workspace_in(tmp_path, program=PLANNER)
    one.init()
    other.init()
    start = one._start

    def late(*arguments: Any) -> Any:
        other.plan({"size": 2})
        return start(*arguments)

    monkeypatch.setattr(one, "_start", late)
    path = one.plan({"size": 1}).path
    assert path is not None
    assert json.loads((path.parent / "err").read_text()) == {"size": 1}


def test_a_command_for_a_person_is_told_with_the_folder_in_which_it_works(tmp_path: Path) -> None:
    workspace = workspace_in(tmp_path, program=ANSWERING.replace("{0}", str(tmp_path)))
    workspace.init()
    where = re.escape(f"in {tmp_path}/workspace/recipe, with the backend's keys in the environment")
    half = {"address": "a.b", "change": {"actions": ["delete", "create"]}, "action_reason": "replace_because_tainted"}
    (tmp_path / "shown").write_text(json.dumps({"resource_changes": [half]}))
    plan = workspace.plan({"size": 2})
    with fails(DESTRUCTION_REFUSED, match=rf"`terraform untaint a\.b` {where}"):
        plan.refuse_destruction()
    lock = {"severity": "error", "summary": "Error acquiring the state lock", "detail": "Lock Info:\n  ID: 4711"}
    (tmp_path / "locked").write_text(json.dumps({"type": "diagnostic", "diagnostic": lock}) + "\n")
    with fails(STATE_LOCKED, match=f"`terraform force-unlock 4711` {where}"):
        workspace.plan({"size": 2})
    (tmp_path / "moved").write_text("\nError: Error asking for state migration action: input is disabled\n")
    with fails(BACKEND_CHANGED, match=f"`terraform init -migrate-state` {where}, or set the backend that it had"):
        workspace.init()


STEP = {
    "@timestamp": "2026-11-22T02:27:24.925538Z",
    "type": "apply_start",
    "hook": {"resource": {"addr": "a.b"}, "action": "create"},
}


def answering(folder: Path, events: list[Any]) -> Workspace:
    """A workspace in which one resource is to be made, and in which an apply has these events, and fails."""
    created = {"address": "a.b", "change": {"actions": ["create"]}}
    (folder / "shown").write_text(json.dumps({"resource_changes": [created]}))
    (folder / "applied").write_text("".join(f"{json.dumps(one)}\n" for one in events))
    workspace = workspace_in(folder, program=ANSWERING.replace("{0}", str(folder)))
    workspace.init()
    return workspace


@pytest.mark.parametrize(
    ("summary", "events", "cause", "has_begun"),
    [
        ("Error acquiring the state lock", [], STATE_LOCKED, False),
        ("Saved plan is stale", [], PLAN_OUTDATED, False),
        ("no such host", [], TERRAFORM_FAILED, False),
        ("no such host", [STEP], TERRAFORM_FAILED, True),
    ],
)
def test_an_apply_begins_with_its_first_step(
    tmp_path: Path, summary: str, events: list[Any], cause: Cause, has_begun: bool
) -> None:
    said = {"type": "diagnostic", "diagnostic": {"severity": "error", "summary": summary}}
    workspace = answering(tmp_path, [*events, said])
    plan = workspace.plan({"size": 2})
    with fails(cause):
        workspace.apply(plan)
    assert workspace.has_begun is has_begun


def test_an_apply_that_was_interrupted_before_its_start_has_not_begun(tmp_path: Path) -> None:
    workspace = answering(tmp_path, [STEP])
    plan = workspace.plan({"size": 2})
    workspace.interrupt()
    with fails(INTERRUPTED, match="was not started"):
        workspace.apply(plan)
    assert not workspace.has_begun
