"""A pytest plugin: once a process that runs tests has ended, however it has, all that it has started is gone, too.

Servers are in sessions of their own, where no Ctrl-C reaches them, and a process that is killed ends nothing. So each
has a keeper beside it. What it has started is known by a mark in the environment, which children inherit.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

#: The variable with the mark. What begins a run of its own in a run has a keeper and a mark of its own.
MARK = "SOPERATOR_TEST_RUN"


def pytest_sessionstart(session: pytest.Session) -> None:
    # The process that hands tests to others starts nothing that outlives them.
    if session.config.getoption("dist", "no") == "no":
        start()


def start() -> None:
    """Have what this process starts from now on end with it."""
    os.environ.pop(MARK, None)
    mark = secrets.token_hex(16)
    subprocess.Popen(
        [sys.executable, "-m", "tests.keeper", str(os.getpid()), mark],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.environ[MARK] = mark
    # Titles of processes stay where their words are, and leave the environment readable (setproctitle).
    os.environ["SPT_NOENV"] = "1"


def keep(process: int, mark: str) -> None:
    """Wait for the end of a process, and end what has its mark."""
    # A copy of the process that lives on would hold a pipe open: what tells is the process itself.
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(process)
        # It may have ended, and its number gone to another, before it was watched.
        if os.getppid() == process:
            select.select([watched], [], [])
    end(mark)
    # An Airflow's home and database have the process in their names, which removes them itself if it is not killed.
    for folder in Path(tempfile.gettempdir()).glob(f"airflow-*-{process}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def end(mark: str) -> None:
    """End all processes that have a mark, and remove their sandboxes."""
    # Each run has a keeper, few of which have anything to do: it is small until then.
    import psutil

    from sandbox.control import Init
    from sandbox.lifecycle import all_names, remove_remains
    from sandbox.settings import Settings

    def marked() -> set[psutil.Process]:
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == mark:
                    found.add(process)
        return found

    # What is ended last may have started more.
    while left := marked():
        sandboxes = {name: outer for name in all_names() if (outer := Init(Settings(name=name).paths).outer()) in left}
        inside = {process for outer in sandboxes.values() for process in outer.children(recursive=True)}
        # Those first that might hold the lock of a sandbox, or bring it up again.
        for process in left - inside - {*sandboxes.values()}:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for name in sandboxes:
            remove_remains(name)


if __name__ == "__main__":
    keep(int(sys.argv[1]), sys.argv[2])
