"""Records of nodes, partitions, reservations, accounts and Slurm itself, with typed fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_soperator.slurm.job_records import count_gpus
from airflow_provider_soperator.slurm.states import UNKNOWN_NODE, NodeBase, NodeFlag, NodeState

#: slurmctld's reason for a node that did not boot in time.
RESUME_FAILED = "ResumeTimeout reached"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node as slurmctld has it."""

    name: str
    state: NodeState = UNKNOWN_NODE
    partitions: tuple[str, ...] = ()
    #: Why it is down or drained, who set that, and when.
    reason: str = ""
    reason_user: str = ""
    reason_since: datetime | None = None
    comment: str = ""
    features: tuple[str, ...] = ()
    gres: str = ""
    gres_used: str = ""
    cpus: int = 0
    #: In MiB.
    memory: int = 0
    #: Name of its machine in the cloud, and when that was booted, as its slurmd has reported it. Slurm 26.05 does not
    #: learn the machine of a node that it has powered up.
    instance: str = ""
    booted_at: datetime | None = None

    @property
    def gpus(self) -> int:
        return count_gpus(self.gres)

    @property
    def gpus_used(self) -> int:
        return count_gpus(self.gres_used)

    @property
    def is_off(self) -> bool:
        """True if the node is powered down and stays so. Its machine may exist for some more minutes."""
        return self.state.has(NodeFlag.POWERED_DOWN) and not self.is_going_off and not self.is_coming_up

    @property
    def is_kept_off(self) -> bool:
        """True if the node is powered down and drained, so that no job powers it up."""
        return self.is_off and self.state.has(NodeFlag.DRAIN)

    @property
    def is_going_off(self) -> bool:
        """True if the node is powering down, or will after its jobs."""
        return self.state.has(NodeFlag.POWER_DOWN, NodeFlag.POWERING_DOWN)

    @property
    def is_coming_up(self) -> bool:
        """True if the node is to power up, or is booting."""
        # A node that boots by itself between the order and its turn keeps that mark, which then means nothing.
        is_wanted = self.state.has(NodeFlag.POWER_UP) or self.has_job
        return (is_wanted and self.state.has(NodeFlag.POWERED_DOWN)) or self.state.has(NodeFlag.POWERING_UP)

    @property
    def is_rebooting(self) -> bool:
        """True if the node reboots, or will; Slurm may end its drain then, whatever the reason."""
        return self.state.has(NodeFlag.REBOOT_REQUESTED, NodeFlag.REBOOT_ISSUED)

    @property
    def boots_for_job(self) -> bool:
        """True if a job waits for the node to boot; a drain would end the job."""
        return self.is_coming_up and self.has_job

    @property
    def is_up(self) -> bool:
        """True if the node runs and responds, whether or not jobs may start on it."""
        is_alive = self.state.base in (NodeBase.IDLE, NodeBase.ALLOCATED, NodeBase.MIXED)
        away = (NodeFlag.POWERED_DOWN, NodeFlag.POWERING_DOWN, NodeFlag.NOT_RESPONDING)
        return is_alive and not self.is_coming_up and not self.state.has(*away)

    @property
    def is_usable(self) -> bool:
        """True if the node runs and jobs may start on it, now or after those on it."""
        leaving = (NodeFlag.DRAIN, NodeFlag.POWER_DOWN, NodeFlag.POWER_DRAIN)
        broken = (NodeFlag.BLOCKED, NodeFlag.FAIL, NodeFlag.INVALID_REG, NodeFlag.REBOOT_ISSUED)
        return self.is_up and not self.state.has(*leaving, *broken)

    @property
    def has_job(self) -> bool:
        """True if jobs have the node, which may be off still: it boots for them."""
        return self.state.base in (NodeBase.ALLOCATED, NodeBase.MIXED)

    @property
    def is_busy(self) -> bool:
        """True if jobs have the node, or are completing."""
        return self.has_job or self.state.has(NodeFlag.COMPLETING)

    @property
    def failed_to_resume(self) -> bool:
        """True if the node did not boot in time; ``power down`` or another ``power up`` ends this state."""
        # While it boots once more, it keeps the reason. What Slurm adds to that later is another fault.
        return self.state.base is NodeBase.DOWN and self.reason.endswith(RESUME_FAILED) and not self.is_coming_up

    @property
    def is_draining(self) -> bool:
        """True if no new job starts on the node, and it still has jobs."""
        return self.state.has(NodeFlag.DRAIN) and not self.is_drained

    @property
    def is_drained(self) -> bool:
        """True if no new job starts on the node, and it has none."""
        is_empty = self.state.base in (NodeBase.IDLE, NodeBase.DOWN) and not self.is_busy
        return self.state.has(NodeFlag.DRAIN) and is_empty


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition."""

    name: str
    #: ``UP``, ``DOWN``, ``DRAIN`` or ``INACTIVE``.
    state: str = "UP"
    is_default: bool = False
    is_hidden: bool = False
    #: As a hostlist.
    nodelist: str = ""
    #: True if it has a finite SuspendTime of its own; not known over pyslurm, which has no such field.
    has_suspend_time: bool = False


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A reservation of nodes for a time."""

    name: str
    start: datetime | None = None
    end: datetime | None = None
    #: As a hostlist.
    nodelist: str = ""
    flags: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    is_active: bool = False
    comment: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The settings that matter to a client outside of the cluster."""

    version: str
    cluster: str = ""
    #: How long the queue remembers a job after its end.
    min_job_age: timedelta = timedelta(seconds=300)
    suspend_time: timedelta | None = None
    #: Nodes that power saving leaves alone, as a hostlist: with Soperator the static ones.
    suspend_exc_nodes: str = ""
    accounting_storage: str = ""
    slurm_user: str = ""
    slurmctld_parameters: tuple[str, ...] = ()
    #: All settings, as in ``scontrol show config``.
    settings: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def release(self) -> tuple[int, int]:
        year, month = re.findall(r"\d+", self.version)[:2]
        return int(year), int(month)

    @property
    def has_accounting(self) -> bool:
        return self.accounting_storage.endswith("slurmdbd")

    def enforces(self, what: str) -> bool:
        """True if Slurm rejects jobs for ``associations``, or ``qos``, that their user lacks; or if it is unknown."""
        return what in self.settings.get("AccountingStorageEnforce", what)

    @property
    def counts_gpus(self) -> bool:
        """True if jobs have their GPUs among their resources, which Slurm's default leaves out; or if it is unknown."""
        counted = self.settings.get("AccountingStorageTRES")
        return counted is None or "gres/gpu" in re.findall(r"[^,:\s]+", counted.lower())

    @property
    def rate_limit(self) -> RateLimit | None:
        """The limit on a user's requests to slurmctld; None for no limit."""
        if "rl_enable" not in self.slurmctld_parameters:
            return None
        given = dict(parameter.partition("=")[::2] for parameter in self.slurmctld_parameters)
        return RateLimit(
            refill=int(given.get("rl_refill_rate", 2)),
            period=timedelta(seconds=int(given.get("rl_refill_period", 1))),
        )


@dataclass(frozen=True)
class RateLimit:
    """Token bucket, which gets ``refill`` requests more in each period."""

    refill: int
    period: timedelta


@dataclass(frozen=True)
class Controller:
    """One slurmctld, and whether it answers."""

    host: str
    role: str
    is_up: bool


@dataclass(frozen=True)
class Association:
    """A user's right to charge an account, in one partition or (empty) in all of them."""

    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UserRights:
    """Rights of a user, as accounting has them."""

    user: str
    #: ``None``, ``Operator`` or ``Administrator``.
    admin_level: str = "None"
    default_account: str = ""
    associations: tuple[Association, ...] = ()
    is_known: bool = True

    @property
    def accounts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.account for one in self.associations))

    @property
    def qos(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in self.associations for name in one.qos))

    @property
    def may_change_nodes(self) -> bool:
        """True if the user may power and drain nodes, and not only reserve them. root and SlurmUser always may."""
        return self.admin_level == "Administrator" or self.user == "root"


@dataclass(frozen=True, kw_only=True)
class Share:
    """Fair share and recent usage of an account, or of a user in one, as in ``sshare``.

    Usage is weighted, and older usage counts less (PriorityDecayHalfLife). *Normal* values are parts of the whole
    cluster, 0 to 1.
    """

    account: str
    #: Empty for the account itself.
    user: str = ""
    partition: str = ""
    #: None for the root of the tree and for ``fairshare=parent``.
    shares: int | None = None
    normal_shares: float | None = None
    usage: int = 0
    normal_usage: float | None = None
    #: Part of the usage of the account above, or of the cluster, depending on PriorityFlags.
    effective_usage: float | None = None
    #: 1 for the user who comes first, 0 for the last; for users only.
    fair_share: float | None = None
    #: Above 1 for less usage than its share among its siblings; infinite for none.
    level: float | None = None
