"""The end of a daemon: the line that names its cause, of all that was said, and whether it has come."""

from __future__ import annotations

import os
import subprocess

import psutil
import pytest

from sandbox import control
from sandbox.daemons import complaint

INCLUDED = 'slurmctld: error: "Include" failed in file /etc/slurm/slurm.conf line 9'
UNREAD = "slurmctld: fatal: Unable to process configuration file"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["error: Parsing error at unrecognized key: Nonsense", INCLUDED, UNREAD], 0),
        (["error: cannot find preempt plugin", "fatal: failed to initialize preempt plugin", "note: it ends"], 1),
        (["error: cannot find scheduler plugin for sched/no_such", "note: it ends"], 0),
        (["it listens", "it ends"], 1),
    ],
    ids=["a key", "a plugin", "an error alone", "no error"],
)
def test_the_cause_of_an_end(lines: list[str], cause: int) -> None:
    assert complaint("\n".join([*lines, ""])) == lines[cause]


def test_a_daemon_that_has_said_nothing() -> None:
    assert complaint("\n") == "it said nothing"


def test_a_process_that_is_collected_while_it_is_looked_at_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as program:
        gone = psutil.Process(program.pid)

    def refuse(path: str) -> str:
        raise PermissionError(path)

    monkeypatch.setattr(os, "readlink", refuse)
    assert control._ended(gone)
    assert not control._ended(psutil.Process())
