"""The binary: short commands, and runs in processes that outlive their task, each identified by its folder.

An Airflow worker may be killed with all its child processes. So Terraform runs in its own session, under a shell that
records the exit code; its JSON output goes to a file, which the try that started it, or a later one, reads.
"""

from __future__ import annotations

import fcntl
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.terraform.failures import (
    NO_TERRAFORM,
    STATE_LOCKED,
    Diagnostic,
    errors,
    explain,
    from_text,
)
from airflow_provider_soperator.terraform.progress import ApplyProgress
from airflow_provider_soperator.values import Plain, without_airflow

#: Variables that would change Terraform's output, arguments or folders.
_DROPPED = re.compile(r"TF_(LOG|CLI_ARGS|INPUT|WORKSPACE|DATA_DIR|REATTACH).*")
_SET = {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "GIT_TERMINAL_PROMPT": "0"}
#: While Terraform runs, the shell touches a file, so that other machines with the same storage see that it is alive.
_WRAPPER = r"""
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


def find(name: str | None) -> str:
    """The path of a binary, given by name or path; by default of Terraform or OpenTofu."""
    for one in [name] if name else ("terraform", "tofu"):
        if path := shutil.which(os.path.expanduser(one)):
            return path
    raise NO_TERRAFORM.error(f"{name or 'terraform'} is not on PATH of this machine")


def environment(base: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Environment for Terraform and a recipe's scripts: the Airflow worker's, cleaned, and ``added``."""
    kept = {name: value for name, value in without_airflow(base).items() if not _DROPPED.fullmatch(name)}
    return {**kept, **_SET, **added}


@dataclass(frozen=True)
class Terraform:
    """A binary with an environment."""

    path: str
    env: Mapping[str, str] = field(repr=False)

    def run(self, *args: str, cwd: Path) -> str:
        """Return the output of a short command, which may be interrupted without harm; raise its error if it fails."""
        # In its own session: a kill of the Airflow worker's process group must not leave a half-written file.
        try:
            done = subprocess.run(
                [self.path, *args],
                cwd=cwd,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise NO_TERRAFORM.error(f"{self.path} cannot be run ({error})") from error
        if done.returncode:
            words = (done.stderr or done.stdout).strip()
            untold = [Diagnostic("error", words.splitlines()[0], words)] if words else []
            raise explain(from_text(f"{done.stdout}\n{done.stderr}") or untold, args[0])
        return done.stdout

    def document(self, *args: str, cwd: Path) -> Any:
        return json.loads(self.run(*args, cwd=cwd))


@dataclass(frozen=True)
class RunRecord(Plain):
    """Record of a run, written before its start. A newer version may keep more in it."""

    kind: str
    argv: list[str]
    host: str
    #: Where its process ids are unique.
    pid_namespace: str
    #: The user, as Terraform writes it into a lock.
    who: str
    started: float
    #: The process of the task that has started it.
    starter: int = 0


class Run:
    """A run of Terraform, identified by its folder, with its progress as far as that was read."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = folder
        # A child process has to be waited for, or it would stay a zombie.
        self._process = process
        self.record = RunRecord.read(json.loads((folder / "record.json").read_text()))
        self.progress = ApplyProgress()
        #: Bytes of its output that were read.
        self._read = 0
        self.was_interrupted = False
        self._is_told = False

    @property
    def status(self) -> int | None:
        """Exit code of Terraform; None if it has not ended, or has died without recording one."""
        return self._number("rc")

    @property
    def pid(self) -> int | None:
        """Process id of Terraform; None if it was not started."""
        return self._number("pid")

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
    def is_attended(self) -> bool:
        """True while another task, that has started it, is alive."""
        starter = self.record.starter
        return self.is_here and starter not in (0, os.getpid()) and os.path.exists(f"/proc/{starter}/exe")

    @property
    def was_noticed(self) -> bool:
        """True if a task has processed its end."""
        return (self.folder / "noticed").exists()

    def notice(self) -> None:
        (self.folder / "noticed").touch()

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Terraform's diagnostics; for a run that died, one that says so."""
        found = tuple(self.progress.diagnostics)
        if self.status == 0 or errors(found):
            return found
        text = (self.folder / "err").read_text(errors="replace")
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
        told: list[str] = []
        for line in whole:
            # A provider may print other lines.
            with suppress(ValueError):
                event = json.loads(line)
                told += self.progress.take(event) if isinstance(event, dict) else ()
        return told

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
        """Have Terraform stop in good order, unless another task waits for it. May be called by a signal handler."""
        self.was_interrupted = not self.is_attended
        self._tell()

    def _number(self, name: str) -> int | None:
        with suppress(FileNotFoundError, ValueError):
            return int((self.folder / name).read_text())
        return None

    def _tell(self) -> None:
        """Pass on the interrupt, once: on a second one Terraform would stop at once, and leave work unfinished.

        Before its first words it may still ignore signals.
        """
        if self.was_interrupted and self._read and not self._is_told and self.is_here and self.is_running:
            with suppress(ProcessLookupError):
                if pid := self.pid:
                    os.kill(pid, signal.SIGINT)
                    self._is_told = True

    def _lives(self) -> bool:
        """True while the shell or Terraform hold the file that is their input.

        Providers hold it, too, and are left when both were killed.
        """
        if not self.is_here:
            return self._beats()
        with (self.folder / "alive").open() as alive:
            try:
                fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                # A process that has ended, and was not waited for, has no program.
                return os.path.exists(f"/proc/{self.pid}/exe") or self._beats()
        return False

    def _beats(self) -> bool:
        # By the clock of the storage, which both machines share.
        probe = self.folder / f"probe-{os.getpid()}"
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        beat = self.folder / "beat"
        last = beat.stat().st_mtime if beat.exists() else self.record.started
        return now - last < _SILENCE


def pid_namespace() -> str:
    """Host, boot and container of this process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join((socket.gethostname(), boot, os.readlink("/proc/self/ns/pid")))


def write(path: Path, said: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(said, indent=1))
    os.replace(new, path)


def start(runs: Path, kind: str, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Run:
    """Start a command in its own session. ``{run}`` in ``argv`` stands for the run's folder."""
    folder, host = _folder(runs, kind), socket.gethostname()
    argv = [word.replace("{run}", str(folder)) for word in argv]
    for name in ("out", "err"):
        (folder / name).touch()
    record = RunRecord(kind, argv, host, pid_namespace(), f"{_user()}@{host}", time.time(), os.getpid())
    with (folder / "alive").open("w+") as alive:
        # The lock passes to the processes, and ends with the last of them.
        fcntl.flock(alive, fcntl.LOCK_EX)
        # Before the start, because no run may be without a record.
        write(folder / "record.json", record.write())
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WRAPPER, "sh", str(folder), *argv],
            cwd=cwd,
            env=dict(env),
            stdin=alive,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return Run(folder, process)


def earlier(runs: Path) -> list[Run]:
    """The recorded runs, newest first."""
    return [Run(folder) for folder in _folders(runs) if (folder / "record.json").exists()]


def _folders(runs: Path) -> list[Path]:
    return sorted(runs.glob("[0-9]*-*"), key=_place, reverse=True)


def _place(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


def _folder(runs: Path, kind: str) -> Path:
    runs.mkdir(exist_ok=True)
    there = _folders(runs)
    for old in there[_KEPT:]:
        # An apply that waits for a lock is retried, and needs its plan each time.
        if not (old / PLAN).exists():
            shutil.rmtree(old, ignore_errors=True)
    folder = runs / f"{_place(there[0]) + 1 if there else 1:04}-{kind}"
    folder.mkdir()
    return folder


def _user() -> str:
    """The user name as Terraform sees it; in a container a user may have none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
