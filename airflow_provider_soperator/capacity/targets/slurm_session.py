"""Nodes of a Soperator cluster during a shift: a target that chooses the nodes to release."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from async_timeout import timeout

from airflow_provider_soperator.capacity.holdings import Holding, Release
from airflow_provider_soperator.capacity.node_choice import NodeLoad, choose, loads_of, nearness
from airflow_provider_soperator.capacity.reservations import LeaveReservation, ReservationLease, handover_name
from airflow_provider_soperator.capacity.targets.jobs_in_the_way import DisplacedJobs, JobsInTheWay
from airflow_provider_soperator.capacity.targets.protocol import (
    JobLosses,
    MachineClues,
    Session,
    SessionContext,
    refuse_unnamed,
)
from airflow_provider_soperator.capacity.targets.reservation_timing import JobHistory, expected_to_go, waiting_jobs
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.errors import CapacityMistake, ClusterError
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.errors import NotPermitted, SlurmError, UnknownNode
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.node_conditions import DrainReason, in_lines, is_anothers, is_ours, refuse_unknown
from airflow_provider_soperator.slurm.node_orders import because, kept_off, refuse_power, undrains, up
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    DeleteReservation,
    ListJobs,
    ListNodes,
    ListPartitions,
    PowerDownMode,
    ShowConfig,
    ShowRights,
    ShowTopology,
)
from airflow_provider_soperator.slurm.states import NodeFlag

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
    from airflow_provider_soperator.capacity.targets.nebius_session import GroupMachines


#: Reservations of others within this time count if it is unknown when the nodes are to come back; and the time of which
#: jobs in accounting tell how long jobs last.
_HORIZON, _HISTORY = timedelta(days=2), timedelta(days=1)
#: Seconds that accounting may take for that; and the pause before it is asked again.
_PATIENCE, _PAUSE = 30.0, timedelta(minutes=10)
#: An idle node that is told to power down does so within seconds, or later where only so many may in a minute.
_GOES_WITHIN = timedelta(minutes=2)


@dataclass
class NodeNotes:
    """What a session remembers while its connection is opened again."""

    began: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    jobs: DisplacedJobs = field(default_factory=DisplacedJobs)
    #: What was logged of each node.
    told: dict[str, str] = field(default_factory=dict)
    #: Nodes that did not boot, with reasons.
    failed: dict[str, str] = field(default_factory=dict)
    #: How long jobs have lasted, from when on accounting may be asked for it (None: no more), and if it was too early
    #: to reserve nodes.
    history: JobHistory = field(default_factory=JobHistory)
    asks_at: datetime | None = field(default_factory=lambda: datetime.now(timezone.utc))
    is_early: bool = False


class SlurmNodesSession(Session):
    """A set of Slurm nodes during a shift."""

    def __init__(
        self,
        target: SlurmNodesTarget,
        client: AsyncSlurmClient,
        user: str,
        machines: GroupMachines | None,
        context: SessionContext,
        log: Logger,
    ) -> None:
        self._target, self._client, self._user, self._machines, self._log = target, client, user, machines, log
        self._context, self._names = context, tuple(hostlist.expand(target.nodes))
        # Named after the block, not the shift: a later shift undrains what this one has drained.
        self._reason = DrainReason(f"capacity/{re.sub('[^A-Za-z0-9._-]', '-', context.block)}", context.why)
        name = handover_name(context.block, context.key)
        self._reservation = LeaveReservation(client.ask, name, user, self._names, context.airflow)
        self._notes: NodeNotes = context.memory.setdefault(target.name, NodeNotes())
        self._blocks: dict[str, str] | None = None
        self._problems: tuple[str, ...] = ()
        self._left_out: Mapping[str, str] = {}
        self._in_the_way = JobsInTheWay(target.name, client.ask, self._reason, context.may_end, self._notes.jobs, log)
        #: Nodes that were on at the last look.
        self._on: set[str] = set()
        #: At the last look: its nodes that are reserved for the shift, those that may not be touched, and all jobs.
        self._kept_free: frozenset[str] = frozenset()
        self._fixed: dict[str, str] = {}
        self._queue: Sequence[Job] = ()

    async def check(self, units: int, block: CapacityBlock) -> None:
        target = self._target
        refuse_unnamed(block, target.name)
        try:
            known = {node.name: node for node in await self._client.ask(ListNodes())}
            nodes = [known[name] for name in self._names if name in known]
            if not nodes:
                refuse_unknown(self._names, known)
            config = await self._client.ask(ShowConfig())
            partitions = await self._client.ask(ListPartitions()) if config.suspend_time is None else ()
            refuse_power([node.name for node in nodes], config, partitions)
            # These two have all rights, even if accounting does not list them.
            is_ordinary = self._user not in ("root", config.slurm_user)
            if is_ordinary and not (await self._client.ask(ShowRights(self._user))).may_change_nodes:
                raise NotPermitted(f"{self._user} may not power nodes up and down")
        except SlurmError as error:
            if error.retryable:
                raise
            raise CapacityMistake(f"{target.name}: {error}") from error
        if self._machines:
            await self._machines.check(units, target.gpus_per_unit, block)
        if others := {node.gpus for node in nodes} - {target.gpus_per_unit}:
            has = f"some of {target.nodes} have {', '.join(map(str, sorted(others)))} GPUs"
            raise CapacityMistake(
                f"{target.name}: {has}, but gpus_per_unit is {target.gpus_per_unit}",
                "give each shape of nodes its own target",
            )
        if not 0 <= units <= len(self._names):
            most = f"{len(self._names)} nodes ({target.nodes})"
            raise CapacityMistake(f"{target.name}: expected 0 to {most}, got {units}")

    async def look(self) -> Holding:
        nodes, (mine, kept_free, reserved) = await self._nodes(), await self._reservations()
        on = [node for node in nodes if not node.is_off]
        self._on, self._kept_free = {node.name for node in on}, mine & {*self._names}
        gone = dict.fromkeys(set(self._names) - {node.name for node in nodes}, "does not exist")
        fixed = {node.name: why for node in nodes if (why := self._untouchable(node, reserved))}
        # Slurm does not know if a booting node has its machine yet: its GPUs count as promised until it is up.
        sure = sum(not node.is_coming_up for node in on)
        return Holding(
            allowed=sum(not node.is_kept_off for node in nodes),
            held=max(sure, await self._machines_under(self._machines)) if self._machines else sure,
            ready=sum(node.is_usable for node in nodes),
            finishing=sum(node.is_busy and not node.is_usable for node in on),
            leaving=sum(map(self._is_told_by_us, nodes)),
            idle=sum(node.name in kept_free and node.is_usable and not node.is_busy for node in nodes),
            is_settled=not any(node.is_coming_up or node.is_going_off for node in nodes),
            problems=self._problems + tuple(f"{node.name}: {node.reason}" for node in nodes if node.failed_to_resume),
            stuck={node.name: fixed[node.name] for node in nodes if node.name in fixed and not node.is_kept_off},
            broken=sum(self._is_anothers(node) for node in on),
            away={node.name: fixed[node.name] for node in nodes if node.name in fixed and node.is_kept_off} | gone,
            size=len(self._names),
        )

    async def explain(self, to: int, release: Release) -> Mapping[str, str]:
        return await self._choose(loads_of(await self._nodes(), await self._jobs()), to, release)

    async def jobs(self, units: Collection[str]) -> tuple[str, ...]:
        return tuple(str(job.id) for job in await self._jobs() if {*units} & {*hostlist.expand(job.nodelist)})

    async def shrink(self, to: int, release: Release) -> None:
        nodes, jobs = await self._nodes(), await self._jobs()
        loads = loads_of(nodes, jobs)
        chosen = await self._choose(loads, to, release)
        leaving = [load for load in loads if load.node.name in chosen]
        leaving_jobs = [job for load in leaving for job in load.jobs]
        # Where one stays that may not be ended, the end of others frees no node.
        ending = [load for load in leaving if all(map(self._in_the_way.may_end, load.jobs))]
        # Another target in the same Slurm tells the jobs on its own nodes.
        mine = {job.id: job for load in loads for job in load.jobs}
        await self._in_the_way.tell(list(mine.values()), [job for load in ending for job in load.jobs], release)
        if release.mode is None:
            self._tell({name: f"will go: {why}" for name, why in chosen.items()})
            if release.ahead:
                await self._reserve(loads, leaving, release)
            return
        stays = [job for load in loads if load.node.name not in chosen for job in load.jobs]
        self._notes.jobs.see(leaving_jobs, stays)
        if release.mode is PowerDownMode.FORCE:
            await self._in_the_way.end({job.id: job for load in ending if load.is_busy for job in load.jobs}, release)
        mode = PowerDownMode.IDLE if release.mode is PowerDownMode.IDLE else PowerDownMode.ASAP
        # Until a node is told, another one may take its place: one that falls idle, or whose jobs end sooner.
        waiting = {load.node.name: load for load in leaving if load.is_busy and not load.node.is_going_off}
        going = [load.node for load in leaving if load.node.name not in waiting]
        if mode is not PowerDownMode.IDLE:
            others = [load for load in loads if load.node.name in waiting or load.node.name not in chosen]
            # The drain that comes with a power down ends with it, and a job would power the node up again.
            not_kept_off = [node.name for node in going if not node.is_kept_off]
            await self._reserve(others, [*waiting.values()], release, not_kept_off)
        move = kept_off(going, mode, reason=self._reason)
        for order in move.orders:
            await self._client.ask(order)
        said = {name: f"powers down after its jobs: runs {load.runs}" for name, load in waiting.items()}
        self._problems += in_lines(said)
        self._tell({**move.waiting, **said})

    async def relax(self) -> None:
        if self._kept_free:
            await self._reservation.reserve((), datetime.now(timezone.utc), self._reason.why)
        if self.jobs_in_the_way:
            await self._in_the_way.withdraw()

    async def grow(self, to: int) -> None:
        nodes = await self._nodes()
        mine = [node for node in nodes if not self._is_anothers(node)]
        failed, began = self._notes.failed, self._notes.began
        # Those that were powered up in this session and did not boot.
        for node in mine:
            if node.failed_to_resume and node.reason_since and node.reason_since > began:
                failed[node.name] = node.reason
        # Of nodes that are on and drained by others, or given up, the GPUs are no other node's before a look has found
        # them off.
        lasting = {node.name for node in nodes if not node.is_off} | self._on
        taken = sum(
            (node.name in failed and not node.is_kept_off)
            or (node.name in lasting and (node.name in failed or self._is_anothers(node) or node.failed_to_resume))
            for node in nodes
        )
        chosen = sorted((node for node in mine if node.name not in failed), key=nearness)[: max(0, to - taken)]
        # Up to Soperator 4.1 the Pod of a node that did not boot stays, and keeps its machine from the node that is
        # powered up instead, or from itself.
        lost = [node for node in mine if node.name in failed or (node.failed_to_resume and node not in chosen)]
        given_up = kept_off(lost, PowerDownMode.ASAP, reason=self._reason)
        move = up(chosen, owner=self._reason.owner, since=began)
        for order in (*given_up.orders, *move.orders):
            await self._client.ask(order)
        self._problems = tuple(f"{name}: {why}" for name, why in {**failed, **move.lost}.items())
        self._tell({**move.waiting, **move.lost, **{name: f"failed to boot: {why}" for name, why in failed.items()}})

    async def allow(self, to: int) -> None:
        nodes = await self._nodes()
        allowed = sum(not node.is_kept_off for node in nodes)
        ours = [node for node in nodes if node.is_kept_off and is_ours(node, self._reason.owner)]
        for order in undrains(*ours[: max(0, to - allowed)]):
            await self._client.ask(order)

    async def finish(self) -> bool | None:
        await self._in_the_way.withdraw()
        told = [node for node in await self._nodes() if self._is_told_by_us(node)]
        for order in kept_off(told, PowerDownMode.IDLE, reason=self._reason).orders:
            await self._client.ask(order)
        # An idle one powers down within seconds, and is to be drained then.
        since = datetime.now(timezone.utc) - _GOES_WITHIN
        soon = (node for node in told if node.state.has(NodeFlag.POWER_DOWN) and (node.reason_since or since) > since)
        if not all(node.is_busy or node.is_coming_up for node in soon):
            return False
        await self._reservation.reserve((), datetime.now(timezone.utc), self._reason.why)
        return True

    def leave_out(self, units: Mapping[str, str]) -> None:
        self._left_out = units

    @property
    def jobs_in_the_way(self) -> tuple[dict[str, Any], ...]:
        return self._in_the_way.describe()

    async def losses(self) -> JobLosses:
        displaced = self._notes.jobs
        return displaced.losses(await self._client.statuses(displaced.jobs) if displaced.jobs else {})

    async def machines(self) -> MachineClues:
        nodes = await self._client.ask(ListNodes())
        mine = [node for node in nodes if node.name in self._names]
        return MachineClues(
            groups=frozenset(self._target.node_groups),
            machines=frozenset(node.instance for node in mine if node.instance),
            neighbours=tuple(node.instance for node in nodes if node.instance and node not in mine),
            nodesets=frozenset(name.rpartition("-")[0] for name in self._names),
            count=sum(node.is_up for node in mine),
            are_units=True,
        )

    async def forget(self, key: str) -> None:
        await self._client.ask(DeleteReservation(handover_name(self._context.block, key)))

    def lease(self) -> ReservationLease:
        return ReservationLease(self._client.ask, self._context.block, self._context.key, self._names, self._user)

    async def _nodes(self) -> tuple[Node, ...]:
        """Those of its nodes that exist: a NodeSet may have been scaled down."""
        try:
            return await self._client.ask(ListNodes(self._names))
        except UnknownNode:
            return tuple(node for node in await self._client.ask(ListNodes()) if node.name in self._names)

    async def _machines_under(self, machines: GroupMachines) -> int:
        """Count the node groups' machines, less those of other nodes of the same kind, which may share the groups."""
        count, gpus = await machines.count(), self._target.gpus_per_unit
        others = [node for node in await self._client.ask(ListNodes()) if node.name not in self._names]
        return min(count - sum(node.gpus == gpus and not node.is_off for node in others), len(self._names))

    async def _jobs(self) -> list[Job]:
        """The jobs that have nodes."""
        jobs = await self._client.ask(ListJobs())
        self._queue = jobs
        self._notes.history.see(jobs)
        return [job for job in jobs if job.state.is_active and job.nodelist]

    async def _choose(self, loads: Sequence[NodeLoad], to: int, release: Release) -> dict[str, str]:
        """The nodes to release, and why; those that may not be touched are left alone."""
        reserved, _, by_others = await self._reservations()
        fixed = {load.node.name: why for load in loads if (why := self._untouchable(load.node, by_others))}
        self._fixed = fixed
        given = sum(load.node.name in fixed and load.node.is_kept_off for load in loads)
        wanted = len(loads) - to - given
        chosen = choose(
            [load for load in loads if load.node.name not in fixed],
            wanted,
            now=datetime.now(timezone.utc),
            leaves_at=release.leaves_at,
            by=self._target.order,
            blocks=await self._blocks_of_nodes(),
            told={load.node.name for load in loads if self._is_told(load, release)},
            reserved=reserved,
            ends_jobs=release.ends_jobs,
        )
        short = wanted - len(chosen)
        stuck = {name: why for name, why in fixed.items() if name not in chosen}
        self._problems = (f"{short} more cannot go: {'; '.join(in_lines(stuck))}",) if short > 0 else ()
        return chosen

    def _is_told(self, load: NodeLoad, release: Release) -> bool:
        """True if a node is on its way off, in the name of this block.

        One that waits for its jobs, as others have told it, is left to them if theirs would be ended now, and an idle
        one could go.
        """
        is_left = release.ends_jobs and load.is_busy
        return not is_left if load.node.is_going_off else is_ours(load.node, self._reason.owner)

    async def _reserve(
        self, loads: Sequence[NodeLoad], leaving: Sequence[NodeLoad], release: Release, going: Collection[str] = ()
    ) -> None:
        """Reserve nodes until they are off and drained: no job starts there that would not end by their release."""
        nodes = [*await self._to_reserve(loads, leaving, release), *going]
        new = await self._reservation.reserve(nodes, release.leaves_at, self._reason.why)
        if nodes := sorted(new - {*going}):
            is_late = release.leaves_at <= datetime.now(timezone.utc)
            when = f" from {release.leaves_at:%d %b %H:%M:%S %Z} on"
            said = ": no job starts there" if is_late else f"{when}: only jobs that end by then start there"
            self._log.info("%s: reserved %s%s", self._target.name, hostlist.fold(nodes), said)

    async def _to_reserve(
        self, loads: Sequence[NodeLoad], leaving: Sequence[NodeLoad], release: Release
    ) -> Sequence[str]:
        """The nodes to reserve now: those that leave, or others that may fall idle sooner; none if it is too early."""
        names = [load.node.name for load in leaving if not load.node.is_off]
        waiting = waiting_jobs(self._queue, loads)
        # If nothing waits, nothing is kept off them. Nodes whose jobs are ended are to stay free.
        if not names or not waiting or release.mode is PowerDownMode.FORCE:
            return names
        now, history = datetime.now(timezone.utc), await self._history()
        # Where nodes of one network block go together, none takes the place of another.
        movable = leaving if self._target.whole_network_blocks else loads
        movable = [load for load in movable if load.node.name not in self._fixed and load.node.is_usable]
        certain = sorted({*names} - {load.node.name for load in movable})
        found = expected_to_go(movable, len(names) - len(certain), release.leaves_at, waiting, history, now)
        if found is None:
            return names
        nodes, typical = found
        if not nodes and not self._notes.is_early:
            self._log.info("%s: no node is reserved yet: jobs last about %s", self._target.name, typical)
        self._notes.is_early = not nodes
        return [*certain, *(load.node.name for load in movable if load.node.name in nodes)]

    async def _history(self) -> JobHistory:
        """How long jobs last here: from accounting once, and then from the queue."""
        notes, now = self._notes, datetime.now(timezone.utc)
        if notes.asks_at and now >= notes.asks_at:
            try:
                # The shift has to go on, and to renew its lease.
                async with timeout(_PATIENCE):
                    ended = await self._client.ask(Accounting(everyone=True, since=now - _HISTORY))
                notes.history.see(ended)
                notes.asks_at = None
            except (ClusterError, asyncio.TimeoutError) as error:
                notes.asks_at = now + _PAUSE if getattr(error, "passing", True) else None
                said = str(error) or f"accounting did not answer within {_PATIENCE:g} s"
                self._tell({"accounting": f"only the queue tells how long jobs last here: {said}"})
        return notes.history

    async def _reservations(self) -> tuple[frozenset[str], frozenset[str], dict[str, str]]:
        """Nodes that are reserved for the shift, for any, and by others while the nodes that go would be away."""
        return await self._reservation.see(self._context.until or datetime.now(timezone.utc) + _HORIZON)

    def _untouchable(self, node: Node, reserved: Mapping[str, str]) -> str:
        """Why a shift leaves a node as it is; empty if it may move it."""
        if self._is_anothers(node):
            return because(node, "is drained")
        if node.is_going_off or node.is_kept_off:
            return ""
        if node.name in self._left_out and not node.is_off:
            return self._left_out[node.name]
        may_take = self._context.may_take
        # A node that is off can only come, which needs no consent.
        if may_take is not None and node.name not in may_take and not node.is_off:
            return "is not among the nodes that may go by the plan that was approved"
        return reserved.get(node.name, "")

    def _is_told_by_us(self, node: Node) -> bool:
        """True if a node goes off in the name of this block, or has gone since its drain has ended."""
        said = DrainReason.parse(node.reason)
        # What undrains a node or powers it up takes the reason away; for those without accounting see docs/limits.md.
        goes = node.is_going_off or (node.is_off and not node.is_kept_off)
        return goes and said is not None and said.owner == self._reason.owner

    def _is_anothers(self, node: Node) -> bool:
        """True if others have drained the node: it is left alone."""
        return is_anothers(node, self._reason.owner)

    def _tell(self, waiting: Mapping[str, str]) -> None:
        """Log what is waited for, once for each node and cause."""
        for line in in_lines({name: why for name, why in waiting.items() if self._notes.told.get(name) != why}):
            self._log.info("%s: %s", self._target.name, line)
        self._notes.told.update(waiting)

    async def _blocks_of_nodes(self) -> dict[str, str]:
        if self._blocks is None:
            self._blocks = await self._client.ask(ShowTopology()) if self._target.whole_network_blocks else {}
        return self._blocks
