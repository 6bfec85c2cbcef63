"""The processes of an Airflow, each of which a test can end and start again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sandbox.airflow.home import airflow
from tests.patience import PATIENCE

#: Logs are read from the disk of this one machine: to serve them, too, each of these would import a web server.
_OPTIONS = {"scheduler": ("--skip-serve-logs",), "triggerer": ("--skip-serve-logs",)}
#: Lines of a log that are shown where something has gone wrong.
_LAST_LINES = 15


class Component:
    """One command of Airflow's that runs until it is told to end, in a process group of its own."""

    def __init__(self, name: str, environment: Mapping[str, str], logs: Path, niceness: int = 0) -> None:
        self.name = name
        self._niceness = niceness
        self.log = logs / f"{name}.log"
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert not self.is_running, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["nice", f"--adjustment={self._niceness}", *airflow(self.name, *_OPTIONS.get(self.name, ()))],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def end(self, how: signal.Signals = signal.SIGTERM, *, with_children: bool = True) -> None:
        """Send a signal, and wait until the process is gone; its children, if they are not meant, live on."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if with_children else os.kill)(self.pid, how)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill_group()
        if with_children:
            self.kill_group()

    @contextlib.contextmanager
    def slowed(self) -> Iterator[None]:
        """Let the process, not its children, run for a tenth of the time, as on a machine with much else to do."""
        is_over = threading.Event()

        def hold() -> None:
            while not is_over.wait(0.05):
                os.kill(self.pid, signal.SIGSTOP)
                is_over.wait(0.45)
                os.kill(self.pid, signal.SIGCONT)

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def kill_group(self) -> None:
        """End whatever is left of it, its children too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._process:
            self._process.wait(PATIENCE)

    def last_lines(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return f"--- {self.name} ({self.log})\n" + "\n".join(lines[-_LAST_LINES:])


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is not a dead one that nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def parent(pid: int) -> int:
    """The process that has started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_dead(pid: int, timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still lives after {timeout} s"
        time.sleep(0.05)
