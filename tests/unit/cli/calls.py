"""Calls of the command as Airflow makes them: parsed by its parser, with what was printed and the exit status."""

from __future__ import annotations

import argparse
import json
from typing import Any, NamedTuple

import pytest

from airflow_provider_soperator.cli.definition import get_cli_commands


class Called(NamedTuple):
    """How a call has ended. ``status`` is a sentence for an error."""

    out: str
    err: str
    status: int | str | None

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.out)
        return rows


def parsed(*words: str) -> argparse.Namespace:
    from airflow.cli.cli_parser import _add_command

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for group in get_cli_commands():
        _add_command(commands, group)
    return parser.parse_args(["soperator", *words])


def called(capsys: pytest.CaptureFixture[str], *words: str) -> Called:
    args = parsed(*words)
    status: int | str | None = 0
    with pytest.MonkeyPatch.context() as patch:
        # A command is a process of its own, which has a database.
        patch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
        try:
            args.func(args)
        except SystemExit as end:
            status = end.code
    printed = capsys.readouterr()
    return Called(printed.out, printed.err, status)
