"""The lines that Soperator's operator makes of its objects, release by release, and what a sandbox changes of them."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.cloud.landscape import nodesets_of, slurm_cluster
from sandbox.cloud.slurm_config import Files, files_of, real_memory, text_of
from sandbox.cloud.slurm_overrides import hosts, overrides, sandboxed
from sandbox.settings import Settings
from sandbox.slurmd_ports import SlurmdPorts

STATIC = "CPUs=128 Boards=1 SocketsPerBoard=2 CoresPerSocket=32 ThreadsPerCore=2 Gres=gpu:nvidia_h100_80gb_hbm3:8"
MAIN = "Default=YES PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP OverSubscribe=YES"


def cluster(**spec: Any) -> dict[str, Any]:
    """One with nothing but what has no default."""
    enabled = {"enabled": True}
    nodes = {"controller": {"slurmctld": {}}, "accounting": enabled, "rest": enabled}
    partitions = {"configType": "structured", "partitions": [{"name": "main", "isAll": True, "config": MAIN}]}
    return {
        "metadata": {"name": "research", "namespace": "slurm"},
        "spec": {"slurmNodes": nodes, "partitionConfiguration": partitions, **spec},
    }


def nodeset(name: str, replicas: int = 1, **spec: Any) -> dict[str, Any]:
    slurmd = {"resources": {"memory": "1550Gi", "nvidia.com/gpu": "8"}, "port": 6818}
    said = {"replicas": replicas, "gpu": {"enabled": True}, "slurmd": slurmd, "nodeConfig": {"static": STATIC}}
    return {"metadata": {"name": name}, "spec": {**said, **spec}}


def conf(release: str, *nodesets: dict[str, Any], **spec: Any) -> dict[str, list[str]]:
    """The values of slurm.conf by their keys."""
    files = files_of(cluster(**spec), nodesets, release)
    found: dict[str, list[str]] = {}
    for line in files["slurm.conf" if release == "4.1" else "slurm_base.conf.noedit"]:
        found.setdefault(line.key, []).append(line.value)
    return found


def keys(files: Files, name: str) -> list[str]:
    return [line.key for line in files[name]]


def test_the_whole_file_of_4_1_in_the_order_of_the_operator() -> None:
    files = files_of(cluster(), [nodeset("gpu", 2, ephemeralNodes=True)], "4.1")
    assert sorted(files) == [
        *("cgroup.conf", "custom_slurm.conf", "gres.conf", "mpi.conf", "slurm.conf", "slurm_rest.conf"),
    ]
    assert text_of(files["slurm.conf"]) == (
        """\
ClusterName=research
SlurmctldHost=controller-0(research-controller-svc)
AuthType=auth/munge
CredType=cred/munge
DefMemPerNode=0
DefCpuPerGPU=4
CompleteWait=5
MaxJobCount=20000
MinJobAge=28800
MessageTimeout=60
TopologyPlugin=topology/tree
TopologyParam=SwitchAsNodeRank
SuspendTime=1000000000
GresTypes=gpu
MpiDefault=pmix
MailProg=/usr/bin/true
PluginDir=/usr/lib/slurm
ProctrackType=proctrack/cgroup
ReturnToService=2
SlurmctldPidFile=/var/run/slurmctld.pid
SlurmctldPort=6817
MetricsType=metrics/openmetrics
SlurmdPidFile=/var/run/slurmd.pid
SlurmdSpoolDir=/var/spool/slurmd
SlurmUser=root
StateSaveLocation=/var/spool/slurmctld
TaskPlugin=task/cgroup,task/affinity
CliFilterPlugins=cli_filter/user_defaults
LaunchParameters=use_interactive_step
ScronParameters=enable,explicit_scancel
PropagateResourceLimits=NONE
SchedulerParameters=nohold_on_prolog_fail,extra_constraints,pack_serial_at_end,salloc_wait_nodes,sbatch_wait_nodes
InactiveLimit=0
KillOnBadExit=1
KillWait=180
UnkillableStepTimeout=600
SlurmctldTimeout=180
SlurmdTimeout=180
TCPTimeout=15
WaitTime=0
SlurmctldParameters=conmgr_max_connections=1024,conmgr_threads=32,cloud_dns,idle_on_node_suspend
RebootProgram=/opt/bin/slurm/reboot.sh
ResumeTimeout=1800
ResumeProgram=/opt/soperator/bin/power_resume.sh
SuspendProgram=/opt/soperator/bin/power_suspend.sh
SuspendTimeout=90
ResumeRate=100
SuspendRate=100
ReconfigFlags=KeepPowerSaveSettings
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory,CR_CORE_DEFAULT_DIST_BLOCK
SlurmctldDebug=debug
SlurmctldLogFile=/dev/null
SlurmdDebug=debug
SlurmdLogFile=/dev/null
DebugFlags=Script,Power
MaxNodeCount=1024
MaxArraySize=1024
JobRequeue=1
PreemptMode=REQUEUE
PreemptType=preempt/partition_prio
"""
        + "".join(
            f"NodeName=gpu-{number} State=CLOUD NodeHostname=gpu-{number} "
            f"NodeAddr=gpu-{number}.research-nodeset-svc.slurm.svc.cluster.local RealMemory=1587200 Port=6818 "
            f"{STATIC}\n"
            for number in range(2)
        )
        + f"""\
PartitionName=main Nodes=ALL {MAIN}
NodeSet=gpu Nodes=gpu-[0-1]
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=research-accounting-svc.slurm.svc.cluster.local
AccountingStorageUser=accounting
AccountingStoragePort=6819
JobCompType=jobcomp/none
AccountingStorageTRES=CPU,Mem,Node,VMem,Gres/gpu
JobAcctGatherType=jobacct_gather/cgroup
JobAcctGatherFrequency=0
PriorityWeightAge=0
PriorityWeightFairshare=0
PriorityWeightQOS=0
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/var/spool/slurmctld/jwt_hs256.key
include custom_slurm.conf
"""
    )
    assert text_of(files["slurm_rest.conf"]) == "include slurm.conf\nAuthType=auth/jwt\n"


def test_the_files_of_5_0_and_where_it_differs() -> None:
    many = nodeset("gpu", 600, nodeConfig={"features": ["h100", "ib"], "static": STATIC, "autoResume": False})
    files = files_of(cluster(customSlurmConfig="MaxJobCount=7"), [many, nodeset("cpu", 1)], "5.0")
    includes = ["/etc/slurm/slurm_base.conf.noedit", "/etc/slurm/slurm_k8s_extra.conf.noedit"]
    assert [line.value for line in files["slurm.conf"]] == includes
    assert text_of(files["slurm_k8s_extra.conf.noedit"]) == "# CUSTOM SLURM CONFIG\nMaxJobCount=7\n"
    found = conf("5.0", many, nodeset("cpu", 1))
    addr = "research-nodeset-svc.slurm.svc.cluster.local"
    # One line for each NodeSet, by name, and without brackets where there is one node.
    assert found["NodeName"] == [
        f"cpu-0 State=CLOUD NodeAddr=cpu-0.{addr} RealMemory=1587200 Port=6818 {STATIC}",
        f"gpu-[0-599] State=CLOUD NodeAddr=gpu-[0-599].{addr} RealMemory=1587200 AutoResume=Off Port=6818"
        f" Feature=h100,ib {STATIC}",
    ]
    assert found["SlurmctldParameters"] == [
        "conmgr_max_connections=2048,conmgr_threads=32,validate_nodeaddr_threads=32,enable_stepmgr"
    ]
    assert (found["MaxNodeCount"], found["MaxArraySize"]) == (["2048"], ["3005"])
    assert found["MinJobAge"] == ["1800"]
    assert found["PrologFlags"] == ["contain"]
    assert found["SuspendExcNodes"] == ["cpu-0,gpu-[0-599]"]
    assert found["JobAcctGatherType"] == ["jobacct_gather/none"]
    assert "AccountingStorageUser" not in found
    order = keys(files, "slurm_base.conf.noedit")
    assert order.index("ResumeTimeout") < order.index("GresTypes")
    assert order.index("ResumeFailProgram") < order.index("SuspendProgram")
    assert order.index("SchedulerType") + 1 == order.index("SchedulerParameters") == order.index("SelectType") - 1


@pytest.mark.parametrize("release", ["4.1", "5.0"])
def test_only_static_says_what_a_node_has(release: str) -> None:
    bare = nodeset("gpu", 1, nodeConfig={"features": ["h100"], "gresConfig": ["AutoDetect=nvidia"]})
    (line,) = conf(release, bare)["NodeName"]
    assert line.endswith("RealMemory=1587200 Port=6818 Feature=h100")
    said = nodeset("gpu", 1, nodeConfig={"static": "CPUs=4 Feature=mine State=UNKNOWN Weight=3"})
    (line,) = conf(release, said)["NodeName"]
    assert line.endswith("Port=6818 CPUs=4 Weight=3")


@pytest.mark.parametrize("release", ["4.1", "5.0"])
def test_a_set_without_replicas_is_nowhere(release: str) -> None:
    found = conf(release, nodeset("gpu", 0), nodeset("cpu", 1))
    assert found["#"] == ["WARNING: NodeSet gpu has 0 replicas, skipping"] * 2
    assert found["NodeSet"] == ["cpu Nodes=cpu-0"]
    assert found["SuspendExcNodes"] == ["cpu-0"]


def test_partitions_of_sets_that_are_not_there() -> None:
    parts = [
        {"name": "both", "nodeSetRefs": ["gpu", "gone", "none"], "config": "State=UP"},
        {"name": "lost", "nodeSetRefs": ["gone"], "config": "State=UP"},
        {"name": "empty", "config": "State=UP"},
    ]
    said = {"configType": "structured", "partitions": parts}
    sets = (nodeset("gpu", 1), nodeset("none", 0))
    old = conf("4.1", *sets, partitionConfiguration=said)
    assert old["PartitionName"] == ["both Nodes=gpu,gone,none State=UP", "lost Nodes=gone State=UP"]
    new = conf("5.0", *sets, partitionConfiguration=said)
    assert new["PartitionName"] == ["both Nodes=gpu State=UP", 'lost Nodes="" State=UP']
    assert "WARNING: Partition both references NodeSet gone ignored: NodeSet does not exist" in new["#"]
    assert "WARNING: Partition both references NodeSet none ignored: NodeSet has no replicas" in new["#"]
    assert "WARNING: Partition empty has no nodeset refs and is not 'all', skipping" in new["#"]


@pytest.mark.parametrize("release", ["4.1", "5.0"])
def test_only_structured_partitions_have_nodes(release: str) -> None:
    """So no slurmd can register with the default of chart and CRD."""
    default = conf(release, nodeset("gpu"), partitionConfiguration={})
    assert "NodeName" not in default
    assert [line.split()[0] for line in default["PartitionName"]] == ["main", "hidden"]
    raw = {"configType": "custom", "rawConfig": ["  PartitionName=mine Nodes=ALL", "NodeName=no"]}
    custom = conf(release, nodeset("gpu"), partitionConfiguration=raw)
    assert (custom["PartitionName"], "NodeName" in custom) == (["mine Nodes=ALL"], False)


def test_what_is_off_is_not_there() -> None:
    controller = {"slurmctld": {"port": 7000}, "openMetrics": {"enabled": False}}
    parts = {"accounting": {"enabled": False}, "rest": {"enabled": True}, "controller": controller}
    cpu = nodeset("cpu", gpu={"enabled": False})
    health = {"healthCheckInterval": 120, "healthCheckProgram": "/hc", "healthCheckNodeState": [{"state": "ANY"}]}
    found = conf("5.0", cpu, slurmNodes=parts, healthCheckConfig=health, slurmConfig={"epilog": "/e", "minJobAge": 9})
    # REST's lines are inside those of accounting.
    assert not {"AuthAltTypes", "AccountingStorageType", "GresTypes", "MetricsType"} & found.keys()
    assert found["SlurmctldPort"] == ["7000"]
    assert (found["HealthCheckProgram"], found["Epilog"], found["MinJobAge"]) == (["/hc"], ["/e"], ["9"])


def test_gres_and_cgroups() -> None:
    lines = ["AutoDetect=off Name=gpu File=/dev/nvidia0"]
    sets = [nodeset("gpu", 1, nodeConfig={"gresConfig": lines}), nodeset("off", 0)]
    files = files_of(cluster(customCgroupConfig="ConstrainCores=no\nAllowedRAMSpace=90"), sets, "4.1")
    assert text_of(files["gres.conf"]) == (
        "AutoDetect=nvidia\n"
        "NodeName=gpu-[0-0] AutoDetect=off Name=gpu File=/dev/nvidia0\n"
        "#WARNING: NodeSet off has 0 replicas, skipping\n"
    )
    assert text_of(files["cgroup.conf"]) == (
        "CgroupMountpoint=/sys/fs/cgroup\nConstrainDevices=yes\nConstrainRAMSpace=yes\nCgroupPlugin=cgroup/v2\n"
        "ConstrainSwapSpace=no\nEnableControllers=yes\nIgnoreSystemd=yes\nConstrainCores=no\nAllowedRAMSpace=90\n"
    )


@pytest.mark.parametrize(
    ("asked", "mebibytes"), [("1550Gi", 1587200), ("64G", 61035), ("2147483648", 2048), ("512Mi", 512), ("1.5Gi", 1536)]
)
def test_memory_is_what_slurmd_asks_for(asked: str, mebibytes: int) -> None:
    assert real_memory(nodeset("gpu", slurmd={"resources": {"memory": asked}})) == mebibytes
    assert real_memory(nodeset("gpu", slurmd={})) == 0


# --------------------------------------------------------------------------------------------- what a sandbox changes


@pytest.mark.parametrize("slurm", ["24.11", "26.05"])
def test_a_sandbox_changes_nothing_but_what_it_says(slurm: str) -> None:
    settings = Settings(slurm=slurm, port_base=30000)
    objects = slurm_cluster(settings), nodesets_of(settings)
    real = files_of(*objects, settings.soperator)
    ports = SlurmdPorts(settings.ports)
    changed = sandboxed(*objects, settings, ports.first)
    base = "slurm.conf" if settings.soperator == "4.1" else "slurm_base.conf.noedit"
    known = {one.key for one in overrides(settings)} | {"DefMemPerNode", "DefMemPerCPU"}
    known |= {"SlurmctldParameters", "SchedulerParameters"}
    differ = {line.key for line in set(real[base]) ^ set(changed[base])}
    assert differ - known == {"NodeName"}
    for before, after in zip(
        (line.value for line in real[base] if line.key == "NodeName"),
        (line.value for line in changed[base] if line.key == "NodeName"),
        strict=True,
    ):
        assert {word.split("=")[0] for word in set(before.split()) ^ set(after.split())} == {"Port"}
    # The user's own file comes last, and so wins.
    if settings.soperator == "4.1":
        assert changed[base][-1].text == "include custom_slurm.conf"


def test_nodes_have_ports_of_their_own_which_they_keep() -> None:
    settings = Settings(slurm="26.05", port_base=30000)
    ports = SlurmdPorts(settings.ports)
    made = cluster()
    sets = [nodeset("worker", 4), nodeset("mine", 1)]
    text = text_of(sandboxed(made, sets, settings, ports.first)["slurm_base.conf.noedit"])
    assert "NodeName=worker-[0-3] Port=[30020-30023] State=CLOUD" in text
    first = ports.first("mine")
    assert f"NodeName=mine-0 Port={first} State=CLOUD" in text
    ranges = [range(start, start + count) for start, count in ports.ranges.values()]
    assert len({port for taken in ranges for port in taken}) == sum(map(len, ranges))
    assert (ports.first("mine"), ports.most("mine", 500)) == (first, 16)
    ports.forget_all_but({"worker"})
    assert ports.first("other") == first
    assert "127.0.0.1 mine-0 mine-0.research-nodeset-svc.slurm.svc.cluster.local" in hosts(made, sets)


def test_gpus_that_are_to_be_found_are_those_of_the_machine() -> None:
    settings = Settings(slurm="26.05", port_base=30000)

    def gres(**config: Any) -> str:
        sets = [nodeset("worker", 2, nodeConfig=config)]
        return text_of(sandboxed(cluster(), sets, settings, SlurmdPorts(settings.ports).first)["gres.conf"])

    found = "NodeName=worker-[0-1] Name=gpu Type=nvidia_h100_80gb_hbm3 File=/dev/nvidia[0-7]\n"
    assert gres(static=STATIC, gresConfig=["AutoDetect=nvidia"]) == found
    assert gres(static=STATIC) == found
    assert gres(static="CPUs=4 Gres=gpu:8") == "NodeName=worker-[0-1] Name=gpu File=/dev/nvidia[0-7]\n"
    # What slurm.conf does not declare, Slurm does not have.
    assert gres(static="CPUs=4", gresConfig=["AutoDetect=nvidia"]) == ""
    said = "AutoDetect=off Name=gpu File=/dev/nvidia0"
    assert gres(static=STATIC, gresConfig=[said]) == f"NodeName=worker-[0-1] {said}\n"
