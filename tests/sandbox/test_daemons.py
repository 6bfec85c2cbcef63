"""Of all that a daemon has said before it ended, the line that names the cause."""

from __future__ import annotations

import pytest

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
