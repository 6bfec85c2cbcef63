"""The sandbox at a glance: daemons, nodes, jobs and the capacity block, as one table each."""

from __future__ import annotations

import subprocess
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from sandbox.airflow.beside import Airflow
from sandbox.control import command_line, request
from sandbox.daemons import DAEMONS
from sandbox.errors import SandboxError
from sandbox.lifecycle import Sandbox

_SEPARATOR = "\x1f"


def show(sandbox: Sandbox, console: Console) -> bool:
    """Print all tables; False if something that should run does not."""
    if not sandbox.init.alive():
        raise SandboxError(
            f"sandbox {sandbox.settings.name!r} does not run",
            f"start it with `{command_line('up', sandbox.settings.name)}`",
        )
    daemons, silent = _daemons(sandbox)
    # A command that asks a slurmctld which does not answer takes its time.
    slurm = [] if "slurmctld" in silent else [_nodes(sandbox), _jobs(sandbox)]
    console.print(Group(_title(sandbox), daemons, *slurm, *_cloud(sandbox)))
    return not silent


def _title(sandbox: Sandbox) -> Text:
    settings = sandbox.settings
    return Text(
        f"sandbox {settings.name}: Slurm {settings.slurm}, as Soperator {settings.soperator} shapes it",
        style="bold",
    )


def _daemons(sandbox: Sandbox) -> tuple[Table, set[str]]:
    """The table, and the names of those that are down or do not answer."""
    table = Table("daemon", "pod", "listens on", "state", title="Daemons", title_justify="left")
    processes = sandbox.init.processes()
    ports = sandbox.settings.ports.services()
    port_of = {"sshd": "ssh", **{name: name for name in ports}}
    silent = set()
    for daemon in DAEMONS:
        if daemon.name not in processes and sandbox.paths.operated.exists():
            # No SlurmCluster asks for it.
            continue
        up = bool(processes.get(daemon.name, {}).get("pid"))
        hung = up and not daemon.ready(sandbox.init, sandbox.settings)
        if hung or not up:
            silent.add(daemon.name)
        port = ports.get(port_of.get(daemon.name, ""))
        table.add_row(daemon.name, daemon.pod, f"127.0.0.1:{port}" if port else "a socket", _state(up, hung))
    cloud_up = bool(processes.get("cloud", {}).get("pid"))
    for double, service in (
        ("Kubernetes API (a double)", "kubernetes"),
        ("Kubernetes API for inference (a double)", "inference_kubernetes"),
        ("Nebius API (a double)", "nebius"),
        ("Prometheus (a double)", "prometheus"),
    ):
        table.add_row(double, "", f"127.0.0.1:{ports[service]}", _state(cloud_up, False))
    airflow = Airflow(sandbox)
    if airflow.exists:
        parts = airflow.running()
        ends = {name for name, runs in parts.items() if not runs}
        table.add_row("Airflow", "", f"127.0.0.1:{airflow.home.ports.api}", _state(not ends, False))
        silent |= ends
    return table, silent | (set() if cloud_up else {"cloud"})


def _state(up: bool, hung: bool) -> Text:
    if hung:
        return Text("does not answer", style="yellow")
    return Text("up", style="green") if up else Text("down", style="red")


def _nodes(sandbox: Sandbox) -> Table:
    table = Table("nodes", "state", "GPUs", "reason", title="Nodes", title_justify="left")
    # Names of who has drained a node are long words.
    table.columns[-1].overflow = "fold"
    words = ["%N", "%T", "%G", "%E"]
    for row in _ask(sandbox, ["sinfo", "--noheader", "--partition=main", f"--format={_SEPARATOR.join(words)}"]):
        nodes, state, gres, reason = row
        table.add_row(nodes, state, gres.removeprefix("(null)"), "" if reason == "none" else reason)
    return table


def _jobs(sandbox: Sandbox) -> Table:
    table = Table("job", "name", "user", "state", "time", "nodes", "waits for", title="Jobs", title_justify="left")
    table.columns[-1].overflow = "fold"
    words = ["%i", "%j", "%u", "%T", "%M", "%N", "%r"]
    for row in _ask(sandbox, ["squeue", "--noheader", "--all", f"--format={_SEPARATOR.join(words)}"]):
        table.add_row(*row[:-1], "" if row[-1] == "None" else row[-1])
    return table


def _ask(sandbox: Sandbox, command: list[str]) -> list[list[str]]:
    """Rows of what a Slurm command prints; none if it does not answer, which the table of daemons has told by then."""
    try:
        said = sandbox.init.run("sshd", command, timeout=5)
    except (SandboxError, subprocess.TimeoutExpired):
        return []
    return [line.split(_SEPARATOR) for line in said.stdout.splitlines()]


def _cloud(sandbox: Sandbox) -> list[Any]:
    try:
        cloud = request(sandbox.paths.cloud_control, 5, do="describe")
    except (OSError, RuntimeError):
        return [Text("the Kubernetes and Nebius doubles do not answer", style="red")]
    block = cloud["block"]
    table = Table(
        "holder",
        "GPUs",
        "machines",
        "problem",
        title=f"Capacity block {block['id']}: {block['usage']} of {block['limit']} GPUs in use",
        title_justify="left",
    )
    groups = {group["id"]: group for group in cloud["groups"]}
    for group_id, group in groups.items():
        machines = ", ".join(f"{count} {state}" for state, count in group["machines"].items()) or "none"
        table.add_row(group_id, str(block["held"].get(group_id, 0)), machines, group["problem"] or "")
    for holder in block["held"].keys() - groups.keys():
        table.add_row(holder, str(block["held"][holder]), "", "")
    faults = [f"{f['api']} {f['effect']} on {f['matching']}" for f in cloud["api_faults"]]
    faults += [f"{node} does not boot" for node in cloud["not_booting"]]
    faults += [f"{check} fails" for check in cloud["failing_checks"]]
    faults += ["each backup fails"] if cloud["failing_backups"] else []
    faults += [f"the status of {name} is made up" for name in cloud["pinned"]]
    return [table, *([Text(f"faults in force: {'; '.join(faults)}", style="yellow")] if faults else [])]
