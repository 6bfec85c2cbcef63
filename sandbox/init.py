"""The first process inside a sandbox: it holds the mounts, starts and reaps the daemons, and takes all down with it.

It is PID 1 of a PID namespace and owner of a mount namespace, so the kernel itself ends every process and every mount
of the sandbox when this one ends, however that comes about. Each daemon runs in a "Pod" of its own: PID, host name and
/proc of its own, the sandbox's root for its root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sandbox.settings import ENVIRONMENT, Paths

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@dataclass
class Process:
    """One daemon: ``pid`` is its outermost process, None once that has ended."""

    name: str
    argv: list[str]
    pid: int | None = None
    started: float = 0.0
    status: int | None = None


def mount_root(paths: Paths, lower: Path, gpu_files: int, visible: list[str]) -> None:
    """Lay this sandbox's own layer over the shared root, and give it devices and the folders that are visible in it."""
    root = paths.root
    # Volatile: no write waits for the disk, and no umount either. After a crash of this process alone the layer is
    # whole, and the mark that keeps it from being mounted again is removed; after one of the machine nobody cares.
    shutil.rmtree(paths.work / "work/incompat", ignore_errors=True)
    layers = f"volatile,lowerdir={lower},upperdir={paths.upper},workdir={paths.work}"
    _mount("-t", "overlay", "overlay", "-o", layers, root)
    _mount("-t", "proc", "proc", root / "proc")
    _mount("-t", "sysfs", "-o", "ro", "sysfs", root / "sys")
    _mount("-t", "tmpfs", "dev", "-o", "mode=755,size=1m", root / "dev")
    for device in DEVICES:
        (root / "dev" / device).touch()
        _mount("--bind", f"/dev/{device}", root / "dev" / device)
    (root / "dev/pts").mkdir()
    (root / "dev/shm").mkdir()
    _mount("-t", "devpts", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620", root / "dev/pts")
    _mount("-t", "tmpfs", "shm", "-o", "mode=1777", root / "dev/shm")
    for link, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0")):
        (root / "dev" / link).symlink_to(target)
    for link, number in (("stdout", 1), ("stderr", 2)):
        (root / "dev" / link).symlink_to(f"/proc/self/fd/{number}")
    for number in range(gpu_files):
        # Slurm wants a device file for each GPU, and asks nothing of it: these are /dev/null by other names.
        os.mknod(root / "dev" / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for folder in visible:
        place = root / folder.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        _mount("--bind", folder, place)
    _mount("-t", "tmpfs", "run", "-o", "mode=755", root / "run")
    for folder, owner in (("munge", "munge"), ("mysqld", "mysql"), ("sshd", "root")):
        (root / "run" / folder).mkdir(mode=0o755)
        subprocess.run(["chroot", root, "chown", f"{owner}:{owner}", f"/run/{folder}"], check=True)


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def in_pod(root: Path, hostname: str, argv: list[str]) -> list[str]:
    """The command line that runs ``argv`` as a Pod: its own PIDs, host name and /proc in the sandbox's root."""
    enter = [
        "unshare",
        "--pid",
        "--uts",
        "--mount",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--root",
        str(root),
    ]
    named = ["sh", "-c", 'hostname "$0" && cd / && exec tini -g -- "$@"', hostname]
    return [*enter, *named, *argv]


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Supervisor:
    """Starts, stops and remembers the sandbox's processes; one request at a time may change one process."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._processes: dict[str, Process] = {}
        self._changed = threading.Condition()

    def start(self, name: str, argv: list[str], hostname: str = "", env: dict[str, str] | None = None) -> int:
        """Start a process; with a host name as a Pod in the root, without one outside it, beside this process."""
        with self._changed:
            running = self._processes.get(name)
            if running and running.pid:
                return running.pid
            command = in_pod(self._paths.root, hostname, argv) if hostname else argv
            # Inside the root nothing of the caller's environment means anything.
            environment = ENVIRONMENT if hostname else {**os.environ}
            with (self._paths.logs / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment | (env or {}),
                    start_new_session=True,
                )
            self._processes[name] = Process(name, argv, process.pid, time.time())
            # This process reaps every child by itself; Popen must not wait for what is gone by then.
            process.returncode = 0
            self._changed.notify_all()
            return process.pid

    def stop(self, name: str, grace: float = 5.0) -> None:
        """Ask a process to end, and end it and all it started once its grace is over."""
        with self._changed:
            process = self._processes.get(name)
            pid = process.pid if process else None
            if pid is not None:
                self._signal_inner(pid, signal.SIGTERM)
                if not self._changed.wait_for(lambda: self._gone(name, pid), grace):
                    with contextlib.suppress(ProcessLookupError):
                        self._kill(name, pid)
            # Also one that has ended by itself is not remembered any more.
            self._processes.pop(name, None)

    def send_signal(self, name: str, number: int) -> None:
        """Send a signal to the daemon itself, inside its Pod; SIGKILL takes the whole Pod."""
        with self._changed:
            process = self._processes.get(name)
            pid = process.pid if process else None
            if pid is None:
                raise ProcessLookupError(f"{name} does not run")
            if number == signal.SIGKILL:
                self._kill(name, pid)
            else:
                self._signal_inner(pid, signal.Signals(number))

    def resume(self) -> None:
        """Let every daemon that runs go on, whether it was stopped or not."""
        with self._changed:
            for process in self._processes.values():
                if process.pid is not None:
                    self._signal_inner(process.pid, signal.SIGCONT)

    def describe(self) -> list[dict[str, Any]]:
        with self._changed:
            return [asdict(process) | {"inner": self.inner(process.pid)} for process in self._processes.values()]

    @staticmethod
    def inner(pid: int | None) -> int | None:
        """The process through which one enters the Pod: the tini below the outermost one."""
        return next(iter(children_of(pid)), None) if pid else None

    def reap_forever(self) -> None:
        """Collect every process that ends, the orphans of all Pods included. Never returns."""
        while True:
            try:
                pid, status = os.wait()
            except ChildProcessError:
                with self._changed:
                    self._changed.wait(1.0)
                continue
            with self._changed:
                for process in self._processes.values():
                    if process.pid == pid:
                        process.pid, process.status = None, os.waitstatus_to_exitcode(status)
                self._changed.notify_all()

    def _gone(self, name: str, pid: int | None) -> bool:
        process = self._processes.get(name)
        return process is None or process.pid != pid

    def _kill(self, name: str, pid: int) -> None:
        """Kill a process and wait for the end of all that is in its Pod, which goes down after it."""
        first = self.inner(pid)
        os.kill(pid, signal.SIGKILL)
        self._changed.wait_for(
            lambda: self._gone(name, pid) and not (first and Path(f"/proc/{first}").exists()), timeout=5.0
        )

    def _signal_inner(self, pid: int, number: signal.Signals) -> None:
        # unshare passes no signals on, and tini cannot pass SIGSTOP on: go to the daemon.
        tini = self.inner(pid)
        targets = children_of(tini) if tini else [pid]
        for target in targets or [pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, number)


class ControlServer:
    """Answers one JSON request per connection on a socket that only root can reach."""

    def __init__(self, supervisor: Supervisor, paths: Paths) -> None:
        self._supervisor = supervisor
        paths.control.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(paths.control))
        paths.control.chmod(0o600)
        self._socket.listen(64)

    def serve_forever(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:
            try:
                request = json.loads(stream.readline())
                answer = {"result": self._perform(**request)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(OSError):
                stream.write(json.dumps(answer).encode() + b"\n")

    def _perform(self, do: str, **arguments: Any) -> Any:
        if do not in ("start", "stop", "send_signal", "resume", "describe"):
            raise ValueError(f"unknown request: {do}")
        return getattr(self._supervisor, do)(**arguments)


def main() -> None:
    state, lower, gpu_files, *visible = sys.argv[1:]
    paths = Paths(Path(state))
    # PID 1 has no default signal handling: without this, SIGTERM would do nothing at all.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # Ignored by whoever was started in the background of a script, and then by all daemons and jobs, too.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    try:
        mount_root(paths, Path(lower), int(gpu_files), visible)
    except subprocess.CalledProcessError as error:
        print(f"mount failed: {shlex.join(map(str, error.cmd))}", flush=True)
        sys.exit(1)
    supervisor = Supervisor(paths)
    threading.Thread(target=ControlServer(supervisor, paths).serve_forever, daemon=True).start()
    supervisor.reap_forever()


if __name__ == "__main__":
    main()
