"""The parts of a cluster: machines, file systems, partitions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

from airflow_provider_soperator.provisioning.fields import (
    Number,
    SpecMistake,
    Switch,
    check_least,
    check_name,
    check_path,
    preset_of,
)
from airflow_provider_soperator.values import is_template

#: Machines of one rack, which NVLink connects: a node set of them becomes one set of Slurm's for each rack.
RACK = 18
RACKED = "gpu-gb300"
POLICIES = ("AUTO", "FORBID", "STRICT")
#: Letters of a node set's name: Pods, and so Slurm's nodes, have it with "-rack12" and "-1234".
_LONGEST = 40
_DISKS = ("NETWORK_SSD", "NETWORK_SSD_NON_REPLICATED", "NETWORK_SSD_IO_M3")
#: What a partition's options may not say, as it is said already; MaxNodes and the like are others.
_GIVEN = re.compile(r"(?<!\w)(PartitionName|Nodes)=", re.IGNORECASE)
#: Disks that are made of pieces of this many GiB.
_PIECE = 93


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A machine's own disk."""

    size_gib: Number = 128
    type: str = "NETWORK_SSD"
    block_size_kib: Number = 4

    def __post_init__(self) -> None:
        check_least("size_gib of a disk", self.size_gib, 1)
        if not is_template(self.type) and self.type not in _DISKS:
            raise SpecMistake(f"a disk's type is {self.type!r}, but can be {', '.join(_DISKS)}")
        pieces = self.type in _DISKS[1:] and not is_template(self.size_gib)
        if pieces and int(self.size_gib) % _PIECE:
            raise SpecMistake(f"a disk of type {self.type} has {self.size_gib} GiB: name a multiple of {_PIECE}")


@dataclass(frozen=True, kw_only=True)
class Filesystem:
    """A shared file system: one that is made with the cluster, or one that is there, by its ``id``."""

    size_gib: Number | None = None
    id: str | None = None
    type: str | None = None
    block_size_kib: Number = 4
    #: Whether Terraform is to refuse to delete it.
    forbid_deletion: Switch | None = None

    def __post_init__(self) -> None:
        if (self.size_gib is None) == (self.id is None):
            raise SpecMistake("a file system is made, with a size_gib, or is there, with an id: say one of them")
        if self.size_gib is not None:
            check_least("size_gib of a file system", self.size_gib, 1)


@dataclass(frozen=True)
class Submount:
    """A file system of its own, at a path in the jail."""

    name: str
    mount_path: str
    filesystem: Filesystem

    def __post_init__(self) -> None:
        check_name("submount", self.name, _LONGEST)
        check_path(f"the submount {self.name}", self.mount_path)


@dataclass(frozen=True, kw_only=True)
class LocalNvme:
    """The disks that are in the machines, as room for containers, mounted in the jail."""

    devices: Number
    device_gb: Number
    mount_path: str = "/mnt/local-nvme"
    limit_gib: Number | None = None

    def __post_init__(self) -> None:
        check_least("devices of local_nvme", self.devices, 1)
        check_least("device_gb of local_nvme", self.device_gb, 1)
        check_path("local_nvme", self.mount_path)


@dataclass(frozen=True, kw_only=True)
class ServiceNodes:
    """Machines of services: controller, login, system, accounting, NFS."""

    platform: str = "cpu-d3"
    preset: str | None = None
    size: Number | None = None
    #: For the system nodes, whose number follows the size of the cluster.
    min_size: Number | None = None
    max_size: Number | None = None
    boot_disk: Disk = Disk(size_gib=256)

    def __post_init__(self) -> None:
        for name in ("size", "min_size", "max_size"):
            if getattr(self, name) is not None:
                check_least(name, getattr(self, name), 1)


@dataclass(frozen=True)
class NodeSet:
    """Workers of one kind.

        NodeSet("worker", 16, platform="gpu-h100-sxm", preset="8gpu-128vcpu-1600gb", fabric="fabric-3",
                ephemeral=True, initial=4, blocks=("capacityblockgroup-e00example",))

    With ``blocks`` the machines come out of these and from nowhere else (``reservation="STRICT"``). What would be
    bought beside a block has to be asked for, by ``reservation="AUTO"``.
    """

    name: str
    #: Machines; of an ephemeral set those that Slurm may power up.
    size: Number
    platform: str = field(kw_only=True)
    preset: str = field(kw_only=True)
    #: The InfiniBand fabric, or the GPU cluster that is there.
    fabric: str | None = field(default=None, kw_only=True)
    gpu_cluster: str | None = field(default=None, kw_only=True)
    #: With False there are always ``size`` machines.
    autoscaling: Switch | None = field(default=None, kw_only=True)
    #: How far down the machines may go; "all" keeps as many as ``size``.
    min_size: Number | Literal["all"] | None = field(default=None, kw_only=True)
    ephemeral: Switch = field(default=False, kw_only=True)
    #: Ephemeral nodes that are on at first.
    initial: Number | None = field(default=None, kw_only=True)
    #: Whether jobs power up nodes that are off.
    auto_resume: Switch | None = field(default=None, kw_only=True)
    blocks: tuple[str, ...] = field(default=(), kw_only=True)
    reservation: str | None = field(default=None, kw_only=True)
    preemptible: Switch = field(default=False, kw_only=True)
    boot_disk: Disk = field(default=Disk(size_gib=512), kw_only=True)
    local_nvme: LocalNvme | None = field(default=None, kw_only=True)
    features: tuple[str, ...] = field(default=(), kw_only=True)
    #: How long Kubernetes waits for a node's Pods when it replaces the machine, such as "2h"; "0s" has no end.
    drain_timeout: str | None = field(default=None, kw_only=True)
    max_pods: Number | None = field(default=None, kw_only=True)
    #: Further fields, by the names that the recipe has for them.
    extra: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        check_name("node set", self.name, _LONGEST)
        where = f"node set {self.name}"
        check_least(f"{where}: size", self.size, 1)
        self._check_machines(where)
        self._check_numbers(where)
        self._check_reservation(where)

    def _check_machines(self, where: str) -> None:
        if is_template(self.preset) or is_template(self.platform):
            return
        preset = preset_of(self.preset)
        if preset is None:
            raise SpecMistake(f"{where}: {self.preset!r} is no preset; one is written as 8gpu-128vcpu-1600gb")
        if bool(preset.gpus) != self.platform.startswith("gpu-"):
            raise SpecMistake(f"{where}: the platform {self.platform} has no preset {self.preset}; look at both again")
        if not (self.fabric or self.gpu_cluster):
            return
        if self.fabric and self.gpu_cluster:
            raise SpecMistake(f"{where}: a gpu_cluster has its fabric already; say one of them")
        if preset.gpus != 8 and self.platform != RACKED:
            raise SpecMistake(
                f"{where}: a machine of preset {self.preset} cannot be on a fabric, as only whole machines, with all "
                "8 GPUs, can; take the 8gpu preset, or leave the fabric out"
            )

    def _check_numbers(self, where: str) -> None:
        if self.min_size is not None and self.min_size != "all":
            check_least(f"{where}: min_size", self.min_size, 0)
            if not is_template(self.size) and not is_template(self.min_size) and int(self.min_size) > int(self.size):
                raise SpecMistake(f"{where}: min_size is {self.min_size}, which is above its size {self.size}")
        if self.min_size is not None and self.autoscaling is False:
            raise SpecMistake(f"{where}: min_size means nothing without autoscaling; leave one of them out")
        if self.initial is not None:
            check_least(f"{where}: initial", self.initial, 0)
            if self.ephemeral is False:
                raise SpecMistake(f"{where}: initial is for ephemeral nodes; set ephemeral=True, or leave it out")
            if not is_template(self.size) and not is_template(self.initial) and int(self.initial) > int(self.size):
                raise SpecMistake(f"{where}: initial is {self.initial}, which is above its size {self.size}")

    def _check_reservation(self, where: str) -> None:
        policy = self.reservation
        if policy is not None and not is_template(policy) and policy not in POLICIES:
            raise SpecMistake(f"{where}: reservation is {policy!r}, but can be {', '.join(POLICIES)}")
        for block in self.blocks:
            if not is_template(block) and not block.startswith("capacityblockgroup-"):
                raise SpecMistake(f"{where}: {block!r} is no capacity block; its id begins with capacityblockgroup-")
        if policy == "STRICT" and not self.blocks:
            raise SpecMistake(f"{where}: reservation STRICT takes machines out of blocks only: name them in blocks")
        if policy == "FORBID" and self.blocks:
            raise SpecMistake(f"{where}: reservation FORBID keeps off blocks, and some are named; leave one out")

    @property
    def policy(self) -> str | None:
        """The reservation policy. With blocks it is never one that may buy beside them, unless that was said."""
        return self.reservation or ("STRICT" if self.blocks else None)

    @property
    def slurm_names(self) -> tuple[str, ...]:
        """The node sets that Slurm has for it."""
        if self.platform != RACKED or is_template(self.size):
            return (self.name,)
        return tuple(f"{self.name}-rack{rack}" for rack in range(ceil(int(self.size) / RACK)))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of combinations that are allowed, and mostly not meant."""
        keeps = self.autoscaling is False or self.min_size == "all" or self.min_size == self.size
        if self.ephemeral is True and keeps:
            return (
                f"node set {self.name}: its nodes are ephemeral, but its machines are not: they stay when Slurm powers "
                "nodes down, and the GPUs stay in use. Leave autoscaling on, with a min_size below the size",
            )
        if self.ephemeral is False and self.min_size is None and self.autoscaling is not False:
            return (
                f"node set {self.name}: its nodes are static, and the recipe may let the number of its machines go "
                'down to 0; set min_size="all" once they are there',
            )
        return ()


@dataclass(frozen=True)
class PartitionSpec:
    """A partition of Slurm: of all node sets, or of some."""

    name: str
    nodesets: tuple[str, ...] = ()
    #: As slurm.conf has it: "Default=YES MaxTime=INFINITE State=UP".
    config: str = field(default="State=UP", kw_only=True)
    topology: str = field(default="flat", kw_only=True)

    def __post_init__(self) -> None:
        if not is_template(self.name) and (not self.name or self.name.split() != [self.name]):
            raise SpecMistake(f"{self.name!r} cannot be the name of a partition")
        if _GIVEN.search(self.config):
            raise SpecMistake(f"partition {self.name}: its name and its nodes do not belong into its config")
