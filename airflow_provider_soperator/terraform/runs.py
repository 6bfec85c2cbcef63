"""Runs of Terraform in processes that outlive their task, each identified by its folder.

An Airflow worker may be killed with all its child processes. So Terraform runs in its own session, under a shell that
records the exit code; its JSON output goes to a file, which the try that started it, or a later one, reads.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.terraform.failures import STATE_LOCKED, Diagnostic, errors, from_text
from airflow_provider_soperator.terraform.progress import ApplyProgress

#: The shell waits for a line before it runs anything, because no run may be without a record. While Terraform runs, it
#: touches a file, so that other machines with the same storage see that it is alive.
_WRAPPER = r"""
read -r word || exit 0
exec </dev/null
run=$1; shift
while [ ! -e "$run/rc" ] && kill -0 $$ 2>/dev/null; do touch "$run/beat"; sleep 5; done &
sh -c 'echo $$ >"$0/pid.new" && mv "$0/pid.new" "$0/pid" && exec "$@"' "$run" "$@" >"$run/out" 2>"$run/err"
echo $? >"$run/rc.new" && mv "$run/rc.new" "$run/rc"
"""
#: Seconds between two polls, and between two bars.
_PAUSE = 0.2
_BAR = 15.0
#: Seconds without a heartbeat after which a run on another machine counts as dead.
_SILENCE = 60.0
#: Number of runs to keep, for inspection.
_KEPT = 20
#: The plan file of a run, as long as it can be applied.
PLAN = "plan"
_NAME = re.compile(r"(\d+)-(\w+)")


@dataclass(frozen=True)
class RunRecord:
    """Record of a run, written before its start."""

    kind: str
    argv: list[str]
    host: str
    #: Where its process ids are unique.
    pid_namespace: str
    #: The user, as Terraform writes it into a lock.
    who: str
    started: float
    #: Process id of the shell, and its start by the kernel's clock, because process ids are reused.
    pid: int
    began: int
    digest: str = ""


class Run:
    """A run of Terraform, identified by its folder, with its progress as far as that was read."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = folder
        # A child process has to be waited for, or it would stay a zombie.
        self._process = process
        self.record = RunRecord(**json.loads((folder / "record.json").read_text()))
        self.progress = ApplyProgress()
        #: Bytes of its output that were read.
        self._read = 0
        self.was_interrupted = False
        self._is_told = False

    @property
    def status(self) -> int | None:
        """Exit code of Terraform; None if it has not ended, or has died without recording one."""
        with suppress(FileNotFoundError, ValueError):
            return int((self.folder / "rc").read_text())
        return None

    @property
    def is_running(self) -> bool:
        if self._process:
            self._process.poll()
        # The exit code last, because the run may end in between.
        return self._lives() and self.status is None

    @property
    def was_killed(self) -> bool:
        """True if it did not end in good order, for example by SIGKILL."""
        return not self.is_running and (self.status is None or self.status > 128)

    @property
    def is_here(self) -> bool:
        """True if its processes are on this machine and in this container."""
        return self.record.pid_namespace == pid_namespace()

    @property
    def was_noticed(self) -> bool:
        """True if a task has processed its end."""
        return (self.folder / "noticed").exists()

    def notice(self) -> None:
        (self.folder / "noticed").touch()

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Terraform's diagnostics; for a run that died, one that says so."""
        found, path = tuple(self.progress.diagnostics), self.folder / "err"
        if self.status == 0 or errors(found):
            return found
        text = path.read_text(errors="replace") if path.exists() else ""
        printed = from_text(text)
        if errors(printed):
            return (*found, *printed)
        how = "was killed" if self.status is None or self.status > 128 else f"ended with exit code {self.status}"
        return (*found, Diagnostic("error", f"Terraform {how}", text.strip()))

    def read(self) -> list[str]:
        """Read what Terraform has printed since the last read; returns lines for the log."""
        with (self.folder / "out").open("rb") as out:
            out.seek(self._read)
            *whole, rest = out.read().split(b"\n")
            self._read = out.tell() - len(rest)
        # A provider may print other lines.
        events = filter(None, map(_event, whole))
        return [line for event in events for line in self.progress.take(event)]

    def follow(self, log: Logger, *, is_late: bool = False) -> None:
        """Wait for its end, and log its progress; what it had done before, if ``is_late``, in one line."""
        if is_late:
            self.read()
            log.info("%s", self.progress.bar(time.time()))
        is_over, next_bar = False, time.monotonic() + _BAR
        while not is_over:
            # Before the read, for its last output.
            is_over = not self.is_running
            for line in self.read():
                log.info("%s", line)
            self._tell()
            if self.progress.current and time.monotonic() >= next_bar:
                log.info("%s", self.progress.bar(time.time()))
                next_bar = time.monotonic() + _BAR
            if not is_over:
                time.sleep(_PAUSE)
        self.notice()
        for diagnostic in self.diagnostics:
            # The holder of a lock is logged once elsewhere.
            for line in () if STATE_LOCKED.is_in(diagnostic.summary) else diagnostic.lines():
                log.warning("%s", line)

    def interrupt(self) -> None:
        """Have Terraform stop in good order. May be called by a signal handler."""
        self.was_interrupted = True
        self._tell()

    def _tell(self) -> None:
        """Pass on the interrupt, once: on a second one Terraform would stop at once, and leave work unfinished.

        Before its first words it may still ignore signals.
        """
        if self.was_interrupted and self._read and not self._is_told and self.is_here and self.is_running:
            with suppress(ProcessLookupError):
                if pid := self._terraform():
                    os.kill(pid, signal.SIGINT)
                    self._is_told = True

    def _lives(self) -> bool:
        if not self.is_here:
            return self._beats()
        return _began(self.record.pid) == self.record.began or self._terraform() is not None

    def _terraform(self) -> int | None:
        """Terraform's process id, if it is in the session of the shell."""
        with suppress(FileNotFoundError, ValueError):
            pid = int((self.folder / "pid").read_text())
            fields = _stat(pid)
            if fields and int(fields[3]) == self.record.pid:
                return pid
        return None

    def _beats(self) -> bool:
        # By the clock of the storage, which both machines share.
        probe = self.folder / f"probe-{os.getpid()}"
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        beat = self.folder / "beat"
        last = beat.stat().st_mtime if beat.exists() else self.record.started
        return now - last < _SILENCE


def _event(line: bytes) -> Mapping[str, Any] | None:
    with suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict):
            return event
    return None


def pid_namespace() -> str:
    """Host, boot and container of this process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join((socket.gethostname(), boot, os.readlink("/proc/self/ns/pid")))


def start(runs: Path, kind: str, argv: Sequence[str], cwd: Path, env: Mapping[str, str], *, digest: str = "") -> Run:
    """Start a command in its own session. ``{run}`` in ``argv`` stands for the run's folder."""
    folder = _folder(runs, kind)
    argv = [word.replace("{run}", str(folder)) for word in argv]
    (folder / "out").touch()
    process = subprocess.Popen(
        ["/bin/sh", "-c", _WRAPPER, "sh", str(folder), *argv],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    host = socket.gethostname()
    record = RunRecord(
        kind=kind,
        argv=argv,
        host=host,
        pid_namespace=pid_namespace(),
        who=f"{_user()}@{host}",
        started=time.time(),
        pid=process.pid,
        began=_began(process.pid) or 0,
        digest=digest,
    )
    new = folder / "record.new"
    new.write_text(json.dumps(asdict(record), indent=1))
    os.replace(new, folder / "record.json")
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.close()
    return Run(folder, process)


def earlier(runs: Path) -> list[Run]:
    """The recorded runs, newest first."""
    return [Run(folder) for folder in _folders(runs) if (folder / "record.json").exists()]


def _folders(runs: Path) -> list[Path]:
    named = [folder for folder in runs.iterdir() if _NAME.fullmatch(folder.name)] if runs.exists() else []
    return sorted(named, key=lambda folder: int(folder.name.partition("-")[0]), reverse=True)


def _folder(runs: Path, kind: str) -> Path:
    runs.mkdir(exist_ok=True)
    there = _folders(runs)
    for old in there[_KEPT:]:
        # An apply that waits for a lock is retried, and needs its plan each time.
        if not (old / PLAN).exists():
            shutil.rmtree(old, ignore_errors=True)
    number = int(there[0].name.partition("-")[0]) + 1 if there else 1
    folder = runs / f"{number:04}-{kind}"
    folder.mkdir()
    return folder


def _user() -> str:
    """The user name as Terraform sees it; in a container a user may have none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def _began(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on, see proc(5); None for a process that has ended."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of the command, before the state, may contain blanks and parentheses.
    fields = said.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields
