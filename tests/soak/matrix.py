"""The rest of the suite on every Slurm version, and with many more examples of hypothesis, by another seed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from sandbox.airflow.home import without_airflow
from tests.soak.rounds import Round

ROOT = Path(__file__).parent.parent.parent
#: Those that ask both versions of Slurm the same, and those that let hypothesis find examples.
TESTS = ("tests/contract", "tests/integration", "tests/unit", "tests/sandbox/test_fleet.py", "--each-slurm")
#: In an Airflow it is those that no other run has.
IN_AIRFLOW = ("tests/airflow", "-m", "soak")
OPTIONS = ("--soak", "-p", "xdist", "-n", "2", "--dist=loadgroup", "-q")
#: Seconds in which a suite that is told to end takes its sandboxes down.
GRACE = 60

PASSED = "runs of the suite on every Slurm version that passed"


class SuiteFailed(Exception):
    """Some of the tests have failed."""


def play(round_: Round) -> None:
    hypothesis = round_.dice("hypothesis").randrange(10**6)
    for tests in (IN_AIRFLOW, TESTS):
        _run(round_, *tests, *OPTIONS, f"--hypothesis-seed={hypothesis}")
    round_.checked[PASSED] += 1


def _run(round_: Round, *options: str) -> None:
    words = [sys.executable, "-m", "pytest", *options]
    round_.say(f"  {' '.join(words[1:])}")
    # It makes an Airflow home of its own.
    environment = without_airflow() | {"HYPOTHESIS_PROFILE": "soak"}
    suite = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)
    try:
        status = suite.wait()
    finally:
        _end(suite)
    if status:
        raise SuiteFailed(f"pytest ended with {status}; what it has said is above")


def _end(suite: subprocess.Popen[bytes]) -> None:
    """Have it end if it runs, and take with it what does not."""
    if suite.poll() is None:
        suite.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            suite.wait(GRACE)
    # Its workers, if they are left; what they have started ends with them (tests/keeper.py).
    with contextlib.suppress(ProcessLookupError):
        os.killpg(suite.pid, signal.SIGKILL)
    suite.wait()
