"""Parts of a cluster: machines, file systems, partitions."""

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
    check_one_of,
    check_parts,
    check_path,
    preset_of,
    take_texts,
)
from airflow_provider_soperator.values import is_template

#: Machines of one rack, connected by NVLink: Slurm gets one node set for each rack.
RACK = 18
RACKED = "gpu-gb300"
POLICIES = ("AUTO", "FORBID", "STRICT")
#: Characters of a node set's name: names of Pods, and so of nodes, append "-rack12" and "-1234".
_LONGEST = 40
_DISKS = ("NETWORK_SSD", "NETWORK_SSD_NON_REPLICATED", "NETWORK_SSD_IO_M3")
#: Fields of the recipe that are not for ``extra``: by these in their place nodes that are on are guarded.
_GUARDED = {"ephemeral_nodes": "ephemeral", "initial_number_ephemeral_nodes": "initial"}
#: Options that a partition's config may not have, as they are set elsewhere; MaxNodes and the like do not match.
_GIVEN = re.compile(r"(?<!\w)(PartitionName|Nodes)=", re.IGNORECASE)
#: Size in GiB of the pieces of which some disks are made.
_PIECE = 93


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A machine's own disk."""

    size_gib: Number = 128
    type: str = "NETWORK_SSD"
    block_size_kib: Number = 4

    def __post_init__(self) -> None:
        check_least("size_gib of a disk", self.size_gib, 1)
        check_one_of("type of a disk", self.type, _DISKS)
        if self.type in _DISKS[1:] and not is_template(self.size_gib) and int(self.size_gib) % _PIECE:
            raise SpecMistake(f"size_gib of a {self.type} disk must be a multiple of {_PIECE}, got {self.size_gib}")


@dataclass(frozen=True, kw_only=True)
class Filesystem:
    """A shared file system: a new one, or an existing one by its ``id``."""

    size_gib: Number | None = None
    id: str | None = None
    type: str | None = None
    block_size_kib: Number = 4
    #: Make Terraform refuse to delete it.
    forbid_deletion: Switch | None = None

    def __post_init__(self) -> None:
        if (self.size_gib is None) == (self.id is None):
            raise SpecMistake("a file system needs size_gib (a new one) or id (an existing one), and not both")
        if self.size_gib is not None:
            check_least("size_gib of a file system", self.size_gib, 1)


@dataclass(frozen=True)
class Submount:
    """A separate file system, mounted at a path in the jail."""

    name: str
    mount_path: str
    filesystem: Filesystem

    def __post_init__(self) -> None:
        check_name("submount", self.name, _LONGEST)
        check_parts(self)
        check_path(f"the submount {self.name}", self.mount_path)


@dataclass(frozen=True, kw_only=True)
class LocalNvme:
    """The machines' local disks, for containers, mounted in the jail."""

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
    """Machines for services: controller, login, system, accounting, NFS."""

    platform: str = "cpu-d3"
    preset: str | None = None
    size: Number | None = None
    #: Bounds for the system nodes, whose number follows the size of the cluster.
    min_size: Number | None = None
    max_size: Number | None = None
    boot_disk: Disk = Disk(size_gib=256)

    def __post_init__(self) -> None:
        check_parts(self)
        for name in ("size", "min_size", "max_size"):
            if getattr(self, name) is not None:
                check_least(name, getattr(self, name), 1)


@dataclass(frozen=True)
class NodeSet:
    """A set of equal nodes.

        NodeSet("worker", 16, platform="gpu-h100-sxm", preset="8gpu-128vcpu-1600gb", fabric="fabric-3",
                ephemeral=True, initial=4, blocks=("capacityblockgroup-e00example",))

    With ``blocks``, machines come only from these capacity blocks (``reservation="STRICT"``). Buying machines outside
    a block needs an explicit ``reservation="AUTO"``.
    """

    name: str
    #: Number of machines; for an ephemeral set, of those that Slurm may power up.
    size: Number
    platform: str = field(kw_only=True)
    preset: str = field(kw_only=True)
    #: The InfiniBand fabric, or an existing GPU cluster.
    fabric: str | None = field(default=None, kw_only=True)
    gpu_cluster: str | None = field(default=None, kw_only=True)
    #: False: there are always ``size`` machines.
    autoscaling: Switch | None = field(default=None, kw_only=True)
    #: The lower bound of the number of machines; "all" keeps ``size`` machines, as static nodes do without it.
    min_size: Number | Literal["all"] | None = field(default=None, kw_only=True)
    ephemeral: Switch = field(default=False, kw_only=True)
    #: Number of ephemeral nodes that are on at first.
    initial: Number | None = field(default=None, kw_only=True)
    #: Let jobs power up nodes that are off.
    auto_resume: Switch | None = field(default=None, kw_only=True)
    blocks: tuple[str, ...] = field(default=(), kw_only=True)
    reservation: str | None = field(default=None, kw_only=True)
    preemptible: Switch = field(default=False, kw_only=True)
    boot_disk: Disk = field(default=Disk(size_gib=512), kw_only=True)
    local_nvme: LocalNvme | None = field(default=None, kw_only=True)
    features: tuple[str, ...] = field(default=(), kw_only=True)
    #: How long Kubernetes waits for a node's Pods when it replaces the machine, such as "2h"; "0s" is forever.
    drain_timeout: str | None = field(default=None, kw_only=True)
    max_pods: Number | None = field(default=None, kw_only=True)
    #: Further fields, by their names in the recipe.
    extra: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        take_texts(self, "blocks", "features")
        check_name("node set", self.name, _LONGEST)
        check_parts(self)
        where = f"node set {self.name}"
        check_least(f"{where}: size", self.size, 1)
        for name, ours in _GUARDED.items():
            if name in self.extra:
                raise SpecMistake(f"{where}: extra has {name}: set {ours}, by which nodes that are on are guarded")
        self._check_machines(where)
        self._check_numbers(where)
        self._check_reservation(where)

    def _check_machines(self, where: str) -> None:
        if is_template(self.preset) or is_template(self.platform):
            return
        preset = preset_of(self.preset)
        if preset is None:
            raise SpecMistake(f"{where}: preset must have the form 8gpu-128vcpu-1600gb, got {self.preset!r}")
        if bool(preset.gpus) != self.platform.startswith("gpu-"):
            raise SpecMistake(f"{where}: the platform {self.platform} has no preset {self.preset}; correct either")
        if self.fabric and self.gpu_cluster:
            raise SpecMistake(f"{where}: set fabric or gpu_cluster, not both; a gpu_cluster already has its fabric")
        if (self.fabric or self.gpu_cluster) and preset.gpus != 8 and self.platform != RACKED:
            raise SpecMistake(
                f"{where}: a machine of preset {self.preset} cannot be on a fabric, only one with all 8 GPUs can; use "
                "the 8gpu preset, or omit the fabric"
            )

    def _check_numbers(self, where: str) -> None:
        for name, number in (("min_size", self.min_size), ("initial", self.initial)):
            if number not in (None, "all"):
                check_least(f"{where}: {name}", number, 0, most=self.size)
        if self.min_size is not None and self.autoscaling is False:
            raise SpecMistake(f"{where}: min_size has no effect without autoscaling; omit one of them")
        if self.initial is not None and self.ephemeral is False:
            raise SpecMistake(f"{where}: initial is for ephemeral nodes; set ephemeral=True, or omit initial")

    def _check_reservation(self, where: str) -> None:
        policy = self.reservation
        check_one_of(f"{where}: reservation", policy, POLICIES)
        for block in self.blocks:
            if not is_template(block) and not block.startswith("capacityblockgroup-"):
                raise SpecMistake(f"{where}: ids in blocks must begin with capacityblockgroup-, got {block!r}")
        if self.preemptible is True and self.blocks:
            raise SpecMistake(
                f"{where}: preemptible machines are never of a block, but blocks is set; omit one of them"
            )
        if policy == "STRICT" and not self.blocks:
            raise SpecMistake(f"{where}: reservation STRICT takes machines only from blocks: set blocks")
        if policy == "FORBID" and self.blocks:
            raise SpecMistake(f"{where}: reservation FORBID never uses blocks, but blocks is set; omit one of them")

    @property
    def policy(self) -> str | None:
        """The reservation policy. With blocks, it buys outside of them only if that was set explicitly."""
        return self.reservation or ("STRICT" if self.blocks else None)

    @property
    def slurm_names(self) -> tuple[str, ...]:
        if self.platform != RACKED or is_template(self.size):
            return (self.name,)
        return tuple(f"{self.name}-rack{rack}" for rack in range(ceil(int(self.size) / RACK)))

    @property
    def slurm_nodes(self) -> dict[str, int]:
        """The number of nodes of each of Slurm's node sets: a rack holds as many as fit."""
        names, size = self.slurm_names, int(self.size)
        return {name: min(RACK, size - rack * RACK) if len(names) > 1 else size for rack, name in enumerate(names)}

    @property
    def gpus(self) -> int:
        preset = preset_of(self.preset)
        return preset.gpus if preset else 0

    @property
    def keeps_by_default(self) -> bool:
        """True if static nodes have all their machines, as no other minimum was set: of the rest, any may go."""
        return self.min_size is None and self.ephemeral is False and self.autoscaling is not False

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about combinations that are allowed, but rarely intended."""
        keeps = self.autoscaling is False or self.min_size in ("all", self.size) or self.keeps_by_default
        if self.ephemeral is True and self.min_size is None and not keeps:
            return (
                f"node set {self.name}: its nodes are ephemeral, but for its machines that depends on the recipe: in "
                "an older one the machines stay and hold their GPUs when Slurm powers nodes down. Set min_size=0",
            )
        if self.ephemeral is True and keeps:
            return (
                f"node set {self.name}: its nodes are ephemeral, but its machines are not: when Slurm powers nodes "
                "down, the machines stay and hold their GPUs. Leave autoscaling on, and set min_size below size",
            )
        if self.ephemeral is False and not keeps:
            return (
                f"node set {self.name}: its nodes are static, but its machines may be scaled down to {self.min_size}; "
                "omit min_size",
            )
        return ()


@dataclass(frozen=True)
class PartitionSpec:
    """A Slurm partition, of all node sets or of some."""

    name: str
    nodesets: tuple[str, ...] = ()
    #: Options as in slurm.conf: "Default=YES MaxTime=INFINITE State=UP".
    config: str = field(default="State=UP", kw_only=True)
    topology: str = field(default="flat", kw_only=True)

    def __post_init__(self) -> None:
        take_texts(self, "nodesets")
        if not is_template(self.name) and (not self.name or self.name.split() != [self.name]):
            raise SpecMistake(f"{self.name!r} is not a name of a partition: use one word")
        if _GIVEN.search(self.config):
            raise SpecMistake(f"partition {self.name}: config must not set PartitionName or Nodes")
