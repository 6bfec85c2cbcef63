"""The program on the node, as far as it needs no API server."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_soperator.executors import runner
from tests.patience import PATIENCE


def test_what_is_gone_or_withdrawn_is_not_started(tmp_path: Path) -> None:
    file = tmp_path / "4ba52d8a-b0d3-4549-8d3d-a46be62cefc6"
    assert runner._run(file) == runner.GONE
    file.write_text(json.dumps({"workload": {}}))
    with pytest.raises(ValueError, match="ExecuteTask"):
        runner._run(file)
    Path(f"{file}{runner.WITHDRAWN}").touch()
    assert runner._run(file) == runner.NOT_WANTED


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_an_api_server_that_is_not_reached_is_told(library: str) -> None:
    """Whatever the Airflow on the node speaks HTTP with."""
    unreached = type("ConnectError", (Exception,), {"__module__": f"{library}._exceptions"})
    assert runner._code_of(unreached("Connection refused")) == runner.UNREACHED
    assert runner._code_of(OSError("no space left")) == 1


#: Two tasks of one job, whose supervisors take a while to end them, and a third one that has not begun.
TASKS = """
import os, signal, sys, time
from pathlib import Path
from airflow_provider_soperator.executors import runner

def run(file):
    def end(*_):
        time.sleep(0.3)
        file.with_suffix(".ended").touch()
        os._exit(0)
    signal.signal(signal.SIGTERM, end)
    file.touch()
    # A signal just before a long sleep would be seen after it.
    while True:
        time.sleep(0.1)

runner._prepare, runner._run = lambda: None, run
sys.exit(runner.main(sys.argv[1], ["a", "b", "c"]))
"""


def test_a_job_that_is_told_to_end_waits_for_all_of_its_tasks(tmp_path: Path) -> None:
    words = [sys.executable, "-c", TASKS, str(tmp_path)]
    with subprocess.Popen(words, env=os.environ | {"SLURM_CPUS_ON_NODE": "2"}, start_new_session=True) as job:
        while len([*tmp_path.iterdir()]) < 2:
            assert job.poll() is None
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGTERM)
        assert job.wait(PATIENCE) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"a", "b", "a.ended", "b.ended"}


def test_a_supervisor_is_not_kept_by_pipes_that_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    monkeypatch.setattr(selectors.DefaultSelector, "select", lambda self, timeout=None: waits.append(timeout))
    runner.wait_for_nothing_briefly()
    reading, writing = os.pipe()
    with selectors.DefaultSelector() as selector, os.fdopen(writing, "wb"), os.fdopen(reading, "rb") as pipe:
        for timeout in (60.0, 0.0, None):
            selector.select(timeout)
        selector.register(pipe, selectors.EVENT_READ)
        selector.select(60.0)
    assert waits == [0.02, 0.0, None, 60.0]
