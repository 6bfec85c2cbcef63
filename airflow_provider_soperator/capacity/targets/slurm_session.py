"""Nodes of a Soperator cluster at work as a target, which can be told which of them to give up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_provider_soperator.capacity.figures import DisplacedJobs, JobLosses
from airflow_provider_soperator.capacity.handover import HandoverReservation
from airflow_provider_soperator.capacity.holdings import Holding, Release
from airflow_provider_soperator.capacity.lease import Lease
from airflow_provider_soperator.capacity.node_choice import NodeChoice, NodePreference, choose
from airflow_provider_soperator.capacity.targets.protocol import Session, SessionContext, refuse_unnamed
from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node
from airflow_provider_soperator.slurm.errors import NotPermitted, SlurmError
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import Job
from airflow_provider_soperator.slurm.node_conditions import (
    DrainReason,
    failed_to_resume,
    in_lines,
    is_anothers,
    is_busy,
    is_coming_up,
    is_going_off,
    is_off,
    is_ours,
    is_usable,
    refuse_unknown,
)
from airflow_provider_soperator.slurm.node_orders import kept_off, refuse_power, up
from airflow_provider_soperator.slurm.requests import (
    CancelJobs,
    ListJobs,
    ListNodes,
    PowerDownMode,
    ShowConfig,
    ShowRights,
    ShowTopology,
    Undrain,
)
from airflow_provider_soperator.slurm.states import NodeFlag

if TYPE_CHECKING:
    from airflow_provider_soperator.capacity.targets import SlurmNodesTarget
    from airflow_provider_soperator.capacity.targets.nebius_session import GroupMachines


class SlurmNodesSession(Session):
    """A set of Slurm nodes at work as a target."""

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
        try:
            self._names = tuple(hostlist.expand(target.nodes))
        except hostlist.HostlistError as error:
            raise CapacityMistake(f"{target.name}: {error}") from None
        # Of the block, and not of the shift: what one shift has drained, a later one undrains.
        self._reason = DrainReason(f"capacity/{re.sub('[^A-Za-z0-9._-]', '-', context.block)}", context.why)
        self._reservation = HandoverReservation(client.ask, context.block, context.key, user, self._names)
        self._lease = Lease(client.ask, context.block, context.key, self._names[0], user)
        self._began = datetime.now(timezone.utc)
        self._displaced = DisplacedJobs()
        #: When each job was warned.
        self._warned: dict[JobId, datetime] = {}
        self._told: dict[str, str] = {}
        self._blocks: dict[str, str] | None = None
        self._problems: tuple[str, ...] = ()
        #: Nodes that did not boot, and why.
        self._failed: dict[str, str] = {}

    async def check(self, units: int, block: CapacityBlock) -> None:
        target = self._target
        refuse_unnamed(block, target.name)
        try:
            known = {node.name: node for node in await self._client.ask(ListNodes())}
            refuse_unknown(self._names, known)
            config = await self._client.ask(ShowConfig())
            refuse_power(self._names, config)
            await self._refuse_ordinary_users(config)
        except SlurmError as error:
            if error.retryable:
                raise
            raise CapacityMistake(f"{target.name}: {error}") from error
        nodes = [known[name] for name in self._names]
        if self._machines:
            await self._machines.check(units, target.gpus_per_unit, block)
        others = {node.gpus for node in nodes} - {target.gpus_per_unit}
        if others:
            raise CapacityMistake(
                f"{target.name}: there are nodes with {', '.join(map(str, sorted(others)))} GPUs among {target.nodes}, "
                f"and gpus_per_unit says {target.gpus_per_unit}",
                "give each shape of nodes a target of its own",
            )
        if not 0 <= units <= len(nodes):
            raise CapacityMistake(
                f"{target.name}: it has {len(nodes)} nodes ({target.nodes}), so it cannot have {units}"
            )

    async def _refuse_ordinary_users(self, config: ClusterConfig) -> None:
        # These two have all rights, though accounting may not list them.
        if self._user in ("root", config.slurm_user):
            return
        if not (await self._client.ask(ShowRights(self._user))).may_change_nodes:
            raise NotPermitted(f"{self._user} may not power nodes up and down")

    async def look(self) -> Holding:
        nodes = await self._nodes()
        on = [node for node in nodes if not is_off(node)]
        # Slurm alone does not know if one that boots has its machine yet: its GPUs are promised until it is up.
        sure = sum(not is_coming_up(node) for node in on)
        return Holding(
            allowed=sum(not _is_kept_off(node) for node in nodes),
            held=max(sure, await self._machines_under(self._machines)) if self._machines else sure,
            ready=sum(map(is_usable, nodes)),
            finishing=sum(is_busy(node) and not is_usable(node) for node in on),
            is_settled=not any(is_coming_up(node) or is_going_off(node) for node in nodes),
            problems=self._problems + tuple(f"{node.name}: {node.reason}" for node in nodes if failed_to_resume(node)),
        )

    async def explain(self, to: int) -> tuple[str, ...]:
        nodes = await self._nodes()
        chosen = await self._choose(nodes, await self._jobs(), to)
        return in_lines({choice.node: f"to go, as it {choice.why}" for choice in chosen})

    async def shrink(self, to: int, release: Release) -> None:
        nodes = await self._nodes()
        jobs = await self._jobs()
        chosen = await self._choose(nodes, jobs, to)
        leaving = [choice.node for choice in chosen]
        self._tell({choice.node: f"to go, as it {choice.why}" for choice in chosen if choice.node not in self._told})
        await self._reserve([node.name for node in nodes if node.name in leaving and not is_off(node)], release)
        if release.mode is None:
            return
        there = [job for job in jobs if hostlist.intersect(job.nodelist, leaving)]
        self._displaced.see(there)
        mode = release.mode
        if mode is PowerDownMode.FORCE and not await self._warned_long_enough(there, release):
            mode = PowerDownMode.ASAP
        move = kept_off([node for node in nodes if node.name in leaving], mode, reason=self._reason)
        if mode is PowerDownMode.FORCE and any(hostlist.intersect(job.nodelist, list(move.waiting)) for job in there):
            self._displaced.forced = self._displaced.forced or datetime.now(timezone.utc)
        for order in move.orders:
            await self._client.ask(order)
        self._tell(move.waiting)

    async def grow(self, to: int) -> None:
        nodes = await self._nodes()
        # A node that is on has its GPUs, drained or not, and whether or not it is to stay: no other may take them.
        anothers = sum(self._is_anothers(node) and not is_off(node) for node in nodes)
        mine = [node for node in nodes if not self._is_anothers(node)]
        self._failed |= {node.name: node.reason for node in mine if self._has_failed(node)}
        # Up to Soperator 4.1 the Pod of a node that did not boot stays, and keeps its machine from the one that is
        # powered up in its place.
        failed = kept_off([node for node in mine if node.name in self._failed], PowerDownMode.ASAP, reason=self._reason)
        chosen = sorted((node for node in mine if node.name not in self._failed), key=_nearness)
        move = up(chosen[: max(0, to - anothers)], owner=self._reason.owner, since=self._began)
        for order in (*failed.orders, *move.orders):
            await self._client.ask(order)
        lost = tuple(f"{name}: {why}" for name, why in {**self._failed, **move.lost}.items())
        few = (f"only {len(mine)} of its nodes are not drained by others",) if len(mine) < to else ()
        self._problems = lost + few
        self._tell({**move.waiting, **move.lost, **{name: f"is given up: {why}" for name, why in self._failed.items()}})

    async def allow(self, to: int) -> None:
        nodes = await self._nodes()
        allowed = sum(not _is_kept_off(node) for node in nodes)
        ours = [node.name for node in nodes if _is_kept_off(node) and is_ours(node, self._reason.owner)]
        if back := ours[: max(0, to - allowed)]:
            await self._client.ask(Undrain(tuple(back)))

    async def finish(self) -> None:
        await self._reservation.end()

    async def losses(self) -> JobLosses:
        jobs = self._displaced.jobs
        return self._displaced.losses(await self._client.statuses(jobs) if jobs else {})

    def lease(self) -> Lease:
        return self._lease

    async def _nodes(self) -> tuple[Node, ...]:
        return await self._client.ask(ListNodes(self._names))

    async def _machines_under(self, machines: GroupMachines) -> int:
        """Count the node groups' machines, less what other nodes of the same kind have: they may stand on them, too."""
        count, everyone = await machines.count(), await self._client.ask(ListNodes())
        others = sum(
            node.name not in self._names and node.gpus == self._target.gpus_per_unit and not is_off(node)
            for node in everyone
        )
        return min(count - others, len(self._names))

    async def _jobs(self) -> list[Job]:
        """The jobs that are on nodes."""
        return [job for job in await self._client.ask(ListJobs()) if job.state.is_active and job.nodelist]

    async def _choose(self, nodes: Sequence[Node], jobs: Sequence[Job], to: int) -> list[NodeChoice]:
        """The nodes that are to go, the same ones each time; what others have drained is theirs."""
        given = sum(self._is_anothers(node) and is_off(node) for node in nodes)
        free = [node for node in nodes if not self._is_anothers(node)]
        wanted = len(nodes) - to - given
        leaving = {node.name for node in free if is_ours(node, self._reason.owner)}.union(
            await self._reservation.nodes()
        )
        preference = NodePreference(self._target.order, await self._blocks_of_nodes())
        now = datetime.now(timezone.utc)
        chosen = choose(free, jobs, max(0, wanted), now=now, preference=preference, leaving=leaving)
        short = wanted - len(chosen)
        self._problems = (f"{short} more are drained by others, and stay as they are",) if short > 0 else ()
        return chosen

    async def _reserve(self, nodes: Sequence[str], release: Release) -> None:
        """Ahead of its time only: what is powered down drains by itself, and in the order of Slurm's choice."""
        if release.mode is not None or not release.ahead or not nodes:
            return
        if await self._reservation.reserve(nodes, release.wanted_at, self._reason.why):
            self._log.info(
                "%s: %s reserved from %s on: jobs start there that end by then, and no others",
                self._target.name,
                hostlist.fold(nodes),
                f"{release.wanted_at:%d %b %H:%M:%S} UTC",
            )

    async def _warned_long_enough(self, jobs: Sequence[Job], release: Release) -> bool:
        """Warn jobs that have not been; a process that takes over from another warns once more, which does no harm."""
        now = datetime.now(timezone.utc)
        new = tuple(job.id for job in jobs if job.id not in self._warned)
        if new and release.signal:
            names = ", ".join(map(str, new))
            self._log.warning("%s: jobs %s get SIG%s, and %s", self._target.name, names, release.signal, release.grace)
            await self._client.ask(CancelJobs(ids=new, signal=release.signal))
        self._warned |= dict.fromkeys(new, now)
        return all(now - self._warned[job.id] >= release.grace for job in jobs)

    def _has_failed(self, node: Node) -> bool:
        """The node was powered up since this began, and did not come."""
        return failed_to_resume(node) and node.reason_since is not None and node.reason_since > self._began

    def _is_anothers(self, node: Node) -> bool:
        """Others have drained the node: it is left alone."""
        return is_anothers(node, self._reason.owner)

    def _tell(self, waiting: Mapping[str, str]) -> None:
        """Say what is waited for, once for each node and cause."""
        for line in in_lines({name: why for name, why in waiting.items() if self._told.get(name) != why}):
            self._log.info("%s: %s", self._target.name, line)
        self._told.update(waiting)

    async def _blocks_of_nodes(self) -> dict[str, str]:
        if not self._target.whole_network_blocks:
            return {}
        if self._blocks is None:
            self._blocks = await self._client.ask(ShowTopology())
        return self._blocks


def _is_kept_off(node: Node) -> bool:
    return is_off(node) and node.state.has(NodeFlag.DRAIN)


def _nearness(node: Node) -> int:
    """The rank of a node by how soon it can be used."""
    if is_usable(node):
        return 0
    if failed_to_resume(node):
        return 5
    if is_coming_up(node):
        return 1
    # One that may come at any time comes before one that is drained, and may stay so.
    if is_off(node) and node.state.has(NodeFlag.DRAIN):
        return 4
    # One that is to go cannot be told to stay; but it has its GPUs yet, which one that is off has not.
    return 3 if is_off(node) else 2
