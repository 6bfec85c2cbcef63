"""Talks to a sandbox's first process: is it there, what runs in it, start this, stop that, run a command in a Pod."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from sandbox.airflow.home import without_airflow
from sandbox.errors import SandboxError
from sandbox.init import children_of
from sandbox.settings import ENVIRONMENT, Paths

#: Seconds that a sandbox has to answer, on a busy machine, too.
ANSWER = 60


def command_line(command: str, name: str) -> str:
    """How a user says a command of this sandbox."""
    return f"python -m sandbox {command}" + ("" if name == "default" else f" --name {name}")


def request(control: Path, timeout: float, **message: Any) -> Any:
    """One request to a control socket of the sandbox, and the result it answers with."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(control))
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps(message).encode() + b"\n")
            stream.flush()
            line = stream.readline()
    if not line:
        raise ConnectionError(f"{control} closed the connection")
    answer = json.loads(line)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["result"]


class Init:
    """A sandbox's first process, as seen from outside (or from the cloud process inside)."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._up = command_line("up", paths.state.name)

    # What runs

    def outer(self) -> psutil.Process | None:
        """The process that holds the sandbox, if it lives. A reused PID is told apart by its start time."""
        try:
            stored = json.loads(self._paths.pid.read_text())
            process = psutil.Process(stored["pid"])
            alive = abs(process.create_time() - stored["created"]) < 0.01
            return process if alive and not _ended(process) else None
        except (OSError, ValueError, psutil.Error):
            return None

    def alive(self) -> bool:
        return self.outer() is not None

    def processes(self) -> dict[str, dict[str, Any]]:
        try:
            listed = request(self._paths.control, ANSWER, do="describe")
        except OSError as error:
            raise SandboxError("the sandbox does not run", f"start it with `{self._up}`") from error
        return {process["name"]: process for process in listed}

    # Changing it

    def boot(self, lower: Path, gpu_files: int, visible: list[str]) -> None:
        """Create the namespaces and start the first process in them."""
        command = [
            "unshare",
            "--pid",
            "--mount",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        ]
        inside = [sys.executable, "-m", "sandbox.init", str(self._paths.state), str(lower), str(gpu_files), *visible]
        with (self._paths.logs / "init.log").open("ab") as log:
            outer = subprocess.Popen(
                [*command, *inside],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # What its user has set for an Airflow of theirs is not meant for the one beside the sandbox.
                env=without_airflow() | {"PYTHONPATH": str(Path(__file__).parent.parent)},
                cwd="/",
            )
        created = psutil.Process(outer.pid).create_time()
        self._paths.pid.write_text(json.dumps({"pid": outer.pid, "created": created}))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if outer.poll() is not None:
                said = (self._paths.logs / "init.log").read_text().strip().splitlines()
                raise SandboxError(
                    f"the sandbox's namespaces could not be made ({said[-1] if said else 'no reason given'})",
                    "run as root with the right to mount; the state folder must not lie on an overlay file system",
                )
            with contextlib.suppress(SandboxError):
                self.processes()
                return
            time.sleep(0.02)
        raise SandboxError("the sandbox's first process does not answer", f"see {self._paths.logs / 'init.log'}")

    def start(self, name: str, argv: list[str], *, hostname: str = "", env: dict[str, str] | None = None) -> None:
        request(self._paths.control, ANSWER, do="start", name=name, argv=argv, hostname=hostname, env=env)

    def stop(self, name: str, grace: float = 5.0) -> None:
        request(self._paths.control, grace + ANSWER, do="stop", name=name, grace=grace)

    def signal(self, name: str, number: signal.Signals) -> None:
        request(self._paths.control, ANSWER, do="send_signal", name=name, number=int(number))

    def resume(self) -> None:
        request(self._paths.control, ANSWER, do="resume")

    def kill(self) -> None:
        """End the sandbox: the kernel takes every process and every mount of it down with its first process."""
        outer = self.outer()
        if outer is None:
            return
        first = outer.children()
        below = [process for process in outer.children(recursive=True) if process not in first]
        outer.kill()
        deadline = time.monotonic() + 300
        # Those below are collected by the kernel; until then they may hold a port.
        while processes := [p for p in below if p.is_running()] + [p for p in (outer, *first) if not _ended(p)]:
            if time.monotonic() > deadline:
                left = ", ".join(map(str, processes))
                raise SandboxError(f"processes of the sandbox do not end: {left}", "see whether a disk hangs")
            time.sleep(0.005)

    # Looking in

    def root(self) -> Path:
        """The sandbox's root as its own processes see it."""
        return Path(f"/proc/{self._first_pid()}/root") / self._paths.root.relative_to("/")

    def enter(self, pod: str, argv: list[str]) -> list[str]:
        """The command line that runs ``argv`` inside a Pod, from outside the sandbox."""
        inner = self.processes().get(pod, {}).get("inner")
        if inner is None:
            raise SandboxError(f"{pod} does not run", f"see `{command_line('status', self._paths.state.name)}`")
        # The sandbox's own /proc, as its Pods have no numbers outside of it.
        return enter_pod(inner, argv, Path(f"/proc/{self._first_pid()}/root/proc"))

    def run(self, pod: str, argv: list[str], timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.enter(pod, argv),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            env=ENVIRONMENT | {"HOME": "/root"},
        )

    def outside(self, name: str) -> psutil.Process:
        """A daemon as a process of the machine, seen from outside the sandbox."""
        inner = self.processes().get(name, {}).get("inner")
        for process in psutil.Process(self._first_pid()).children(recursive=True):
            # The second number is the PID in the sandbox's namespace, any third one that in its Pod's.
            pids = _status_line(process.pid, "NSpid").split()
            if inner is not None and pids[1:2] == [str(inner)]:
                return process.children()[0]
        raise SandboxError(f"{name} does not run", f"start it with `{self._up}`")

    def daemon_pids(self, names: list[str]) -> list[int]:
        """The PIDs of daemons in the sandbox's own namespace, for a process that runs beside them."""
        return [int(_status_line(self.outside(name).pid, "NSpid").split()[1]) for name in names]

    def is_traced(self, name: str) -> bool:
        """Whether something like strace is attached to a daemon."""
        return _status_line(self.outside(name).pid, "TracerPid").strip() not in ("", "0")

    def _first_pid(self) -> int:
        outer = self.outer()
        # Each command asks for it, and psutil would read all processes of the machine to find one's children.
        children = children_of(outer.pid) if outer else []
        if not children:
            raise SandboxError("the sandbox does not run", f"start it with `{self._up}`")
        return children[0]


def _ended(process: psutil.Process) -> bool:
    """Whether a process has let go of its mounts and namespaces, also if its parent has not collected it yet.

    The first process of a namespace stays until all that have been in it are collected. Of those that were entered from
    outside that is up to others, who may be slow.
    """
    try:
        os.readlink(f"/proc/{process.pid}/ns/mnt")
    except (FileNotFoundError, ProcessLookupError):
        return True
    except PermissionError:
        # What the kernel says of one that is collected while it looks.
        pass
    # Its number may be another's by now.
    return not process.is_running()


def _status_line(pid: int, key: str) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2] for line in lines if line.startswith(f"{key}:")), "")


def enter_pod(inner: int, argv: list[str], proc: Path = Path("/proc")) -> list[str]:
    """The command line that runs ``argv`` inside the Pod of a process, which has this number in ``proc``."""
    pod = proc / str(inner)
    spaces = [f"--{option}={pod}/ns/{name}" for option, name in (("pid", "pid"), ("uts", "uts"), ("mount", "mnt"))]
    return ["nsenter", *spaces, f"--root={pod}/root", f"--wd={pod}/cwd", "--", *argv]
