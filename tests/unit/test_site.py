"""The documentation as a site: it builds without a warning, so that each link and anchor leads somewhere."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from airflow_provider_soperator.cli.definition import get_cli_commands
from sandbox.settings import SOPERATOR_OF_SLURM, SUITES

ROOT = Path(__file__).parents[2]
PROJECT = metadata("airflow-provider-soperator")
README = (ROOT / "README.md").read_text()


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
    build(config)
    assert (tmp_path / "search/search_index.json").exists()
    # A file of the repository that a page links to is a page, too.
    assert "SbatchPipeline" in (tmp_path / "dags/train_pipeline.py/index.html").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_code_in_lists_is_code_in_the_site_as_well(path: Path) -> None:
    # GitHub wants 6 or 7 spaces there, Markdown in Python 8.
    item = re.compile(r"^(?:- |\d+\. ).*\n(?:(?: .*)?\n)*?\n {5,7}\S.*", re.MULTILINE)
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert item.findall(text) == []


def test_links_of_the_readme_lead_somewhere() -> None:
    # The site has a page of its own in its place.
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_ci_runs_a_command_of_the_readme() -> None:
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("make ")]
    assert commands
    assert [command for command in commands if f"\n    {command} " not in README] == []


def test_commands_of_the_documentation_are_there() -> None:
    [group] = get_cli_commands()
    pages = [README, *(path.read_text() for path in (ROOT / "docs").glob("*.md"))]
    named = {name for text in pages for name in re.findall(r"airflow soperator ([a-z]+)", text)}
    assert len(named) > 5
    assert named - {command.name for command in group.subcommands} == set()


def test_each_example_is_on_the_page_of_examples() -> None:
    shown = re.findall(r"^\| \[\w+\]\(\.\./dags/(\w+\.py)\)", page("examples.md"), re.MULTILINE)
    assert sorted(shown) == sorted(path.name for path in (ROOT / "dags").glob("*.py"))


def test_each_extra_is_in_the_table() -> None:
    table = page("install.md").partition("## Extras")[2].partition("## Where")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(PROJECT.get_all("Provides-Extra") or ())


@pytest.mark.parametrize(
    ("row", "versions"),
    [
        ("Airflow", re.findall(r"^VERSIONS := (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()),
        ("Slurm", list(SUITES)),
        ("Soperator", list(SOPERATOR_OF_SLURM.values())),
        ("Python of Airflow", [PROJECT["Requires-Python"].removeprefix(">=")]),
    ],
)
def test_the_support_matrix_has_what_tests_run_on(row: str, versions: list[str]) -> None:
    [cell] = re.findall(rf"^\| {row} \| ([^|]*) \|", page("support.md"), re.MULTILINE)
    assert [version for version in versions if version not in cell] == []
