"""Slurm's nodes, jobs and reservations in memory, with what ``slurm/node_orders`` knows of how orders act on nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import RESUME_FAILED, ClusterConfig, Node, Reservation
from airflow_provider_soperator.slurm.errors import UnknownNode, WholeJobOnly
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job, JobStatus
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    CancelJobs,
    CreateReservation,
    DeleteReservation,
    Drain,
    ListJobs,
    ListNodes,
    ListReservations,
    PowerDown,
    PowerDownMode,
    PowerUp,
    RequeueJobs,
    ShowConfig,
    Undrain,
    UpdateJob,
    UpdateReservation,
)
from airflow_provider_soperator.slurm.requests.nodes import NodeOrder
from airflow_provider_soperator.slurm.states import JobState, NodeState
from tests.unit.capacity.world import Reservations

START = datetime(2026, 11, 21, 20, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
OURS = ("airflow-handover-", "airflow-shift-")


@dataclass
class SlurmJob:
    """A job, which runs on one node or waits for one."""

    number: int
    #: It ends so long after it has begun; and at this limit, if it has one.
    lasts: timedelta
    limit: timedelta | None
    may_requeue: bool = True
    has_script: bool = True
    node: str = ""
    submitted: datetime | None = None
    began: datetime | None = None
    restarts: int = 0
    #: How and when it has ended.
    end: str = ""
    ended: datetime | None = None
    signals: list[str] = field(default_factory=list)
    admin_comment: str = ""

    def record(self) -> Job:
        ends = self.began + (self.limit or timedelta(days=365)) if self.began else None
        return Job(
            id=JobId(self.number),
            name=f"job{self.number}",
            state=JobState.parse(self.end or ("RUNNING" if self.node else "PENDING")),
            nodelist=self.node,
            submitted=self.submitted,
            started=self.began,
            ends=self.ended or ends,
            time_limit=self.limit or NoDuration.UNLIMITED,
            tres="gres/gpu=8",
            restarts=self.restarts,
            may_requeue=self.may_requeue,
            admin_comment=self.admin_comment,
        )


@dataclass
class SlurmNode:
    """A node; ``power`` is ``on``, ``off``, ``going`` or ``coming`` until it is ``due``."""

    name: str
    power: str = "on"
    due: datetime | None = None
    has_machine: bool = True
    #: It was told to power down once its jobs have ended.
    is_told: bool = False
    drain: str = ""
    drained_at: datetime = START - timedelta(days=1)
    #: The reason of the power down, which stays when the drain has ended with it, until a power up or an undrain.
    reason: str = ""
    #: It will not boot, and it has not.
    will_fail: bool = False
    is_down: bool = False
    down_since: datetime | None = None


class Nodes:
    """A Slurm of nodes with eight GPUs each, asked as ``AsyncSlurmClient`` is; time is what ``now`` says."""

    gpus = 8
    #: Of a node with a job.
    gpus_used = "gpu:8"

    def __init__(self, count: int, now: Callable[[], datetime] = lambda: START) -> None:
        self.now = now
        self.nodes = {f"worker-{number}": SlurmNode(f"worker-{number}") for number in range(count)}
        self.jobs: dict[int, SlurmJob] = {}
        self.reservations = Reservations()
        self.asked: list[Any] = []
        self.power_down_time = MINUTE
        #: Without it, Slurm up to 25.11 clears no reason.
        self.has_accounting = True
        #: Reservations for a later time keep no shift from a node.
        self.until: datetime | None = None
        #: How long a machine stays when its node is off, and how long a node boots; None: it never does.
        self.lingers: Callable[[], timedelta] = lambda: MINUTE
        self.boots: Callable[[], timedelta | None] = lambda: 2 * MINUTE
        #: True if the cloud has a machine for a node.
        self.claim: Callable[[], bool] = lambda: True
        #: Told of orders that no shift may give, with the node; and of jobs that are ended by name.
        self.violated: Callable[[str, str], None] = lambda what, node: None
        self.ended: Callable[[SlurmJob], None] = lambda job: None

    @property
    def names(self) -> str:
        return hostlist.fold(self.nodes)

    # Jobs

    def run(self, node: str, limit: timedelta | None = None, **how: Any) -> SlurmJob:
        """A job that runs on a node from now on."""
        job = self.wait(limit, **how)
        self.start(job, node)
        return job

    def wait(self, limit: timedelta | None = None, **how: Any) -> SlurmJob:
        """A job that waits for a node."""
        job = SlurmJob(len(self.jobs) + 1, how.pop("lasts", timedelta(days=9)), limit, **how)
        self.jobs[job.number] = job
        return job

    def start(self, job: SlurmJob, node: str) -> None:
        """A job that has waited runs on a node from now on; or has one that is off, which is powered up for it."""
        job.node, job.began, found = node, self.now(), self.nodes[node]
        if found.power == "off":
            found.power, found.due, found.reason = "coming", None, self._left_of(found.reason)

    def finish(self, job: SlurmJob, end: str = "COMPLETED") -> None:
        job.end, job.node, job.ended = end, "", self.now()

    def on(self, node: str) -> list[SlurmJob]:
        return [job for job in self.jobs.values() if job.node == node]

    def may_start(self, name: str, limit: timedelta | None) -> bool:
        """True if Slurm starts a job of anybody on a node: no reservation is in the way."""
        return self.nodes[name].power == "on" and self._may_have(name, limit)

    def may_wake(self, name: str, limit: timedelta | None) -> bool:
        """True if Slurm powers a node up for a job that waits."""
        return self.nodes[name].power == "off" and self._may_have(name, limit)

    def _may_have(self, name: str, limit: timedelta | None) -> bool:
        node, now = self.nodes[name], self.now()
        ends = now + (limit or timedelta(days=365))
        reserved = any(
            (one.end is None or one.end > now) and (one.start is None or one.start < ends)
            for one in self.reservations.known.values()
            if name in hostlist.expand(one.nodelist) and not one.name.startswith("airflow-shift-")
        )
        return not (node.drain or node.is_told or reserved or node.is_down or self.on(name))

    # What there is

    @property
    def usable(self) -> int:
        return sum(
            node.power == "on" and not (node.drain or node.is_told or node.is_down) for node in self.nodes.values()
        )

    @property
    def machines(self) -> int:
        return sum(node.has_machine for node in self.nodes.values())

    def record(self, node: SlurmNode) -> Node:
        base = "DOWN" if node.is_down else "MIXED" if self.on(node.name) else "IDLE"
        power = {"on": [], "off": ["POWERED_DOWN"], "going": ["POWERING_DOWN"], "coming": ["POWERING_UP"]}[node.power]
        flags = ["CLOUD", *power, *["POWER_DOWN"] * node.is_told, *["DRAIN"] * bool(node.drain)]
        return Node(
            name=node.name,
            state=NodeState.parse("+".join([base, *flags])),
            reason=node.drain or (RESUME_FAILED if node.is_down else node.reason),
            reason_since=node.down_since if node.is_down else node.drained_at,
            gres="gpu:8",
            gres_used=self.gpus_used if self.on(node.name) else "",
        )

    def advance(self) -> None:
        """Whatever is due happens."""
        now = self.now()
        for job in self.jobs.values():
            if job.node and job.began and now >= job.began + min(job.lasts, job.limit or job.lasts):
                self.finish(job)
        for node in self.nodes.values():
            if node.is_told and not self.on(node.name):
                # The drain ends with it.
                node.is_told, node.drain, node.power, node.due = False, "", "going", now + self.power_down_time
            is_due = node.due is not None and now >= node.due
            if node.power == "going" and is_due:
                node.power, node.due, node.is_down = "off", now + self.lingers(), False
            elif node.power == "off" and is_due:
                node.has_machine, node.due = False, None
            elif node.power == "coming":
                self._boot(node, now)

    def _boot(self, node: SlurmNode, now: datetime) -> None:
        if not node.has_machine and not self.claim():
            return
        if not node.has_machine or node.due is None:
            takes = self.boots()
            node.has_machine, node.due, node.will_fail = True, now + (takes or 10 * MINUTE), takes is None
        elif now >= node.due:
            # Up to Soperator 4.1 the Pod of a node that did not boot keeps its machine.
            node.power, node.due, node.down_since = "off" if node.will_fail else "on", None, now
            if node.will_fail:
                node.is_down, node.will_fail, node.drain = True, False, ""
                for job in self.on(node.name):
                    self.finish(job, "NODE_FAIL")

    # As a client

    async def ask(self, request: Any) -> Any:
        return self.answer(request)

    async def statuses(self, jobs: Any) -> Mapping[JobId, JobStatus]:
        return {}

    def answer(self, request: Any) -> Any:
        if isinstance(request, ListNodes):
            self._refuse_unknown(request.names or ())
            return tuple(
                self.record(node) for node in self.nodes.values() if node.name in (request.names or self.nodes)
            )
        if isinstance(request, ListJobs):
            return tuple(job.record() for job in self.jobs.values())
        if isinstance(request, Accounting):
            # The queue forgets nothing here.
            return ()
        if isinstance(request, ShowConfig):
            return ClusterConfig(version="24.11.5", suspend_time=timedelta(days=9), slurm_user="root")
        if isinstance(request, ListReservations):
            return self.reservations.answer(request)
        self.asked.append(request)
        if isinstance(request, CreateReservation | UpdateReservation | DeleteReservation):
            self._refuse_unknown(() if isinstance(request, DeleteReservation) else request.nodes or ())
            return self.reservations.answer(request)
        if isinstance(request, CancelJobs | RequeueJobs):
            return self._end(request)
        if isinstance(request, UpdateJob):
            request.command()
            self.jobs[request.job.job].admin_comment = request.changes["AdminComment"]
            return None
        assert isinstance(request, NodeOrder)
        for name in request.names:
            self._order(self.nodes[name], request)
        return None

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        if missing := set(names) - set(self.nodes):
            raise UnknownNode(f"there is no node {hostlist.fold(missing)}", "scontrol")

    def _end(self, request: CancelJobs | RequeueJobs) -> None:
        for job in (self.jobs[one.job] for one in request.ids):
            if isinstance(request, RequeueJobs):
                if not job.may_requeue or not job.has_script:
                    raise WholeJobOnly("Requested operation is presently disabled", "scontrol")
                job.restarts, job.node, job.began = job.restarts + 1, "", None
                self.ended(job)
            elif request.signal:
                job.signals.append(request.signal)
            elif not job.end:
                self.finish(job, "CANCELLED")
                self.ended(job)

    def _order(self, node: SlurmNode, order: NodeOrder) -> None:
        now = self.now()
        if isinstance(order, PowerUp):
            # Ignored where it is on, or on its way off.
            if node.power == "off":
                node.power, node.due, node.is_down, node.reason = "coming", None, False, self._left_of(node.reason)
        elif isinstance(order, Drain):
            node.drain, node.drained_at = node.drain or order.reason, now
        elif isinstance(order, PowerDown):
            self._power_down(node, order)
        else:
            assert isinstance(order, Undrain)
            if node.drain and not node.drain.startswith("airflow:"):
                self.violated(f"{node.name}, which was drained by {node.drain!r}, is undrained", node.name)
            _, told = order.change()
            node.drain, node.reason = "", self._left_of(told or node.drain or node.reason)

    def _left_of(self, reason: str) -> str:
        """The reason of a node that Slurm makes available again."""
        return "" if self.has_accounting else reason

    def _power_down(self, node: SlurmNode, order: PowerDown) -> None:
        now = self.now()
        if node.drain and not node.drain.startswith("airflow:") and node.drained_at < now and not node.is_told:
            self.violated(f"{node.name}, which was drained by {node.drain!r}, is powered down", node.name)
        # One that has not booted serves nobody, and one that was told before goes in any case.
        for one in [] if node.is_down or node.is_told else self._reservations_of(node.name):
            self.violated(f"{node.name}, which is reserved as {one.name}, is powered down", node.name)
        if node.power == "off":
            # The cycle begins again, and the drain is over.
            node.power, node.due, node.drain = "going", now + self.power_down_time, ""
        elif node.power == "on":
            if order.mode is PowerDownMode.FORCE:
                for job in self.on(node.name):
                    self.finish(job, "NODE_FAIL")
                    self.violated(f"job {job.number} is ended with {node.name}", node.name)
            node.is_told, node.reason = True, order.reason or node.reason
            if order.mode is not PowerDownMode.IDLE:
                node.drain, node.drained_at = order.reason or "POWER_DOWN_ASAP", now

    def _reservations_of(self, name: str) -> list[Reservation]:
        """The reservations of others that keep a shift from a node."""
        now, until = self.now(), self.until
        theirs = [one for one in self.reservations.known.values() if not one.name.startswith(OURS)]
        return [
            one
            for one in theirs
            if name in hostlist.expand(one.nodelist)
            and (one.end is None or one.end > now)
            and (until is None or one.start is None or one.start < until)
        ]

    def reserve(self, name: str, nodes: str, start: datetime, end: datetime | None = None) -> None:
        """A reservation of others."""
        self.reservations.known[name] = Reservation(name=name, start=start, end=end, nodelist=nodes)
