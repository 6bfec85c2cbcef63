"""What a sandbox's Slurm has otherwise than the operator renders it, each with its reason.

A sandbox has one machine, one address and no cgroups for all its nodes, and seconds where Soperator has minutes. What a
user sets in ``customSlurmConfig`` comes after all this and wins. docs/sandbox-faithful.md has the list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sandbox.cloud.slurm_config import BASE_FILES, INCLUDE, Files, Line, Object, files_of, replicas_of
from sandbox.settings import LOOPBACK, Settings

GPU_RESOURCE = "nvidia.com/gpu"
GPU_FILE = "/dev/nvidia{}"
#: Where the charts' scripts are on a cluster.
SCRIPTS = "/opt/slurm_scripts/"
#: Nodes below one switch.
PER_SWITCH = 4

#: The first port of a NodeSet's nodes.
FirstPort = Callable[[str], int]


@dataclass(frozen=True)
class Override:
    """A line of slurm.conf in the place of the operator's, if it has one; no value: there is no such line."""

    key: str
    value: str | None
    reason: str


def overrides(settings: Settings) -> list[Override]:
    """Those that do not depend on what the operator has rendered."""
    ports = settings.ports
    shared, cgroups, fast = "the machine's one address", "no cgroups", "seconds for minutes"
    said = [
        Override("SlurmctldPort", str(ports.slurmctld), shared),
        Override("AccountingStoragePort", str(ports.slurmdbd), shared),
        Override("CommunicationParameters", "NoCtldInAddrAny,NoInAddrAny", "nobody outside has any business here"),
        Override("SlurmdSpoolDir", "/var/spool/slurmd/%n", "all slurmds have one root"),
        Override("SlurmdPidFile", "/run/slurmd-%n.pid", "all slurmds have one root"),
        Override("SlurmctldLogFile", "/var/log/slurm/slurmctld.log", "logs are files"),
        Override("SlurmdLogFile", "/var/log/slurm/slurmd-%n.log", "logs are files"),
        Override("SlurmctldDebug", "info", "logs are files"),
        Override("SlurmdDebug", "info", "logs are files"),
        Override("ProctrackType", "proctrack/linuxproc", cgroups),
        Override("TaskPlugin", "task/none", cgroups),
        Override("JobAcctGatherType", "jobacct_gather/linux", cgroups),
        Override("JobAcctGatherFrequency", "task=5", "jobs last seconds"),
        Override("PrologFlags", None, cgroups),
        Override("PluginDir", None, "Debian's packages have their own"),
        Override("MpiDefault", "none", "Debian's packages have no PMIx"),
        Override("PowerAction", None, "Soperator's own programs are not there"),
        Override("RebootProgram", None, "Soperator's own programs are not there"),
        Override("SlurmdParameters", "config_overrides", "nodes are larger than the machine"),
        Override("PrologSlurmctld", "/opt/soperator/bin/prolog_slurmctld.sh", "slurmctld looks every 30 s otherwise"),
        Override("ResumeTimeout", str(settings.resume_timeout), fast),
        Override("SuspendTimeout", str(settings.suspend_timeout), fast),
        Override("ResumeRate", "6000", fast),
        Override("SuspendRate", "6000", fast),
        Override("MinJobAge", str(settings.min_job_age), fast),
        Override("MessageTimeout", str(settings.message_timeout), fast),
        Override("SlurmdTimeout", str(settings.slurmd_timeout), fast),
        Override("KillWait", str(settings.kill_wait), fast),
        Override("CompleteWait", "0", fast),
        Override("UnkillableStepTimeout", "60", fast),
        Override("TCPTimeout", "5", fast),
    ]
    if settings.slurm < "25.11":
        said.append(Override("MetricsType", None, "Slurm has it from 25.11 on"))
    return said


def sandboxed(
    cluster: Object, nodesets: Sequence[Object], settings: Settings, first_port: FirstPort
) -> dict[str, list[Line]]:
    """The files in ``/etc/slurm`` of a sandbox that has these objects."""
    files: Files = files_of(cluster, nodesets, settings.soperator)
    base = files[BASE_FILES[settings.soperator]]
    for override in (*overrides(settings), *_depending(base)):
        base = _with(base, override)
    files[BASE_FILES[settings.soperator]] = [_with_port(line, first_port) for line in base]
    files["gres.conf"] = _gres_conf(files["gres.conf"], nodesets)
    files["cgroup.conf"] = [Line("CgroupPlugin", "disabled")]
    files["topology.conf"] = _topology(nodesets)
    # Soperator's SPANK plugins are not there, and neither is PMIx.
    del files["mpi.conf"]
    return {**files, "plugstack.conf": []}


def _depending(base: Sequence[Line]) -> list[Override]:
    said: Mapping[str, str] = {line.key: line.value for line in base}
    # Looks each second. With an interval of 1 a change in the second of the last look waits for the next but one.
    unfit = ("enable_stepmgr", "conmgr_threads=32")
    parameters = [word for word in said["SlurmctldParameters"].split(",") if word not in unfit]
    parameters += ["power_save_interval=0", "power_save_min_interval=0"]
    # The scheduler of a small cluster need not spare itself.
    scheduler = [word for word in said["SchedulerParameters"].split(",") if word != "defer_batch"]
    scheduler += ["bf_interval=2", "sched_min_interval=100000"]
    found = [
        Override("SlurmctldParameters", ",".join(parameters), "looks each second; few CPUs, no cgroups"),
        Override("SchedulerParameters", ",".join(scheduler), "looks each second"),
    ]
    if said.get("DefMemPerNode") == "0":
        # A job that does not say how much memory it wants would take the whole node.
        found.append(Override("DefMemPerNode", None, "tests have many jobs on a node"))
        found.append(Override("DefMemPerCPU", "1000", "tests have many jobs on a node"))
    if said.get("HealthCheckProgram", "").startswith(SCRIPTS):
        keys = ("HealthCheckInterval", "HealthCheckProgram", "HealthCheckNodeState")
        found += [Override(key, None, "the charts' scripts are not there") for key in keys]
    for key in ("Prolog", "Epilog", "TaskProlog"):
        if said.get(key, "").startswith(SCRIPTS):
            found.append(Override(key, None, "the charts' scripts are not there"))
    return found


def _with(lines: Sequence[Line], override: Override) -> list[Line]:
    """The line is where the operator has one, else at the end, but before the user's own file."""
    changed, value = [], override.value
    for line in lines:
        if line.key != override.key:
            changed.append(line)
        elif value is not None:
            changed.append(Line(override.key, value))
            value = None
    if value is not None:
        end = next((at for at, line in enumerate(changed) if line.key == INCLUDE), len(changed))
        changed.insert(end, Line(override.key, value))
    return changed


def _with_port(line: Line, first_port: FirstPort) -> Line:
    """All nodes have the machine's one address, so each has a port of its own."""
    found = re.match(r"(?P<nodeset>\S+)-(?:(?P<one>\d+)|\[0-(?P<last>\d+)\]) ", line.value)
    if line.key != "NodeName" or not found:
        return line
    first = first_port(found["nodeset"])
    port = str(first + int(found["one"])) if found["one"] else f"[{first}-{first + int(found['last'])}]"
    words = [word for word in line.value.split(" ") if not word.startswith("Port=")]
    return Line(line.key, " ".join([*words[:1], f"Port={port}", *words[1:]]))


def _gres_conf(rendered: Sequence[Line], nodesets: Sequence[Object]) -> list[Line]:
    """Where GPUs are to be found by themselves, those that the machine has: there is no driver to ask."""
    lines = [line for line in rendered if line.key != "AutoDetect" and not line.value.endswith(" AutoDetect=nvidia")]
    for nodeset in nodesets:
        spec, name = nodeset["spec"], nodeset["metadata"]["name"]
        said = spec.get("nodeConfig") or {}
        gpus = int((spec["slurmd"].get("resources") or {}).get(GPU_RESOURCE, 0))
        # What slurm.conf does not declare is not there for Slurm, whatever the driver finds.
        declared = re.search(r"\bGres=gpu(?::(?P<type>[A-Za-z_]\w*))?(?::\d+)?", str(said.get("static") or ""))
        if not gpus or not declared or not replicas_of(nodeset) or any("File=" in line for line in _gres(nodeset)):
            continue
        type_ = f" Type={declared['type']}" if declared["type"] else ""
        file = GPU_FILE.format(f"[0-{gpus - 1}]" if gpus > 1 else 0)
        lines.append(Line("NodeName", f"{name}-[0-{replicas_of(nodeset) - 1}] Name=gpu{type_} File={file}"))
    return lines


def _gres(nodeset: Object) -> list[str]:
    return list((nodeset["spec"].get("nodeConfig") or {}).get("gresConfig") or [])


def _topology(nodesets: Sequence[Object]) -> list[Line]:
    """A root switch over leaves of a few nodes each, so that there is something to be near to."""
    leaves = {}
    for nodeset in nodesets:
        name, replicas = nodeset["metadata"]["name"], replicas_of(nodeset)
        for number, start in enumerate(range(0, replicas, PER_SWITCH)):
            leaves[f"{name}-leaf{number}"] = f"{name}-[{start}-{min(start + PER_SWITCH, replicas) - 1}]"
    if not leaves:
        return [Line("SwitchName", "root")]
    lines = [Line("SwitchName", f"{switch} Nodes={nodes}") for switch, nodes in leaves.items()]
    return [*lines, Line("SwitchName", f"root Switches={','.join(leaves)}")]


def hosts(cluster: Object | None, nodesets: Sequence[Object]) -> str:
    """All Pods of the sandbox by their short and their cluster names; every one of them is this machine."""
    lines = [f"{LOOPBACK} localhost", f"{LOOPBACK} controller-0 login-0 accounting-0 rest-0"]
    if cluster:
        name, namespace = cluster["metadata"]["name"], cluster["metadata"].get("namespace", "soperator")
        services = [f"{name}-{part}-svc" for part in ("controller", "accounting", "rest", "login")]
        lines += [f"{LOOPBACK} {service} {service}.{namespace}.svc.cluster.local" for service in services]
        domain = f"{name}-nodeset-svc.{namespace}.svc.cluster.local"
        for nodeset in nodesets:
            nodes = [f"{nodeset['metadata']['name']}-{number}" for number in range(replicas_of(nodeset))]
            lines += [f"{LOOPBACK} {node} {node}.{domain}" for node in nodes]
    return "\n".join(lines) + "\n"
