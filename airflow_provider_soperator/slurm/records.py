"""What Slurm knows of jobs, nodes, partitions, reservations and itself, with a type for each field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_soperator.slurm.exits import ZERO, ExitCode
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.states import UNKNOWN_JOB, UNKNOWN_NODE, JobState, NodeState
from airflow_provider_soperator.slurm.times import Duration, NoDuration

_HOLDS = {"JobHeldUser", "JobHeldAdmin"}
_GPU = re.compile(r"(?:^|,)(?:gres/)?gpu(?::[^:,=()]+)?[:=](\d+)")
_GPU_TOTAL = re.compile(r"(?:^|,)gres/gpu=(\d+)")


def count_gpus(resources: str) -> int:
    """The GPUs in a node's generic resources or a job's TRES, of whatever types.

    >>> count_gpus("gpu:h100:8(S:0-1),shard:4"), count_gpus("cpu=16,gres/gpu=8,gres/gpu:h100=8")
    (8, 8)
    """
    # TRES has a total, and beside it the same again for each type.
    total = _GPU_TOTAL.search(resources)
    return int(total[1]) if total else sum(map(int, _GPU.findall(resources)))


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job, or a part of one, in the queue.

    >>> job = Job(id=JobId.parse("7_[1-3]"), state=JobState.parse("PENDING"), name="train")
    >>> job.state.is_pending, job.id.whole
    (True, JobId.parse('7'))
    """

    id: JobId
    #: The number of this very part; for arrays and heterogeneous jobs not the one that was submitted.
    raw_id: int = 0
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    state: JobState = UNKNOWN_JOB
    #: Why it waits or has failed, mostly in one word (``Resources``, ``DependencyNeverSatisfied``); or empty.
    reason: str = ""
    #: The nodes it has, as a hostlist.
    nodelist: str = ""
    #: Where the batch script runs. Of what ``srun`` has started by itself squeue says where that was typed.
    batch_host: str = ""
    submitted: datetime | None = None
    #: When it started; for a waiting job when Slurm expects it to.
    started: datetime | None = None
    #: When it ended; for a running one when its time is over.
    ends: datetime | None = None
    time_limit: Duration = NoDuration.UNKNOWN
    time_used: Duration = NoDuration.UNKNOWN
    priority: int | None = None
    #: How often it has been requeued.
    restarts: int = 0
    exit_code: ExitCode = ZERO
    dependency: str = ""
    reservation: str = ""
    #: Resources, as ``cpu=1,mem=1000M,node=1,gres/gpu=8``.
    tres: str = ""
    comment: str = ""
    workdir: str = ""
    stdout: str = ""

    @property
    def array_job(self) -> int | None:
        """The job array that this is (an element of), if it is."""
        return self.id.job if self.id.element is not None or self.id.elements else None

    @property
    def is_held(self) -> bool:
        """Whether it waits until somebody releases it."""
        # Elements of an array that wait as one entry have a reason each; and some holds have words of their own.
        by_reason = not _HOLDS.isdisjoint(self.reason.split(","))
        return self.state.is_held or (self.state.is_pending and (self.priority == 0 or by_reason))

    @property
    def is_wholly_held(self) -> bool:
        """The same of every element of an array that waits as one entry."""
        return self.is_held and (self.priority in (0, None) or set(self.reason.split(",")) <= _HOLDS)


@dataclass(frozen=True, kw_only=True)
class AccountingStep:
    """A step of a job, as accounting has it; ``batch`` is the script itself."""

    id: JobId
    name: str = ""
    state: JobState = UNKNOWN_JOB
    exit_code: ExitCode = ZERO
    started: datetime | None = None
    ended: datetime | None = None
    elapsed: timedelta | None = None
    nodelist: str = ""
    tres: str = ""
    #: Most memory that a task of it has used, in bytes.
    max_rss: int | None = None


@dataclass(frozen=True, kw_only=True)
class AccountingJob:
    """A job as accounting has it: its last run, and the runs before it that were requeued.

    >>> AccountingJob(id=JobId.parse("7"), state=JobState.parse("COMPLETED")).state.succeeded
    True
    """

    id: JobId
    raw_id: int = 0
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    state: JobState = UNKNOWN_JOB
    reason: str = ""
    #: Before 25.11 ``sacct`` takes 128 off: what the queue has as 137:0 is 9:0 here. Ask the queue first.
    exit_code: ExitCode = ZERO
    #: The worst of its steps.
    derived_exit_code: ExitCode = ZERO
    nodelist: str = ""
    submitted: datetime | None = None
    eligible: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    elapsed: timedelta | None = None
    time_limit: Duration = NoDuration.UNKNOWN
    tres: str = ""
    #: Accounting keeps comments only where AccountingStoreFlags says so.
    comment: str = ""
    #: The command line that submitted it.
    submit_line: str = ""
    workdir: str = ""
    steps: tuple[AccountingStep, ...] = ()
    earlier_runs: tuple[AccountingJob, ...] = ()

    @property
    def restarts(self) -> int:
        return len(self.earlier_runs)

    def as_job(self) -> Job:
        """What the queue would say of it, if it still had it."""
        return Job(
            id=self.id,
            raw_id=self.raw_id,
            name=self.name,
            user=self.user,
            account=self.account,
            partition=self.partition,
            qos=self.qos,
            state=self.state,
            reason=self.reason,
            nodelist=self.nodelist,
            submitted=self.submitted,
            started=self.started,
            ends=self.ended,
            time_limit=self.time_limit,
            time_used=NoDuration.UNKNOWN if self.elapsed is None else self.elapsed,
            restarts=self.restarts,
            exit_code=self.exit_code,
            tres=self.tres,
            comment=self.comment,
            workdir=self.workdir,
        )


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node as slurmctld has it.

    >>> node = Node(name="worker-0", state=NodeState.parse("MIXED+CLOUD"), gres="gpu:8", gres_used="gpu:8(IDX:0-7)")
    >>> node.gpus, node.gpus_used
    (8, 8)
    """

    name: str
    state: NodeState = UNKNOWN_NODE
    partitions: tuple[str, ...] = ()
    #: Why it is down or drained, who said so, and when.
    reason: str = ""
    reason_user: str = ""
    reason_since: datetime | None = None
    comment: str = ""
    extra: str = ""
    features: tuple[str, ...] = ()
    gres: str = ""
    gres_used: str = ""
    cpus: int = 0
    cpus_used: int = 0
    #: In MiB.
    memory: int = 0
    memory_used: int = 0
    address: str = ""
    #: Version of its slurmd; empty while it has none.
    version: str = ""

    @property
    def gpus(self) -> int:
        return count_gpus(self.gres)

    @property
    def gpus_used(self) -> int:
        return count_gpus(self.gres_used)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a node runs on, as its slurmd has told slurmctld."""

    node: str
    #: As the cloud names it, which is as Kubernetes does; empty where slurmctld has not learnt it.
    instance: str = ""
    #: When it was made, or has booted.
    since: datetime | None = None


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
    total_nodes: int = 0
    max_time: Duration = NoDuration.UNLIMITED
    default_time: Duration = NoDuration.UNKNOWN
    priority_tier: int = 0


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
    partition: str = ""
    is_active: bool = False
    comment: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The settings that matter to whoever drives a cluster from outside.

    >>> ClusterConfig(version="24.11.5").release
    (24, 11)
    """

    version: str
    cluster: str = ""
    #: How long the queue remembers a job after its end.
    min_job_age: timedelta = timedelta(seconds=300)
    max_array_size: int = 1001
    max_job_count: int = 10000
    suspend_time: timedelta | None = None
    suspend_timeout: timedelta = timedelta(seconds=30)
    resume_timeout: timedelta = timedelta(seconds=60)
    #: Nodes that power saving leaves alone, as a hostlist: with Soperator the static ones.
    suspend_exc_nodes: str = ""
    accounting_storage: str = ""
    slurm_user: str = ""
    slurmctld_parameters: tuple[str, ...] = ()
    #: Everything, as ``scontrol show config`` has it.
    settings: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def release(self) -> tuple[int, int]:
        """Year and month of the Slurm release."""
        year, month = re.findall(r"\d+", self.version)[:2]
        return int(year), int(month)

    @property
    def has_accounting(self) -> bool:
        return self.accounting_storage.endswith("slurmdbd")

    @property
    def rate_limit(self) -> RateLimit | None:
        """How many questions a user may ask slurmctld; None for any number."""
        if "rl_enable" not in self.slurmctld_parameters:
            return None
        given = dict(parameter.partition("=")[::2] for parameter in self.slurmctld_parameters)
        return RateLimit(
            bucket=int(given.get("rl_bucket_size", 30)),
            refill=int(given.get("rl_refill_rate", 2)),
            period=timedelta(seconds=int(given.get("rl_refill_period", 1))),
        )


@dataclass(frozen=True)
class RateLimit:
    """So many questions at once, and so many more in each period."""

    bucket: int
    refill: int
    period: timedelta


@dataclass(frozen=True)
class RpcCount:
    """How often one kind of question, or one user, has come to slurmctld, and how long its answers took."""

    name: str
    count: int
    total: timedelta


@dataclass(frozen=True, kw_only=True)
class SchedulerStats:
    """What slurmctld has been busy with, from ``sdiag``."""

    at: datetime | None = None
    since: datetime | None = None
    server_threads: int = 0
    agent_queue: int = 0
    dbd_agent_queue: int = 0
    jobs_pending: int = 0
    jobs_running: int = 0
    rpcs: tuple[RpcCount, ...] = ()
    rpcs_by_user: tuple[RpcCount, ...] = ()

    @property
    def rpc_count(self) -> int:
        return sum(rpc.count for rpc in self.rpcs)


@dataclass(frozen=True)
class Controller:
    """One slurmctld, and whether it answers."""

    host: str
    role: str
    is_up: bool
