"""What tests have started ends with the process that ran them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.patience import PATIENCE

#: A server, as those of an Airflow: out of reach of a Ctrl-C, and with a title that takes the place of its environment.
_TEST = """
import os, subprocess, sys, tempfile, time
SERVER = (
    "import os, pathlib, time, setproctitle; setproctitle.setproctitle('a server' + 9999 * '.'); "
    "pathlib.Path({up!r}).write_text(str(os.getpid())); time.sleep(600)"
)
def test_it():
    tempfile.mkdtemp(prefix=f"airflow-home-{{os.getpid()}}-")
    subprocess.Popen([sys.executable, "-c", SERVER], start_new_session=True)
    time.sleep(600)
"""


#: What happens to the run, and to its worker.
ENDS: dict[str, Callable[[psutil.Process, psutil.Process], None]] = {
    # As a terminal does it.
    "interrupted": lambda run, worker: os.killpg(run.pid, signal.SIGINT),
    "killed": lambda run, worker: run.kill(),
    "worker_killed": lambda run, worker: worker.kill(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_server_ends_with_its_test(tmp_path: Path, end: Callable[[psutil.Process, psutil.Process], None]) -> None:
    up = tmp_path / "up"
    (tmp_path / "test_it.py").write_text(_TEST.format(up=str(up)))
    words = ["-p", "xdist", "-p", "tests.keeper", "-p", "no:cacheprovider", "-n1", "--max-worker-restart=0"]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *words, str(tmp_path), f"--rootdir={tmp_path}", "-c", os.devnull],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        # Of a run in the background of a script it would be ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as run:
        try:
            wait(lambda: up.exists() and up.read_text(), run)
            server = psutil.Process(int(up.read_text()))
            worker = psutil.Process(server.ppid())
            end(psutil.Process(run.pid), worker)
            server.wait(PATIENCE)
            worker.wait(PATIENCE)
            wait(lambda: not [*Path(tempfile.gettempdir()).glob(f"airflow-home-{worker.pid}-*")])
        finally:
            run.kill()


def wait(condition: Callable[[], object], run: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert run is None or run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_copy_of_a_test_ends_with_it() -> None:
    program = "import time; from tests.forks import forked\n"
    program += "with forked(lambda: time.sleep(600)) as pid: print(pid, flush=True); time.sleep(600)\n"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        copy = psutil.Process(int(test.stdout.readline()))
        test.kill()
        copy.wait(PATIENCE)
