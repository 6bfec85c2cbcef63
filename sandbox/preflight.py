"""What must be true of the machine before a sandbox is made: each failing check is one line with its remedy."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import sys

import psutil

from sandbox.errors import DOCKER, SandboxError
from sandbox.settings import EPHEMERAL_SET, FIRST_PORT_BASE, LOOPBACK, PORTS_PER_SANDBOX, STATIC_SET, Settings, home
from sandbox.slurmd_ports import SlurmdPorts


def check_machine() -> None:
    if sys.platform != "linux":
        raise SandboxError("the sandbox needs Linux", f"run {DOCKER} instead")
    if os.geteuid() != 0:
        raise SandboxError("the sandbox needs root", f"run it with sudo, or without root {DOCKER}")
    for tool in ("unshare", "nsenter"):
        if not shutil.which(tool):
            raise SandboxError(f"{tool} is not installed", "run `apt-get install util-linux`")


def check_ports(settings: Settings) -> None:
    """Every port of the sandbox's range that it will use is free."""
    for name, port in _needed(settings).items():
        if _taken(port):
            raise SandboxError(
                f"port {port} ({name}) is taken by {_holder(port)}",
                "stop that, or choose another range with --port-base for a sandbox that is made anew",
            )


def with_free_ports(settings: Settings) -> Settings:
    """The settings with a port range that is free: the one asked for, or the next one if none was."""
    if settings.port_base:
        check_ports(settings)
        return settings
    claimed = _claimed_ranges(settings.name)
    for base in range(FIRST_PORT_BASE, 60000, PORTS_PER_SANDBOX):
        candidate = dataclasses.replace(settings, port_base=base)
        if all(abs(base - other) >= PORTS_PER_SANDBOX for other in claimed) and not any(
            map(_taken, _needed(candidate).values())
        ):
            return candidate
    raise SandboxError("no range of ports is free", "take other sandboxes down with `python -m sandbox down --all`")


def _needed(settings: Settings) -> dict[str, int]:
    ports = settings.ports
    needed = ports.services() | {f"Airflow, {part}": port for part, port in ports.airflow._asdict().items()}
    slurmds = SlurmdPorts(ports)
    for nodeset, count in ((EPHEMERAL_SET, settings.workers), (STATIC_SET, settings.static)):
        first = slurmds.first(nodeset)
        needed |= {f"slurmd of {nodeset}-{n}": first + n for n in range(count)}
    return needed


def _claimed_ranges(but: str) -> set[int]:
    """Ranges of other sandboxes, also of those that are down just now."""
    claimed = set()
    for file in (home() / "sandboxes").glob("*/settings.json"):
        # One that is taken down meanwhile claims nothing.
        with contextlib.suppress(FileNotFoundError):
            stored = json.loads(file.read_text())
            if stored["name"] != but:
                claimed.add(stored["port_base"])
    return claimed


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        # A port that only lingers after its last connection counts as free, as it does for the daemons.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def _holder(port: int) -> str:
    for connection in psutil.net_connections("tcp"):
        listens = connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN
        if listens and connection.pid:
            return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return "another process"
