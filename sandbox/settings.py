"""What a sandbox is made of: its size, time-outs, ports and folders, kept as one JSON file beside its state."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from sandbox.errors import SandboxError

LOOPBACK = "127.0.0.1"
#: The environment of every process in the root: nothing of the caller's means anything there.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
NAMESPACE = "soperator"
CLUSTER = "soperator"
EPHEMERAL_SET = "worker"
STATIC_SET = "worker-cpu"
#: The account besides root that the login node has; it may submit jobs but not power nodes.
USER = "alice"

#: Slurm versions that can be had, and the Debian suite that carries each.
SUITES = {"24.11": "trixie", "26.05": "testing"}
#: The Soperator line whose habits go with a Slurm version (see docs/sandbox.md, "Which Soperator").
SOPERATOR_OF_SLURM = {"24.11": "4.1", "26.05": "5.0"}
#: The release of each line that the sandbox's objects name.
RELEASES = {"4.1": "4.1.7", "5.0": "5.0.0"}

FIRST_PORT_BASE = 26000
#: Each sandbox has a range of ports of its own.
PORTS_PER_SANDBOX = 200
MAX_WORKERS = 96
MAX_STATIC = 64


def home() -> Path:
    """Where all sandboxes and the cached roots of this machine live."""
    return Path(os.environ.get("SOPERATOR_SANDBOX_HOME", "/var/lib/soperator-sandbox")).absolute()


def _soperator_of(slurm: str) -> str:
    """The Soperator line of the newest Slurm here that is not newer than this one."""
    return SOPERATOR_OF_SLURM[max((known for known in SOPERATOR_OF_SLURM if known <= slurm), default=min(SUITES))]


class AirflowPorts(NamedTuple):
    """Where an Airflow listens."""

    api: int
    worker_logs: int
    triggerer_logs: int


@dataclass(frozen=True)
class Ports:
    """The ports of one sandbox, by their place in its range."""

    base: int

    @property
    def ssh(self) -> int:
        return self.base

    @property
    def slurmctld(self) -> int:
        return self.base + 1

    @property
    def slurmdbd(self) -> int:
        return self.base + 2

    @property
    def slurmrestd(self) -> int:
        return self.base + 3

    @property
    def kubernetes(self) -> int:
        return self.base + 4

    @property
    def nebius(self) -> int:
        return self.base + 5

    @property
    def airflow(self) -> AirflowPorts:
        """Of the Airflow beside it, if there is one."""
        return AirflowPorts(self.base + 6, self.base + 7, self.base + 8)

    @property
    def inference_kubernetes(self) -> int:
        return self.base + 9

    @property
    def prometheus(self) -> int:
        return self.base + 10

    @property
    def database(self) -> int:
        """Of an Airflow that needs one beside it."""
        return self.base + 11

    def services(self) -> dict[str, int]:
        doubles = ("kubernetes", "inference_kubernetes", "nebius", "prometheus")
        names = ("ssh", "slurmctld", "slurmdbd", "slurmrestd", *doubles)
        return {name: getattr(self, name) for name in names}

    @property
    def slurmds(self) -> range:
        """Of all nodes; which NodeSet has which of them is told by ``sandbox.slurmd_ports``."""
        return range(self.base + 20, self.base + PORTS_PER_SANDBOX)


@dataclass
class Settings:
    """One sandbox as its user asked for it. Seconds where Soperator has minutes."""

    name: str = "default"
    slurm: str = "24.11"
    #: A folder with the root of a Debian in which a Slurm is installed; empty: a cached root, built if need be.
    root: str = ""
    #: "4.1" or "5.0"; empty: the one that goes with the Slurm version.
    soperator: str = ""
    workers: int = 8
    gpus: int = 8
    static: int = 2
    #: Ephemeral workers that are on when the sandbox comes up.
    initial: int = 1
    #: GPUs in the capacity block; 0: as many as the workers have.
    block: int = 0
    #: Soperator's operator alone: no SlurmCluster, and no Slurm until somebody makes one.
    bare: bool = False
    #: First port of its range; 0: the next range that is free.
    port_base: int = 0
    resume_timeout: int = 30
    suspend_timeout: int = 4
    slurmd_timeout: int = 30
    min_job_age: int = 300
    kill_wait: int = 2
    message_timeout: int = 10
    #: Seconds a machine takes to boot, to be removed once it stands empty, and to leave the block.
    vm_boot: float = 1.0
    vm_lag: float = 4.0
    vm_removal: float = 1.0
    #: Seconds from a change of images or resources in the objects until Pods begin to follow it.
    rollout_lag: float = 2.0
    #: Seconds between two looks of Flux at values that it was not told of (Soperator: 300).
    flux_interval: float = 10.0
    #: Seconds that a backup of the jail takes.
    backup_time: float = 2.0
    #: "on": Soperator's check controllers act on drains and on conditions of Nodes; "off": nobody does.
    checks: str = "on"
    #: "on" or "off": machines are replaced for drains, and up to 4.1 nodes are tested further before that. Empty: as
    #: the recipe has it; in a bare sandbox as the charts have it.
    node_replacement: str = ""
    extensive_check: str = ""
    #: Seconds between two looks of theirs, up to three times as long while nothing changes (Soperator: up to 180).
    checks_interval: float = 1.0
    #: Lines added at the end of slurm.conf, as SlurmCluster.spec.customSlurmConfig adds them.
    slurm_conf: list[str] = field(default_factory=list)
    #: Folders of this machine that are in the root, too, at the same paths, as of an Airflow whose tasks run on nodes.
    visible: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.root and self.slurm not in SUITES:
            raise SandboxError(f"there is no Slurm {self.slurm} here", f"choose one of {', '.join(SUITES)}")
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", self.name):
            raise SandboxError(
                f"{self.name!r} cannot name a sandbox", "use up to 32 lower-case letters, digits and dashes"
            )
        self.soperator = self.soperator or _soperator_of(self.slurm)
        if self.soperator not in SOPERATOR_OF_SLURM.values():
            raise SandboxError(f"there is no Soperator {self.soperator} here", "choose 4.1 or 5.0")
        self.node_replacement = self.node_replacement or ("off" if self.bare else "on")
        self.extensive_check = self.extensive_check or ("off" if self.bare or self.soperator != "4.1" else "on")
        for option in ("checks", "node_replacement", "extensive_check"):
            if (value := getattr(self, option)) not in ("on", "off"):
                what = f"--{option.replace('_', '-')} {value} is neither of the two that there are"
                raise SandboxError(what, "choose on or off")
        self._check("--checks-interval", self.checks_interval, 0.1, 3600)
        self._check("--workers", self.workers, 1, MAX_WORKERS)
        self._check("--static", self.static, 0, MAX_STATIC)
        self._check("--gpus", self.gpus, 1, 64)
        if self.port_base:
            self._check("--port-base", self.port_base, 1024, 65535 - PORTS_PER_SANDBOX)
        self.block = self.block or self.workers * self.gpus
        self._check("--block", self.block, self.gpus, 100_000)
        self._check("--initial", self.initial, 0, min(self.workers, self.block // self.gpus))
        for option in ("resume_timeout", "suspend_timeout", "slurmd_timeout", "message_timeout"):
            self._check(f"--{option.replace('_', '-')}", getattr(self, option), 1, 100_000)
        lags = ("vm_boot", "vm_lag", "vm_removal", "rollout_lag", "backup_time", "flux_interval")
        for option in ("min_job_age", "kill_wait", *lags):
            self._check(f"--{option.replace('_', '-')}", getattr(self, option), 0, 100_000)

    @staticmethod
    def _check(option: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            raise SandboxError(f"{option} {value} is out of range", f"use {low} to {high}")

    @property
    def ports(self) -> Ports:
        return Ports(self.port_base)

    @property
    def paths(self) -> Paths:
        return Paths(home() / "sandboxes" / self.name)

    @property
    def auto_undrains(self) -> bool:
        """Up to 4.1 the start of a worker's Pod wipes drain, reason and comment of its Slurm node."""
        return self.soperator == "4.1"

    @property
    def replaces_nodes(self) -> bool:
        return self.node_replacement == "on"

    @property
    def tests_suspects(self) -> bool:
        return self.extensive_check == "on"

    @property
    def has_checks(self) -> bool:
        return self.checks == "on"

    @property
    def has_resume_fail_program(self) -> bool:
        return self.soperator != "4.1"

    def save(self) -> None:
        self.paths.settings.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, file: Path) -> Settings:
        known = {f.name for f in fields(cls)}
        stored: dict[str, Any] = json.loads(file.read_text())
        return cls(**{key: value for key, value in stored.items() if key in known})


@dataclass(frozen=True)
class Paths:
    """The files of one sandbox. ``down`` removes the whole folder."""

    state: Path

    @property
    def settings(self) -> Path:
        return self.state / "settings.json"

    @property
    def access(self) -> Path:
        """The one file with all that a client needs."""
        return self.state / "access.json"

    @property
    def root(self) -> Path:
        """Mount point of the sandbox's root; what it shows exists only inside the sandbox's mount namespace."""
        return self.state / "root"

    @property
    def upper(self) -> Path:
        """All that this sandbox wrote over the cached root."""
        return self.state / "upper"

    @property
    def work(self) -> Path:
        return self.state / "work"

    @property
    def pid(self) -> Path:
        return self.state / "init.pid"

    @property
    def control(self) -> Path:
        return self.state / "init.sock"

    @property
    def cloud_control(self) -> Path:
        return self.state / "cloud.sock"

    @property
    def cloud_state(self) -> Path:
        return self.state / "cloud.json"

    @property
    def ledger(self) -> Path:
        return self.state / "ledger.jsonl"

    @property
    def operated(self) -> Path:
        """There once it is the operator that starts and ends the daemons of the Slurm, and no longer ``up``."""
        return self.state / "operated"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def secrets(self) -> Path:
        return self.state / "secrets"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def inference_kubeconfig(self) -> Path:
        return self.state / "kubeconfig-inference"

    @property
    def airflow(self) -> Path:
        """The home of the Airflow beside the sandbox; there is none before the first demonstration."""
        return self.state / "airflow"
