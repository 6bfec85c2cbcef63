"""What ``airflow --help`` has of the command, and the form that all commands have."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.cli import terminal
from airflow_provider_soperator.cli.definition import get_cli_commands
from airflow_provider_soperator.errors import CapacityMistake, ConnectionMistake
from airflow_provider_soperator.get_provider_info import get_provider_info
from tests.unit.cli.calls import called, parsed

ROOT = Path(__file__).parents[3]


def test_airflow_has_each_command() -> None:
    assert get_provider_info()["cli"] == ["airflow_provider_soperator.cli.definition.get_cli_commands"]
    [group] = get_cli_commands()
    names = [one.name for one in group.subcommands]
    assert names == [
        "doctor", "board", "jobs", "nodes", "health", "why", "leftovers", "plan", "lint", "import", "schedule", "shift",
        "override", "advise", "connection",
    ]  # fmt: skip
    for one in group.subcommands:
        flags = {flag for arg in one.args for flag in arg.flags}
        assert {"--output", "--json", "--verbose"} <= flags, one.name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["jobs"], {"output": "table", "conn_id": "soperator_default", "state": "active"}),
        (["jobs", "--json"], {"output": "json"}),
        (["jobs", "--output", "yaml"], {"output": "yaml"}),
        (["doctor", "--feature", "health", "--feature", "exec"], {"feature": ["health", "exec"], "block": ""}),
        (["plan", "train"], {"dag": "train", "task": None, "conf": ""}),
        (["lint", "dags", "more.py"], {"dags": ["dags", "more.py"], "conn_id": ""}),
        (["shift", "nights", "training=2", "--plan"], {"sizes": ["training=2"], "plan": True, "yes": False}),
        (["advise", "nights"], {"dag": "nights", "days": 28, "jobs": "", "requests": None, "requeued": None}),
        (["leftovers", "--release", "--yes"], {"names": [], "release": True, "yes": True}),
    ],
)
def test_arguments(words: list[str], expected: dict[str, Any]) -> None:
    args = vars(parsed(*words))
    assert {name: args[name] for name in expected} == expected


def test_the_calls_in_the_documents_are_such() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = [line for page in pages for line in re.findall(r"^    airflow soperator (.*)$", page.read_text(), re.M)]
    assert len(found) > 15
    for line in found:
        parsed(*shlex.split(line.partition(" > ")[0], comments=True))


def test_a_feature_that_the_doctor_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    status = called(capsys, "doctor", "--feature", "helth").status
    assert status == "There is no feature helth: did you mean 'health'?"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionMistake("the host is x: mend it"), "The host is x: mend it."),
        (CapacityMistake("too much", "give less"), "Too much: give less."),
        (ValueError("no such thing: name another"), "No such thing: name another."),
        (TypeError("a bug"), "TypeError: a bug. The option --verbose shows where."),
    ],
)
def test_an_error_is_a_sentence(error: Exception, said: str) -> None:
    @terminal.command
    def fails(args: argparse.Namespace) -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        fails(argparse.Namespace())
    assert end.value.code == said
    with pytest.raises(type(error)):
        fails(argparse.Namespace(verbose=True))


def test_nothing_is_changed_without_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.agreed(argparse.Namespace(yes=True), "Do it?")
    with pytest.raises(SystemExit, match="Repeat it with --yes"):
        terminal.agreed(argparse.Namespace(yes=False), "Do it?")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, agrees in (("y", True), ("", False)):
        monkeypatch.setattr("builtins.input", lambda said=answer: said)
        if agrees:
            terminal.agreed(argparse.Namespace(yes=False), "Do it?")
        else:
            with pytest.raises(SystemExit, match="Nothing was changed"):
                terminal.agreed(argparse.Namespace(yes=False), "Do it?")
