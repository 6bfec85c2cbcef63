"""What all commands share: how they end when the terminal is at fault."""

from __future__ import annotations

import io
import os
import sys
from argparse import Namespace

import pytest

from airflow_provider_soperator.cli.terminal import agreed, command, show


@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("status", [None, 1])
def test_one_whose_output_is_not_read_to_its_end_does_not_say_that_all_is_well(
    monkeypatch: pytest.MonkeyPatch, flush: bool, status: int | None
) -> None:
    read, write = os.pipe()
    os.close(read)

    @command
    def wordy(args: Namespace) -> None:
        print("a problem", flush=flush)
        if status:
            sys.exit(status)

    with os.fdopen(write, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as end:
            wordy(Namespace())
    assert end.value.code == 141


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_rows_that_are_not_read_to_their_end_end_the_command_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    read, write = os.pipe()
    os.close(read)
    rows = [{"node": f"worker-{number}"} for number in range(9)]
    with os.fdopen(write, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        with pytest.raises(SystemExit) as end:
            command(lambda args: show(args, rows))(Namespace(output=output))
    assert end.value.code == 141


def test_an_end_of_input_in_place_of_an_answer_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = io.StringIO()
    monkeypatch.setattr(nothing, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", nothing)
    with pytest.raises(SystemExit) as end:
        command(lambda args: agreed(args, "Release it?"))(Namespace(yes=False))
    assert end.value.code == "Nothing was changed."


@pytest.mark.parametrize(("is_terminal", "said"), [(True, b"? worker"), (False, rb"\u2588 worker")])
def test_a_terminal_without_bars_shows_the_rest(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, said: bytes
) -> None:
    printed = io.BytesIO()
    output = io.TextIOWrapper(printed, encoding="latin-1")
    monkeypatch.setattr(output, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", output)
    command(lambda args: print("█ worker", flush=True))(Namespace())
    assert printed.getvalue().strip() == said
