"""The daemons of a Soperator, as data: in which Pod each runs, how it starts, and how one sees that it is ready."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox.control import Init
from sandbox.errors import SandboxError
from sandbox.settings import LOOPBACK, USER, Settings

MUNGE_SOCKET = "run/munge/munge.socket.2"
MARIADB_SOCKET = "run/mysqld/mysqld.sock"
#: Seconds that a program has to come up, while it runs: on a busy machine it takes minutes.
PATIENCE = 600

Probe = Callable[[Init, Settings], bool]


@dataclass(frozen=True)
class Daemon:
    """One daemon. It is started once all that it needs are ready."""

    name: str
    pod: str
    argv: Callable[[Settings], list[str]]
    ready: Probe
    needs: tuple[str, ...] = ()


def _unix(path: str) -> Probe:
    def ready(init: Init, settings: Settings) -> bool:
        return listens(init.root() / path)

    return ready


def listens(path: Path) -> bool:
    """Something accepts connections on this socket."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        # The path of a socket has 107 bytes at the most, and the way into the root alone can be longer.
        folder = os.open(path.parent, os.O_PATH)
        try:
            probe.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        return True
    return False


def _tcp(service: str) -> Probe:
    def ready(init: Init, settings: Settings) -> bool:
        return answers(settings.ports.services()[service])

    return ready


def answers(port: int) -> bool:
    """Something accepts connections on this port of the loopback."""
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _slurmctld_answers(init: Init, settings: Settings) -> bool:
    # Its port opens before it can answer: only a reply to a real question says that it is up.
    ask = ["timeout", "3", "scontrol", "ping"]
    try:
        return answers(settings.ports.slurmctld) and init.run("slurmctld", ask).returncode == 0
    except SandboxError:
        # It has ended between the two questions.
        return False


DAEMONS = (
    Daemon(
        "munged",
        "controller-0",
        lambda s: ["setpriv", "--reuid=munge", "--regid=munge", "--init-groups", "munged", "--foreground"],
        _unix(MUNGE_SOCKET),
    ),
    Daemon("mariadbd", "accounting-0", lambda s: ["mariadbd", "--user=mysql"], _unix(MARIADB_SOCKET)),
    Daemon("sshd", "login-0", lambda s: ["/usr/sbin/sshd", "-D", "-e"], _tcp("ssh")),
    Daemon("slurmdbd", "accounting-0", lambda s: ["slurmdbd", "-D"], _tcp("slurmdbd"), ("munged", "mariadbd")),
    # -i: one that is killed before it has written all its state files would, in 26.05, never start again.
    Daemon("slurmctld", "controller-0", lambda s: ["slurmctld", "-D", "-i"], _slurmctld_answers, ("slurmdbd",)),
    Daemon(
        "slurmrestd",
        "rest-0",
        lambda s: [
            "slurmrestd", "-f", "/etc/slurm/slurm_rest.conf", "-u", "www-data", "-g", "www-data",
            "-a", "rest_auth/jwt", f"{LOOPBACK}:{s.ports.slurmrestd}",
        ],
        _tcp("slurmrestd"),
        ("munged",),
    ),
)  # fmt: skip


def accounts(cluster: str) -> list[list[str]]:
    """What sacctmgr is told of a new cluster and its people."""
    return [
        ["add", "cluster", cluster],
        ["add", "account", "research", "Description=research"],
        ["add", "user", USER, "DefaultAccount=research"],
    ]


def start(daemon: Daemon, init: Init, settings: Settings) -> None:
    init.start(daemon.name, daemon.argv(settings), hostname=daemon.pod)


def wait_ready(daemon: Daemon, init: Init, settings: Settings) -> None:
    wait_for(
        lambda: daemon.ready(init, settings),
        f"{daemon.name} does not come up",
        lambda: _died(daemon.name, init),
        settings.paths.logs / f"{daemon.name}.log",
    )


def wait_for(
    condition: Callable[[], bool],
    otherwise: str,
    dead: Callable[[], bool],
    log: Path,
    timeout: float = PATIENCE,
    pause: float = 0.05,
) -> None:
    """Wait for a condition; give up at once when what should bring it about has died."""
    deadline = time.monotonic() + timeout
    while not condition():
        if dead() or time.monotonic() > deadline:
            said = log.read_text(errors="replace") if log.exists() else ""
            raise SandboxError(f"{otherwise} ({complaint(said)})", f"see {log}")
        time.sleep(pause)


def _died(name: str, init: Init) -> bool:
    process = init.processes().get(name)
    return process is None or process["pid"] is None


def complaint(said: str) -> str:
    """The line in which a program names the cause of its end, if it names one, else its last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    fatal = [line for line in lines if "fatal: " in line and not line.endswith("Unable to process configuration file")]
    # That an included file is bad follows on what is bad in it.
    errors = [line for line in lines if "error: " in line and '"Include" failed' not in line]
    return (fatal or errors or lines or ["it said nothing"])[-1]
