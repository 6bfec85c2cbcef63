"""The configuration files of a sandbox's Slurm and sshd, rendered the way Soperator renders them."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.settings import (
    CLUSTER,
    EPHEMERAL_SET,
    LOOPBACK,
    MAX_STATIC,
    MAX_WORKERS,
    NAMESPACE,
    STATIC_SET,
    Settings,
)

CPUS_PER_NODE = 16
MEMORY_PER_NODE = 64_000
JWT_KEY = "/var/spool/slurmctld/jwt_hs256.key"
#: Where the jobs of active checks write to.
CHECK_OUTPUTS = "/opt/soperator-outputs/slurm_jobs"
GPU_FILE = "/dev/nvidia{}"
DATABASE = "slurm_acct_db"
DATABASE_FILE = "etc/mysql/sandbox.sql"


@dataclass(frozen=True)
class NodeSetShape:
    """What slurm.conf says about one NodeSet."""

    name: str
    replicas: int
    gpus: int
    ephemeral: bool

    @property
    def hostlist(self) -> str:
        return f"{self.name}-[0-{self.replicas - 1}]"


def shapes(settings: Settings, replicas: dict[str, int] | None = None) -> list[NodeSetShape]:
    """The node sets of a sandbox, with the replicas of now if they have changed; empty sets are not rendered."""
    wanted = {EPHEMERAL_SET: settings.workers, STATIC_SET: settings.static} | (replicas or {})
    sets = [
        NodeSetShape(EPHEMERAL_SET, wanted[EPHEMERAL_SET], settings.gpus, ephemeral=True),
        NodeSetShape(STATIC_SET, wanted[STATIC_SET], 0, ephemeral=False),
    ]
    return [shape for shape in sets if shape.replicas > 0]


def slurm_conf(settings: Settings, nodesets: list[NodeSetShape], *, auth: str = "auth/munge") -> str:
    """slurm.conf: Soperator's settings, with time-outs in seconds where it has minutes."""
    ports = settings.ports
    lines = [
        f"ClusterName={CLUSTER}",
        f"SlurmctldHost=controller-0({LOOPBACK})",
        f"SlurmctldPort={ports.slurmctld}",
        "SlurmUser=root",
        "SlurmdUser=root",
        f"AuthType={auth}",
        "AuthAltTypes=auth/jwt",
        f"AuthAltParameters=jwt_key={JWT_KEY}",
        "CredType=cred/munge",
        # Loopback only: nobody outside this machine has any business here.
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        "StateSaveLocation=/var/spool/slurmctld",
        "SlurmdSpoolDir=/var/spool/slurmd/%n",
        "SlurmctldPidFile=/run/slurmctld.pid",
        "SlurmdPidFile=/run/slurmd-%n.pid",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd-%n.log",
        "SlurmSchedLogFile=/dev/null",
        "DebugFlags=Script,Power",
        # There are no cgroups to own in a sandbox, so jobs are tracked by their process tree.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=5",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        # A job that does not say how much memory it wants must not take the whole node.
        "DefMemPerCPU=1000",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=nohold_on_prolog_fail,extra_constraints,pack_serial_at_end,"
        "salloc_wait_nodes,sbatch_wait_nodes,bf_interval=2,sched_min_interval=100000",
        "TopologyPlugin=topology/tree",
        "GresTypes=gpu",
        # The nodes are larger on paper than this machine is.
        "SlurmdParameters=config_overrides",
        "LaunchParameters=use_interactive_step",
        "CliFilterPlugins=cli_filter/user_defaults",
        "ScronParameters=enable,explicit_scancel",
        "PropagateResourceLimits=NONE",
        "MpiDefault=none",
        "ReturnToService=2",
        "JobRequeue=1",
        "PreemptMode=REQUEUE",
        "PreemptType=preempt/partition_prio",
        "MaxJobCount=20000",
        "MaxArraySize=10001",
        f"MinJobAge={settings.min_job_age}",
        f"MessageTimeout={settings.message_timeout}",
        f"SlurmdTimeout={settings.slurmd_timeout}",
        f"KillWait={settings.kill_wait}",
        "UnkillableStepTimeout=60",
        "TCPTimeout=5",
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={LOOPBACK}",
        f"AccountingStoragePort={ports.slurmdbd}",
        "AccountingStorageTRES=gres/gpu",
        "PriorityType=priority/multifactor",
        "PriorityWeightAge=1000",
        "PriorityWeightFairshare=10000",
        "PriorityWeightJobSize=100",
        "PriorityWeightQOS=10000",
        *_power_saving(settings, nodesets),
        *(line for shape in nodesets for line in _nodes(settings, shape)),
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10",
        "PartitionName=hidden Nodes=ALL Hidden=YES MaxTime=INFINITE State=UP PriorityTier=10",
        *settings.slurm_conf,
    ]
    return "\n".join(lines) + "\n"


def _power_saving(settings: Settings, nodesets: list[NodeSetShape]) -> list[str]:
    lines = [
        "ResumeProgram=/opt/soperator/bin/power_resume.sh",
        "SuspendProgram=/opt/soperator/bin/power_suspend.sh",
        # INFINITE would switch power saving off, and with it `scontrol power`.
        "SuspendTime=1000000000",
        "PrologSlurmctld=/opt/soperator/bin/prolog_slurmctld.sh",
        f"ResumeTimeout={settings.resume_timeout}",
        f"SuspendTimeout={settings.suspend_timeout}",
        # Nodes a minute: 100 would be little more than one at each look of the power saving thread.
        "ResumeRate=6000",
        "SuspendRate=6000",
        "ReconfigFlags=KeepPowerSaveSettings",
    ]
    if settings.has_resume_fail_program:
        lines.append("ResumeFailProgram=/opt/soperator/bin/power_resume_fail.sh")
    # Look each second. With an interval of 1 a change in the second of the last look waits for the next but one.
    parameters = ["power_save_interval=0", "power_save_min_interval=0"]
    if any(shape.ephemeral for shape in nodesets):
        parameters = ["cloud_dns", "idle_on_node_suspend", *parameters]
    lines.append(f"SlurmctldParameters={','.join(parameters)}")
    static = [shape.hostlist for shape in nodesets if not shape.ephemeral]
    if static:
        lines.append(f"SuspendExcNodes={','.join(static)}")
    return lines


def _nodes(settings: Settings, shape: NodeSetShape) -> list[str]:
    first = settings.ports.first_slurmd(shape.name)
    gres = f" Gres=gpu:{shape.gpus}" if shape.gpus else ""
    node = (
        f"NodeName={shape.hostlist} NodeAddr={shape.hostlist}.{_service_domain()} State=CLOUD"
        f" Port=[{first}-{first + shape.replicas - 1}] CPUs={CPUS_PER_NODE} RealMemory={MEMORY_PER_NODE}"
        f" Feature=platform-{'gpu' if shape.gpus else 'cpu'}{gres}"
    )
    return [node, f"NodeSet={shape.name} Nodes={shape.hostlist}"]


def gres_conf(nodesets: list[NodeSetShape]) -> str:
    return "".join(
        f"NodeName={shape.hostlist} Name=gpu File={GPU_FILE.format(f'[0-{shape.gpus - 1}]')}\n"
        for shape in nodesets
        if shape.gpus
    )


def topology_conf(nodesets: list[NodeSetShape], *, per_switch: int = 4) -> str:
    """A root switch over leaves of a few nodes each, so that there is something to be near to."""
    leaves = []
    for shape in nodesets:
        for number, start in enumerate(range(0, shape.replicas, per_switch)):
            last = min(start + per_switch, shape.replicas) - 1
            leaves.append(f"SwitchName={shape.name}-leaf{number} Nodes={shape.name}-[{start}-{last}]")
    names = ",".join(leaf.split()[0].removeprefix("SwitchName=") for leaf in leaves)
    return "\n".join([*leaves, f"SwitchName=root Switches={names}"]) + "\n"


def slurmdbd_conf(settings: Settings) -> str:
    return "\n".join(
        [
            "AuthType=auth/munge",
            "AuthAltTypes=auth/jwt",
            f"AuthAltParameters=jwt_key={JWT_KEY}",
            "CommunicationParameters=NoInAddrAny",
            "DbdHost=localhost",
            f"DbdAddr={LOOPBACK}",
            f"DbdPort={settings.ports.slurmdbd}",
            "SlurmUser=root",
            "PidFile=/run/slurmdbd.pid",
            "LogFile=/var/log/slurm/slurmdbd.log",
            # MariaDB knows root by its socket; there is no password to keep.
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            f"StorageLoc={DATABASE}",
            "PurgeJobAfter=12months",
            "",
        ]
    )


def mariadb_conf() -> str:
    """A database for one short life: small, reached by its socket only, in no hurry to reach the disk."""
    return (
        "[mariadbd]\nskip-networking\ninnodb_buffer_pool_size=128M\ninnodb_log_file_size=64M\n"
        # From 11.6 on it is on, and slurmdbd ends when two of its writes meet, mostly at a full hour, when it sums up.
        "loose_innodb_snapshot_isolation=OFF\n"
        # A slurmdbd that makes its database itself ends at its first query, with the client library from 11.8.9 on.
        f"init_file=/{DATABASE_FILE}\n"
        "innodb_lock_wait_timeout=900\ninnodb_flush_log_at_trx_commit=2\nmax_allowed_packet=16M\n"
    )


def sshd_config(settings: Settings) -> str:
    """The login node's sshd: keys only, and the stock limits on sessions and start-ups that clients must live with."""
    return "\n".join(
        [
            f"Port {settings.ports.ssh}",
            f"ListenAddress {LOOPBACK}",
            "HostKey /etc/ssh/ssh_host_ed25519_key",
            "PidFile /run/sshd.pid",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "AllowTcpForwarding yes",
            "X11Forwarding no",
            "PrintMotd no",
            "UseDNS no",
            "MaxSessions 10",
            "MaxStartups 10:30:100",
            # All clients have one address here, so one with a wrong key would shut out all others for a while; and the
            # OpenSSH of Soperator's login node is too old to do so.
            "PerSourcePenalties no",
            "ClientAliveInterval 3600",
            "Subsystem sftp internal-sftp",
            "",
        ]
    )


def hosts() -> str:
    """All Pods of the sandbox by their short and their cluster names; every one of them is this machine."""
    lines = [f"{LOOPBACK} localhost", f"{LOOPBACK} controller-0 login-0 accounting-0 rest-0"]
    for name, count in ((EPHEMERAL_SET, MAX_WORKERS), (STATIC_SET, MAX_STATIC)):
        lines += [f"{LOOPBACK} {name}-{n} {name}-{n}.{_service_domain()}" for n in range(count)]
    return "\n".join(lines) + "\n"


def _service_domain() -> str:
    return f"{CLUSTER}-nodeset-svc.{NAMESPACE}.svc.cluster.local"


def slurm_files(settings: Settings, nodesets: list[NodeSetShape]) -> dict[str, str]:
    """The files that change when a NodeSet is scaled, by their path in the root."""
    return {
        "etc/slurm/slurm.conf": slurm_conf(settings, nodesets),
        # slurmrestd authenticates to slurmctld with the token of its caller, so it reads a file of its own.
        "etc/slurm/slurm_rest.conf": slurm_conf(settings, nodesets, auth="auth/jwt"),
        "etc/slurm/gres.conf": gres_conf(nodesets),
        "etc/slurm/topology.conf": topology_conf(nodesets),
    }


def all_files(settings: Settings) -> dict[str, str]:
    """Every configuration file of a new sandbox, by its path in the root."""
    return {
        **slurm_files(settings, shapes(settings)),
        "etc/slurm/slurmdbd.conf": slurmdbd_conf(settings),
        "etc/slurm/cgroup.conf": "CgroupPlugin=disabled\n",
        "etc/slurm/plugstack.conf": "",
        "etc/ssh/sshd_config": sshd_config(settings),
        "etc/mysql/mariadb.conf.d/90-sandbox.cnf": mariadb_conf(),
        DATABASE_FILE: f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n",
        "etc/hosts": hosts(),
        "etc/hostname": "controller-0\n",
    }
