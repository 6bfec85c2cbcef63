"""Up and down, again and again: how long each takes, and whether anything stays behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.table import Row, spread
from sandbox.lifecycle import Sandbox
from sandbox.rootfs import RootCache
from sandbox.settings import PORTS_PER_SANDBOX, Settings, home

NAME = "bench-cycles"
CYCLES = 50


def traces(settings: Settings) -> set[str]:
    """All that a sandbox could leave on this machine: processes, mounts, ports and files."""
    return {
        *_processes(settings),
        *_mounts(),
        *_ports(settings),
        *(f"file {path}" for path in home().rglob("*") if "roots" not in path.parts and NAME in str(path)),
    }


def _mounts() -> Iterator[str]:
    """In the namespace of any process: a sandbox's own are not in this one's."""
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            yield from (f"mount {line.split()[4]}" for line in table.read_text().splitlines() if NAME in line)
        except OSError:
            continue


def _processes(settings: Settings) -> Iterator[str]:
    """Every process whose command line, root or working folder is the sandbox's."""
    for process in psutil.process_iter(["pid", "name", "cmdline", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        links = []
        for link in ("root", "cwd"):
            try:
                links.append(str((Path("/proc") / str(process.pid) / link).readlink()))
            except OSError:
                continue
        if str(settings.paths.state) in " ".join([*(process.info["cmdline"] or []), *links]):
            yield f"process {process.pid} {process.info['name']}"


def _ports(settings: Settings) -> Iterator[str]:
    first = settings.port_base
    for connection in psutil.net_connections("inet"):
        # One that is not bound yet has no address.
        port = connection.laddr.port if connection.laddr else 0
        if connection.status == psutil.CONN_LISTEN and first <= port < first + PORTS_PER_SANDBOX:
            yield f"port {port}"


def run() -> list[Row]:
    lower = RootCache().ensure("24.11", lambda share, label: None)
    files_of_root = sum(1 for _ in lower.rglob("*"))
    up, down, left = [], [], set()
    for _ in range(CYCLES):
        sandbox = Sandbox(Settings(name=NAME))
        try:
            started = time.monotonic()
            sandbox.up()
            up.append(time.monotonic() - started)
            assert sandbox.init.run("sshd", ["srun", "hostname"]).stdout.startswith("worker-")
            settings = sandbox.settings
            kinds = {trace.split()[0] for trace in traces(settings)}
            assert kinds == {"process", "mount", "port", "file"}, "what runs must be seen, or none left means nothing"
        finally:
            started = time.monotonic()
            sandbox.down()
            down.append(time.monotonic() - started)
        left |= traces(settings)
    changed = abs(sum(1 for _ in lower.rglob("*")) - files_of_root)
    return [
        Row("sandbox", f"up, {CYCLES} times, root cached", spread(up), "20 s", max(up) < 20),
        Row("sandbox", f"down, {CYCLES} times", spread(down)),
        Row("sandbox", "left behind by all of them", f"{len(left)} {sorted(left)[:5] or ''}", "0", not left),
        Row("sandbox", "files changed in the shared root", str(changed), "0", not changed),
    ]
