"""Slurm's configuration as Soperator's operator renders it from a SlurmCluster and its NodeSets: no more, no less.

From ``internal/render/common/configmap.go`` of nebius/soperator, tag 4.1.7 and main c238d993 (5.0): the same lines
with the same defaults in the same order, without the comments that only decorate. What a sandbox needs otherwise is
in ``sandbox/cloud/slurm_overrides.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

Object = Mapping[str, Any]

COMMENT = "#"
INCLUDE = "include"
#: The file that the user's own lines are in, by the release.
CUSTOM_FILES = {"4.1": "custom_slurm.conf", "5.0": "slurm_k8s_extra.conf.noedit"}
#: The file that has all other lines.
BASE_FILES = {"4.1": "slurm.conf", "5.0": "slurm_base.conf.noedit"}
CLUSTER_ANNOTATION = "slurm.nebius.ai/parental-cluster-ref"

#: What the suffixes of Kubernetes' quantities stand for.
_UNITS = {
    **{suffix: Decimal(2 ** (10 * power)) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)},
    **{suffix: Decimal(1000**power) for power, suffix in enumerate(("k", "M", "G", "T"), 1)},
    "m": Decimal("0.001"),
}

#: Fields of ``spec.slurmConfig`` in the order of Go's struct, with the defaults of the CRD.
_SLURM_CONFIG: dict[str, dict[str, int | str]] = {
    "4.1": {
        "DefMemPerNode": 0,
        "DefCpuPerGPU": 4,
        "CompleteWait": 5,
        "Epilog": "",
        "Prolog": "",
        "TaskPluginParam": "",
        "MaxJobCount": 20000,
        "MinJobAge": 28800,
        "MessageTimeout": 60,
        "TopologyPlugin": "topology/tree",
        "TopologyParam": "SwitchAsNodeRank",
        "SuspendTime": 1000000000,
    },
    "5.0": {
        "DefMemPerNode": 0,
        "DefCpuPerGPU": 4,
        "CompleteWait": 5,
        "Epilog": "",
        "Prolog": "",
        "TaskProlog": "",
        "TaskPluginParam": "",
        "MaxJobCount": 20000,
        "MinJobAge": 1800,
        "MessageTimeout": 60,
        "TopologyPlugin": "topology/tree",
        "TopologyParam": "SwitchAsNodeRank",
        "SuspendTime": 1000000000,
        "ResumeTimeout": 1800,
    },
}
#: The same of ``slurmNodes.accounting.slurmConfig``.
_ACCOUNTING_CONFIG: dict[str, int | str] = {
    "AccountingStorageTRES": "CPU,Mem,Node,VMem,Gres/gpu",
    "AccountingStoreFlags": "",
    "AcctGatherInterconnectType": "",
    "AcctGatherFilesystemType": "",
    "AcctGatherProfileType": "",
    "JobAcctGatherType": "jobacct_gather/cgroup",
    "JobAcctGatherFrequency": 0,
    "JobAcctGatherParams": "",
    "PriorityWeightAge": 0,
    "PriorityWeightFairshare": 0,
    "PriorityWeightQOS": 0,
    "PriorityWeightTRES": "",
}
_CGROUP = {
    "v1": {"CgroupPlugin": "cgroup/v1", "ConstrainSwapSpace": "yes"},
    "v2": {
        "CgroupPlugin": "cgroup/v2",
        "ConstrainSwapSpace": "no",
        "EnableControllers": "yes",
        "IgnoreSystemd": "yes",
    },
}


class Line(NamedTuple):
    """``Key=Value``, a comment or an include."""

    key: str
    value: str

    @property
    def text(self) -> str:
        if self.key == COMMENT:
            return f"#{self.value}"
        return f"{self.key}{' ' if self.key == INCLUDE else '='}{self.value}"


Files = dict[str, list[Line]]


def text_of(lines: Sequence[Line]) -> str:
    return "".join(f"{line.text}\n" for line in lines)


def cluster_of(nodeset: Object) -> str:
    """The name of the SlurmCluster that a NodeSet belongs to; empty if it does not say."""
    annotations = nodeset["metadata"].get("annotations") or {}
    return str(nodeset["spec"].get("clusterName") or annotations.get(CLUSTER_ANNOTATION) or "")


def files_of(cluster: Object, nodesets: Sequence[Object], release: str) -> Files:
    """The files in ``/etc/slurm``, by their names. The release is 4.1 or 5.0; the NodeSets are those of the cluster."""
    nodesets = sorted(nodesets, key=lambda nodeset: str(nodeset["metadata"]["name"]))
    base = _slurm_conf(cluster, nodesets, release)
    # The user's lines come as they are.
    custom = [Line(COMMENT, " CUSTOM SLURM CONFIG"), *parsed(str(cluster["spec"].get("customSlurmConfig") or ""))]
    files = {BASE_FILES[release]: base, CUSTOM_FILES[release]: custom}
    rest = [Line(INCLUDE, "slurm.conf" if release == "4.1" else "/etc/slurm/slurm.conf"), Line("AuthType", "auth/jwt")]
    if release == "4.1":
        base.append(Line(INCLUDE, CUSTOM_FILES[release]))
    else:
        files["slurm.conf"] = [
            Line(INCLUDE, f"/etc/slurm/{name}") for name in (BASE_FILES[release], CUSTOM_FILES[release])
        ]
    return {
        **files,
        "slurm_rest.conf": rest,
        "cgroup.conf": _cgroup_conf(cluster),
        "gres.conf": _gres_conf(cluster, nodesets),
        "mpi.conf": [Line("PMIxEnv", _mpi(cluster))],
    }


def parsed(text: str) -> list[Line]:
    """Lines that somebody has written."""
    lines = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith(COMMENT):
            lines.append(Line(COMMENT, line[1:]))
        elif line.startswith(f"{INCLUDE} "):
            lines.append(Line(INCLUDE, line.partition(" ")[2]))
        else:
            key, _, value = line.partition("=")
            lines.append(Line(key, value))
    return lines


def replicas_of(nodeset: Object) -> int:
    return int(nodeset["spec"].get("replicas", 1))


def hostlist(nodeset: Object) -> str:
    """All node names of a NodeSet that has some."""
    name, replicas = nodeset["metadata"]["name"], replicas_of(nodeset)
    return f"{name}-0" if replicas == 1 else f"{name}-[0-{replicas - 1}]"


def real_memory(nodeset: Object) -> int:
    """What slurmd may use, in MiB, rounded down: neither that of the machine nor anything that ``static`` says."""
    asked = str((nodeset["spec"]["slurmd"].get("resources") or {}).get("memory", 0))
    unit = next((unit for unit in _UNITS if asked.endswith(unit)), "")
    amount = Decimal(asked.removesuffix(unit)) * _UNITS.get(unit, Decimal(1))
    return int(amount // 2**20)


def node_address(name: str, cluster: Object) -> str:
    metadata = cluster["metadata"]
    return f"{name}.{metadata['name']}-nodeset-svc.{metadata.get('namespace', 'soperator')}.svc.cluster.local"


def _slurm_conf(cluster: Object, nodesets: Sequence[Object], release: str) -> list[Line]:
    spec, name = cluster["spec"], cluster["metadata"]["name"]
    is_new = release != "4.1"
    lines: list[Line] = []

    def add(**values: Any) -> None:
        lines.extend(Line(key, str(value)) for key, value in values.items())

    # The prefix of new names is empty where the controller has been there since before: so it is here.
    add(ClusterName=name, SlurmctldHost=f"controller-0({name}-controller-svc)")
    add(AuthType="auth/munge", CredType="cred/munge")
    lines += _fields(_SLURM_CONFIG[release], spec.get("slurmConfig") or {})
    if _has_gpus(nodesets):
        add(GresTypes="gpu")
    add(MpiDefault="pmix", MailProg="/usr/bin/true", PluginDir="/usr/lib/slurm", ProctrackType="proctrack/cgroup")
    add(ReturnToService=2, SlurmctldPidFile="/var/run/slurmctld.pid")
    controller = spec["slurmNodes"]["controller"]
    add(SlurmctldPort=controller["slurmctld"].get("port", 6817))
    if (controller.get("openMetrics") or {}).get("enabled", True):
        add(MetricsType="metrics/openmetrics")
    add(SlurmdPidFile="/var/run/slurmd.pid", SlurmdSpoolDir="/var/spool/slurmd", SlurmUser="root")
    add(StateSaveLocation="/var/spool/slurmctld", TaskPlugin="task/cgroup,task/affinity")
    add(CliFilterPlugins="cli_filter/user_defaults", LaunchParameters="use_interactive_step")
    add(ScronParameters="enable,explicit_scancel", PropagateResourceLimits="NONE")
    scheduler = ["nohold_on_prolog_fail", "extra_constraints", "pack_serial_at_end"]
    scheduler += ["salloc_wait_nodes", "sbatch_wait_nodes"]
    if not is_new:
        add(SchedulerParameters=",".join(scheduler))
    if health := spec.get("healthCheckConfig"):
        add(HealthCheckInterval=health["healthCheckInterval"], HealthCheckProgram=health["healthCheckProgram"])
        add(HealthCheckNodeState=",".join(one["state"] for one in health["healthCheckNodeState"]))
    add(InactiveLimit=0, KillOnBadExit=1, KillWait=180, UnkillableStepTimeout=600)
    add(SlurmctldTimeout=180, SlurmdTimeout=180, TCPTimeout=15, WaitTime=0)
    add(SlurmctldParameters=",".join(_slurmctld_parameters(nodesets, is_new)))
    if is_new:
        add(PrologFlags="contain", RebootProgram="/opt/bin/slurm/reboot.sh")
        handoff = "soperator-worker-handoff Location=slurmd Program=/opt/bin/slurm/worker_handoff.py"
        add(PowerAction=handoff, ResumeProgram="/opt/soperator/bin/power_resume.sh")
        add(ResumeFailProgram="/opt/soperator/bin/power_resume_fail.sh")
    else:
        add(RebootProgram="/opt/bin/slurm/reboot.sh", ResumeTimeout=1800)
        add(ResumeProgram="/opt/soperator/bin/power_resume.sh")
    add(SuspendProgram="/opt/soperator/bin/power_suspend.sh", SuspendTimeout=90, ResumeRate=100, SuspendRate=100)
    add(ReconfigFlags="KeepPowerSaveSettings")
    if static := [hostlist(one) for one in nodesets if replicas_of(one) and not one["spec"].get("ephemeralNodes")]:
        add(SuspendExcNodes=",".join(static))
    add(SchedulerType="sched/backfill")
    if is_new:
        scheduler += ["defer_batch", "max_rpc_cnt=100", "bf_continue", "bf_max_time=60", "bf_max_job_test=1000"]
        scheduler += ["bf_max_job_part=300", "bf_running_job_reserve"]
        add(SchedulerParameters=",".join(scheduler))
    add(SelectType="select/cons_tres", SelectTypeParameters="CR_Core_Memory,CR_CORE_DEFAULT_DIST_BLOCK")
    add(SlurmctldDebug="debug", SlurmctldLogFile="/dev/null", SlurmdDebug="debug", SlurmdLogFile="/dev/null")
    add(DebugFlags="Script,Power")
    total = sum(map(replicas_of, nodesets)) if is_new else 0
    add(MaxNodeCount=max(1024, _next_power_of_two(2 * total)), MaxArraySize=max(1024, 5 * total))
    add(JobRequeue=1, PreemptMode="REQUEUE", PreemptType="preempt/partition_prio")
    lines += _partitions_and_nodes(cluster, nodesets, is_new=is_new)
    lines += _accounting(cluster, is_new=is_new)
    return lines


def _fields(defaults: Mapping[str, int | str], said: Object) -> list[Line]:
    """The operator writes these by reflection: a number always, a text unless it is empty."""
    by_name = {_json_name(name): name for name in defaults}
    values = {**{_json_name(name): value for name, value in defaults.items()}, **said}
    return [Line(name, str(values[key])) for key, name in by_name.items() if values[key] not in ("", None)]


def _json_name(go_name: str) -> str:
    return go_name[0].lower() + go_name[1:]


def _has_gpus(nodesets: Sequence[Object]) -> bool:
    return any((nodeset["spec"].get("gpu") or {}).get("enabled") for nodeset in nodesets)


def _slurmctld_parameters(nodesets: Sequence[Object], is_new: bool) -> list[str]:
    connections = max(1024, _next_power_of_two(2 * sum(map(replicas_of, nodesets)))) if is_new else 1024
    said = [f"conmgr_max_connections={connections}", "conmgr_threads=32"]
    if is_new:
        said += ["validate_nodeaddr_threads=32", "enable_stepmgr"]
    if any(nodeset["spec"].get("ephemeralNodes") for nodeset in nodesets):
        said += ["cloud_dns", "idle_on_node_suspend"]
    return said


def _next_power_of_two(number: int) -> int:
    return 1 if number <= 1 else 1 << (number - 1).bit_length()


def _partitions_and_nodes(cluster: Object, nodesets: Sequence[Object], *, is_new: bool) -> list[Line]:
    said = cluster["spec"].get("partitionConfiguration") or {}
    kind = said.get("configType", "default")
    if kind == "custom":
        raw = [line.strip() for line in said.get("rawConfig") or []]
        return [
            Line("PartitionName", line.replace("PartitionName=", "", 1))
            for line in raw
            if line.startswith("PartitionName")
        ]
    if kind == "structured":
        partitions = _partitions(said.get("partitions") or [], nodesets, is_new=is_new)
        return [*_nodes(cluster, nodesets, is_new=is_new), *partitions, *_nodesets(nodesets)]
    # Neither nodes nor NodeSets: a Slurm without any, as no slurmd registers by itself.
    tail = "MaxTime=INFINITE State=UP OverSubscribe=YES"
    return [
        Line("PartitionName", f"main Nodes=ALL Default=YES PriorityTier=10 {tail}"),
        Line("PartitionName", f"hidden Nodes=ALL Default=NO PriorityTier=10 PreemptMode=OFF Hidden=YES {tail}"),
    ]


def _none_defined(what: str) -> list[Line]:
    return [Line(COMMENT, f"WARNING: No {what} defined in structured configuration!")]


def _skipped(nodeset: Object) -> Line:
    return Line(COMMENT, f"WARNING: NodeSet {nodeset['metadata']['name']} has 0 replicas, skipping")


def _nodes(cluster: Object, nodesets: Sequence[Object], *, is_new: bool) -> list[Line]:
    lines = [] if nodesets else _none_defined("nodesets")
    for nodeset in nodesets:
        replicas = replicas_of(nodeset)
        if not replicas:
            lines.append(_skipped(nodeset))
        elif is_new:
            lines.append(_node(cluster, nodeset, hostlist(nodeset), is_new=True))
        else:
            name = nodeset["metadata"]["name"]
            lines += [_node(cluster, nodeset, f"{name}-{number}", is_new=False) for number in range(replicas)]
    return lines


def _node(cluster: Object, nodeset: Object, names: str, *, is_new: bool) -> Line:
    spec = nodeset["spec"]
    said = spec.get("nodeConfig") or {}
    words = [names, "State=CLOUD"]
    if not is_new:
        words.append(f"NodeHostname={names}")
    words += [f"NodeAddr={node_address(names, cluster)}", f"RealMemory={real_memory(nodeset)}"]
    if is_new and said.get("autoResume") is False:
        words.append("AutoResume=Off")
    if port := spec["slurmd"].get("port", 6818):
        words.append(f"Port={port}")
    if features := said.get("features"):
        words.append(f"Feature={','.join(features)}")
    static = str(said.get("static") or "").split(" ")
    words += [word for word in static if not word.startswith(("Feature=", "State="))]
    return Line("NodeName", " ".join(words).rstrip())


def _partitions(said: Sequence[Object], nodesets: Sequence[Object], *, is_new: bool) -> list[Line]:
    lines = [] if said else _none_defined("partitions")
    there = {nodeset["metadata"]["name"] for nodeset in nodesets if replicas_of(nodeset)}
    known = {nodeset["metadata"]["name"] for nodeset in nodesets}
    for partition in said:
        name, words = partition["name"], partition.get("config", "")
        refs = list(partition.get("nodeSetRefs") or [])
        if partition.get("isAll"):
            lines.append(Line("PartitionName", f"{name} Nodes=ALL {words}"))
            continue
        if not refs:
            why = f"Partition {name} has no nodeset refs and is not 'all', skipping"
            lines.append(Line(COMMENT, f"WARNING: {why}"))
            continue
        # Up to 4.1 they are written as they are, and a slurmctld takes no file that names what is not there.
        usable = [ref for ref in refs if ref in there] if is_new else refs
        for ref in refs if is_new else ():
            if ref not in there:
                why = "NodeSet has no replicas" if ref in known else "NodeSet does not exist"
                lines.append(
                    Line(COMMENT, f"WARNING: Partition {name} references NodeSet {ref} ignored: {why}"),
                )
        if not usable:
            why = f"Partition {name} has no usable nodeset refs, rendering it without nodes"
            lines.append(Line(COMMENT, f"WARNING: {why}"))
        lines.append(Line("PartitionName", f"{name} Nodes={','.join(usable) or chr(34) * 2} {words}"))
    return lines


def _nodesets(nodesets: Sequence[Object]) -> list[Line]:
    if not nodesets:
        return _none_defined("nodesets")
    return [
        Line("NodeSet", f"{nodeset['metadata']['name']} Nodes={hostlist(nodeset)}")
        if replicas_of(nodeset)
        else _skipped(nodeset)
        for nodeset in nodesets
    ]


def _accounting(cluster: Object, *, is_new: bool) -> list[Line]:
    nodes, metadata = cluster["spec"]["slurmNodes"], cluster["metadata"]
    accounting = nodes["accounting"]
    if not accounting.get("enabled"):
        return []
    host = f"{metadata['name']}-accounting-svc.{metadata.get('namespace', 'soperator')}.svc.cluster.local"
    lines = [Line("AccountingStorageType", "accounting_storage/slurmdbd"), Line("AccountingStorageHost", host)]
    if not is_new:
        lines.append(Line("AccountingStorageUser", "accounting"))
    lines += [Line("AccountingStoragePort", "6819"), Line("JobCompType", "jobcomp/none")]
    gathering = {"JobAcctGatherType": "jobacct_gather/none"} if is_new else {}
    lines += _fields(_ACCOUNTING_CONFIG | gathering, accounting.get("slurmConfig") or {})
    if (nodes.get("rest") or {}).get("enabled"):
        lines.append(Line("AuthAltTypes", "auth/jwt"))
        lines.append(Line("AuthAltParameters", "jwt_key=/var/spool/slurmctld/jwt_hs256.key"))
    return lines


def _gres_conf(cluster: Object, nodesets: Sequence[Object]) -> list[Line]:
    lines = [Line("AutoDetect", "nvidia")] if _has_gpus(nodesets) else []
    if (cluster["spec"].get("partitionConfiguration") or {}).get("configType") != "structured":
        return lines
    if not nodesets:
        return lines + _none_defined("nodesets")
    for nodeset in nodesets:
        if not replicas_of(nodeset):
            lines.append(_skipped(nodeset))
            continue
        # With brackets also where there is one.
        names = f"{nodeset['metadata']['name']}-[0-{replicas_of(nodeset) - 1}]"
        said = (nodeset["spec"].get("nodeConfig") or {}).get("gresConfig") or []
        lines += [Line("NodeName", f"{names} {line}") for line in said]
    return lines


def _cgroup_conf(cluster: Object) -> list[Line]:
    spec = cluster["spec"]
    lines = [Line("CgroupMountpoint", "/sys/fs/cgroup")]
    lines += [Line(key, "yes") for key in ("ConstrainCores", "ConstrainDevices", "ConstrainRAMSpace")]
    lines += [Line(key, value) for key, value in _CGROUP[spec.get("cgroupVersion", "v2")].items()]
    custom = parsed(str(spec.get("customCgroupConfig") or ""))
    keys = {line.key for line in custom}
    return [*(line for line in lines if line.key not in keys), *custom]


def _mpi(cluster: Object) -> str:
    return str((cluster["spec"].get("mpiConfig") or {}).get("pmixEnv", "OMPI_MCA_btl_tcp_if_include=eth0"))
