"""Nodes of a Soperator cluster during a shift: a target that chooses the nodes to release."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_provider_soperator.capacity.figures import DisplacedJobs, JobLosses
from airflow_provider_soperator.capacity.handover import HandoverReservation, handover_name
from airflow_provider_soperator.capacity.holdings import Holding, Release
from airflow_provider_soperator.capacity.node_choice import choose
from airflow_provider_soperator.capacity.reservation_lease import ReservationLease
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
    DeleteReservation,
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
        try:
            self._names = tuple(hostlist.expand(target.nodes))
        except hostlist.HostlistError as error:
            raise CapacityMistake(f"{target.name}: {error}") from None
        # Named after the block, not the shift: a later shift undrains what this one has drained.
        self._reason = DrainReason(f"capacity/{re.sub('[^A-Za-z0-9._-]', '-', context.block)}", context.why)
        self._reservation = HandoverReservation(client.ask, context.block, context.key, user, self._names)
        self._block = context.block
        self._lease = ReservationLease(client.ask, context.block, context.key, self._names[0], user)
        self._began = datetime.now(timezone.utc)
        self._displaced = DisplacedJobs()
        #: The time at which each job got the signal.
        self._warned: dict[JobId, datetime] = {}
        self._told: dict[str, str] = {}
        self._blocks: dict[str, str] | None = None
        self._problems: tuple[str, ...] = ()
        #: Nodes that did not boot, with reasons.
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
                f"{target.name}: some of {target.nodes} have {', '.join(map(str, sorted(others)))} GPUs, but "
                f"gpus_per_unit is {target.gpus_per_unit}",
                "give each shape of nodes its own target",
            )
        if not 0 <= units <= len(nodes):
            raise CapacityMistake(f"{target.name}: expected 0 to {len(nodes)} nodes ({target.nodes}), got {units}")

    async def _refuse_ordinary_users(self, config: ClusterConfig) -> None:
        # These two have all rights, even if accounting does not list them.
        if self._user in ("root", config.slurm_user):
            return
        if not (await self._client.ask(ShowRights(self._user))).may_change_nodes:
            raise NotPermitted(f"{self._user} may not power nodes up and down")

    async def look(self) -> Holding:
        nodes = await self._nodes()
        on = [node for node in nodes if not is_off(node)]
        # Slurm does not know if a booting node has its machine yet: its GPUs count as promised until it is up.
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
        return in_lines({name: f"will go: {why}" for name, why in chosen.items()})

    async def shrink(self, to: int, release: Release) -> None:
        nodes = await self._nodes()
        jobs = await self._jobs()
        chosen = await self._choose(nodes, jobs, to)
        leaving = list(chosen)
        self._tell({name: f"will go: {why}" for name, why in chosen.items() if name not in self._told})
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
        # A node that is on holds its GPUs, even if others have drained it: no other node may take them.
        anothers = sum(self._is_anothers(node) and not is_off(node) for node in nodes)
        mine = [node for node in nodes if not self._is_anothers(node)]
        self._failed |= {node.name: node.reason for node in mine if self._has_failed(node)}
        # Up to Soperator 4.1 the Pod of a node that did not boot stays, and keeps its machine from the node that is
        # powered up instead.
        failed = kept_off([node for node in mine if node.name in self._failed], PowerDownMode.ASAP, reason=self._reason)
        chosen = sorted((node for node in mine if node.name not in self._failed), key=_nearness)
        move = up(chosen[: max(0, to - anothers)], owner=self._reason.owner, since=self._began)
        for order in (*failed.orders, *move.orders):
            await self._client.ask(order)
        lost = tuple(f"{name}: {why}" for name, why in {**self._failed, **move.lost}.items())
        few = (f"others have drained all but {len(mine)} of its nodes",) if len(mine) < to else ()
        self._problems = lost + few
        self._tell(
            {**move.waiting, **move.lost, **{name: f"failed to boot: {why}" for name, why in self._failed.items()}}
        )

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

    async def forget(self, key: str) -> None:
        await self._client.ask(DeleteReservation(handover_name(self._block, key)))

    def lease(self) -> ReservationLease:
        return self._lease

    async def _nodes(self) -> tuple[Node, ...]:
        return await self._client.ask(ListNodes(self._names))

    async def _machines_under(self, machines: GroupMachines) -> int:
        """Count the node groups' machines, less those of other nodes of the same kind, which may share the groups."""
        count, everyone = await machines.count(), await self._client.ask(ListNodes())
        others = sum(
            node.name not in self._names and node.gpus == self._target.gpus_per_unit and not is_off(node)
            for node in everyone
        )
        return min(count - others, len(self._names))

    async def _jobs(self) -> list[Job]:
        """The jobs that have nodes."""
        return [job for job in await self._client.ask(ListJobs()) if job.state.is_active and job.nodelist]

    async def _choose(self, nodes: Sequence[Node], jobs: Sequence[Job], to: int) -> dict[str, str]:
        """The nodes to release, the same ones each time, and why; nodes that others have drained are left alone."""
        given = sum(self._is_anothers(node) and is_off(node) for node in nodes)
        free = [node for node in nodes if not self._is_anothers(node)]
        wanted = len(nodes) - to - given
        leaving = {node.name for node in free if is_ours(node, self._reason.owner)}.union(
            await self._reservation.nodes()
        )
        chosen = choose(
            free,
            jobs,
            max(0, wanted),
            now=datetime.now(timezone.utc),
            by=self._target.order,
            blocks=await self._blocks_of_nodes(),
            leaving=leaving,
        )
        short = wanted - len(chosen)
        self._problems = (f"{short} more cannot go, as others have drained them",) if short > 0 else ()
        return chosen

    async def _reserve(self, nodes: Sequence[str], release: Release) -> None:
        """Reserve nodes ahead of their release; later, a power-down drains them anyway."""
        if release.mode is not None or not release.ahead or not nodes:
            return
        if await self._reservation.reserve(nodes, release.wanted_at, self._reason.why):
            self._log.info(
                "%s: reserved %s from %s on: only jobs that end by then start there",
                self._target.name,
                hostlist.fold(nodes),
                f"{release.wanted_at:%d %b %H:%M:%S %Z}",
            )

    async def _warned_long_enough(self, jobs: Sequence[Job], release: Release) -> bool:
        """Signal jobs that got no signal yet; a process that takes over signals once more, which does no harm."""
        now = datetime.now(timezone.utc)
        new = tuple(job.id for job in jobs if job.id not in self._warned)
        if new and release.signal:
            names = ", ".join(map(str, new))
            args = (self._target.name, release.signal, names, release.grace)
            self._log.warning("%s: sending SIG%s to jobs %s, which have %s to end", *args)
            await self._client.ask(CancelJobs(ids=new, signal=release.signal))
        self._warned |= dict.fromkeys(new, now)
        return all(now - self._warned[job.id] >= release.grace for job in jobs)

    def _has_failed(self, node: Node) -> bool:
        """True if the node was powered up in this session and did not boot."""
        return failed_to_resume(node) and node.reason_since is not None and node.reason_since > self._began

    def _is_anothers(self, node: Node) -> bool:
        """True if others have drained the node: it is left alone."""
        return is_anothers(node, self._reason.owner)

    def _tell(self, waiting: Mapping[str, str]) -> None:
        """Log what is waited for, once for each node and cause."""
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
    """Rank of a node: the sooner it can be used, the lower."""
    if is_usable(node):
        return 0
    if failed_to_resume(node):
        return 5
    if is_coming_up(node):
        return 1
    # A drained node ranks last: the drain may persist.
    if is_off(node) and node.state.has(NodeFlag.DRAIN):
        return 4
    # A power-down cannot be revoked, but such a node still has its GPUs, unlike one that is off.
    return 3 if is_off(node) else 2
