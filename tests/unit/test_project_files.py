"""What is read elsewhere: CI only calls what developers call, actions are pinned, the registry's file is the tree's.

``python -m tests.unit.test_project_files`` writes the registry's file.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_soperator.get_provider_info import get_provider_info

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
REGISTRY = ROOT / ".airflow-registry.yaml"


def read(file: Path) -> dict[str, Any]:
    return yaml.load(file.read_text(), yaml.BaseLoader)  # as text: `on` is no truth


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in WORKFLOWS:
        for name, job in read(file)["jobs"].items():
            yield f"{file.stem}: {name}", job


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in jobs():
        for step in job.get("steps", ()):
            yield name, step


def is_ours(words: list[str]) -> bool:
    """Whether a command is one that the project has."""
    match words:
        case ["make", target, *options]:
            return target in TARGETS and all(option.startswith("ARGS=") for option in options)
        case [".ci/debian", _, *command]:
            return is_ours(command)
        case [command]:
            return os.access(ROOT / command, os.X_OK)
    return False


def test_workflows_call_only_our_own_commands() -> None:
    commands = [line for _, step in steps() for line in step.get("run", "").splitlines()]
    assert len(commands) > 4
    assert [line for line in commands if not is_ours(shlex.split(line))] == []
    # As CI calls it everywhere.
    assert '.ci/debian "$DEBIAN" .ci/run' in commands


def test_a_command_that_is_not_there_would_be_found() -> None:
    assert not is_ours(["make", "everything"])
    assert not is_ours([".ci/debian", "trixie", "make", "everything"])
    assert not is_ours(["curl"])


def test_actions_are_pinned_and_say_their_version() -> None:
    for file in WORKFLOWS:
        used = re.findall(r"uses: (.*)", file.read_text())
        assert used
        for one in used:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/\w+\.yml", one), one


def test_jobs_have_few_rights_and_an_end() -> None:
    for file in WORKFLOWS:
        assert read(file)["permissions"] == {"contents": "read"}
    for name, job in jobs():
        assert "uses" in job or int(job["timeout-minutes"]) <= 90, name
    for name, step in steps():
        # A title or a branch in a command would be carried out.
        assert "${{" not in step.get("run", ""), name
        assert "checkout" not in step.get("uses", "") or step["with"]["persist-credentials"] == "false"


def test_issue_forms_have_what_github_asks_for() -> None:
    forms = sorted(GITHUB.glob("ISSUE_TEMPLATE/[0-9]*.yml"))
    assert len(forms) == 2
    for form in map(read, forms):
        assert {"name", "description", "body"} <= form.keys()
        ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(set(ids)) == len(ids)


def test_code_owners_own_what_is_there() -> None:
    lines = [line.split() for line in (GITHUB / "CODEOWNERS").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0][0] == "*"
    assert [path for path, *_ in lines[1:] if not (ROOT / path.lstrip("/")).exists()] == []
    assert all(owner.startswith("@") for _, *owners in lines for owner in owners)


def test_the_root_of_the_image_is_built_from_few_files(tmp_path: Path) -> None:
    """A change of another file does not build it again, and nothing is installed by then."""
    (copied,) = re.findall(r"^COPY (sandbox/__init__.py .*) sandbox/$", (ROOT / "docker/Dockerfile").read_text(), re.M)
    (tmp_path / "sandbox").mkdir()
    for name in copied.split():
        shutil.copy(ROOT / name, tmp_path / name)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from sandbox.rootfs import RootCache; RootCache()"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)


# ----------------------------------------------------------------------------------------- the registry of providers


def registry() -> str:
    """The file from which Airflow's registry of providers reads what there is, one class a line."""
    from tests.unit.test_provider_info import KINDS, PUBLIC

    info = get_provider_info()
    described = {
        "package-name": info["package-name"],
        "display-name": info["name"],
        "description": "Slurm on Kubernetes: jobs, pipelines, Python functions, GPU capacity and clusters as tasks.",
    }
    text = "# For Airflow's registry of providers; `python -m tests.unit.test_project_files` writes it.\n"
    text += yaml.safe_dump(described, sort_keys=False, width=200)
    listed: dict[str, dict[str, str]] = {kind: {} for kind in (*KINDS, "decorators", "other")}
    for module, names in PUBLIC.items():
        for name in names:
            found = getattr(import_module(f"airflow_provider_soperator.{module}"), name)
            room = module.partition(".")[0]
            is_listed = isinstance(found, type) and room in KINDS and issubclass(found, KINDS[room])
            listed[room if is_listed else "other"][f"airflow_provider_soperator.{module}.{name}"] = said(found)
    for group in info["triggers"]:
        for module in group["python-modules"]:
            for name, found in vars(import_module(module)).items():
                # Those that people name in DAGs: the others follow tasks.
                if name.endswith("Trigger") and found.__module__ == module and ".events" in module:
                    listed["triggers"][f"{module}.{name}"] = said(found)
    for decorator in info["task-decorators"]:
        module, _, name = decorator["class-name"].rpartition(".")
        listed["decorators"][decorator["class-name"]] = said(getattr(import_module(module), name))
    entries = {
        kind: [{"module": path, "description": text} for path, text in sorted(found.items())]
        for kind, found in listed.items()
    }
    return text + yaml.safe_dump(entries, sort_keys=False, width=200)


def said(found: Any) -> str:
    """The first sentence of a docstring."""
    sentence = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
    return sentence.replace("``", "`")


def test_the_registry_is_told_of_what_there_is() -> None:
    assert REGISTRY.read_text() == registry()


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks", "triggers", "decorators"])
def test_the_registry_has_each_kind(kind: str) -> None:
    entries = read(REGISTRY)[kind]
    assert entries
    assert all(len(entry["description"]) > 20 for entry in entries)


if __name__ == "__main__":
    REGISTRY.write_text(registry())
    print(f"wrote {REGISTRY}", file=sys.stderr)
