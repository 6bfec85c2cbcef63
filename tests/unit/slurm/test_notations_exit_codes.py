"""Exit codes: what ended a process, whoever tells it."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm.notations import ExitCode, signal_name


@pytest.mark.parametrize(
    ("text", "code", "killed_by", "words"),
    [
        ("0:0", ExitCode(), 0, "exit code 0"),
        ("1:0", ExitCode(1), 0, "exit code 1"),
        ("0:9", ExitCode(0, 9), 9, "killed by SIGKILL"),
        ("1:15", ExitCode(1, 15), 15, "exit code 1, killed by SIGTERM"),
        ("137:0", ExitCode(137), 9, "exit code 137 (a command in it was killed by SIGKILL)"),
        ("255:0", ExitCode(255), 0, "exit code 255"),
        ("127", ExitCode(127), 0, "exit code 127"),
        ("0:63", ExitCode(0, 63), 63, "killed by signal 63"),
        # Slurm's own: SIG_OOM, and ESLURMD_IO_ERROR, 4021, of which a wait status keeps seven bits.
        ("0:125", ExitCode(0, 125), 125, "out of memory (signal 125)"),
        (
            "0:53",
            ExitCode(0, 53),
            53,
            "not started, as the node could not open its output, error or input file (signal 53)",
        ),
    ],
)
def test_exit_codes(text: str, code: ExitCode, killed_by: int, words: str) -> None:
    read = ExitCode.parse(text)
    assert read == code
    assert read.killed_by == killed_by
    assert str(read) == words


@pytest.mark.parametrize("text", ["", "x", "1:", ":9", "-1:0", "1:2:3"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an exit code"):
        ExitCode.parse(text)


def test_signals_have_names() -> None:
    assert signal_name(15) == "SIGTERM"
    assert signal_name(63) == "signal 63"
