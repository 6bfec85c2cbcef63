"""The map of the provider, held against the tree: its rooms, the modules that it names, and names that stand once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import airflow_provider_soperator

ROOT = Path(airflow_provider_soperator.__file__).parent
MAP = (ROOT.parent / "docs" / "architecture.md").read_text()
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
#: Where DAG files import from, so that their names are settled.
PUBLIC = {"decorators", "operators", "sensors", "timetables"}


def rooms() -> set[str]:
    return {str(path.parent) for path in MODULES} - {"."}


def test_each_room_is_on_the_map() -> None:
    table = MAP.partition("## One sbatch task")[0]
    named = {name for name in re.findall(r"`([a-z_/]+)`", table) if (ROOT / name).is_dir()}
    assert named == rooms()


def test_the_floors_are_those_that_are_held() -> None:
    project = (ROOT.parent / "pyproject.toml").read_text()
    layers = re.findall(r'^    "([a-z_ :]+)",$', project.partition("layers = [")[2].partition("\n]")[0], re.M)
    held = [name.strip() for layer in layers for name in layer.split(":")]
    table = MAP.partition("## One sbatch task")[0]
    drawn = [name for name in re.findall(r"`([a-z_]+)`", table) if name in held]
    assert [*dict.fromkeys(drawn)] == held


def test_modules_on_the_map_are_there() -> None:
    named = set(re.findall(r"\b((?:[a-z_]+/)+[a-z_]+)\b", MAP)) - rooms()
    assert len(named) > 25
    assert {name for name in named if not (ROOT / f"{name}.py").exists()} == set()


def test_a_class_name_stands_once() -> None:
    names = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_a_module_has_the_name_of_at_most_one_other() -> None:
    names: dict[str, set[str]] = {}
    for path in MODULES:
        # Commands and HTTP calls for the same questions have the same names.
        room = str(path.parent).replace("slurm/rest", "slurm/requests")
        if path.stem != "__init__" and room not in PUBLIC:
            names.setdefault(path.stem, set()).add(room)
    assert {name: places for name, places in names.items() if len(places) > 2} == {}


def test_a_name_is_bound_once_in_a_module() -> None:
    """A second definition takes the place of the first without a word."""
    doubled = {}
    for path in MODULES:
        bound: list[str] = []
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                bound.append(node.name)
            elif isinstance(node, ast.Assign):
                bound += [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        if twice := [name for name, count in Counter(bound).items() if count > 1]:
            doubled[str(path)] = twice
    assert doubled == {}


@pytest.mark.parametrize("limit", [430])
def test_a_module_can_be_read_at_a_stretch(limit: int) -> None:
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path in MODULES}
    assert {path: lines for path, lines in lengths.items() if lines > limit} == {}
