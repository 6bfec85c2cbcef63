"""Resize of a NodeSet: each step looks at both sides, and does what can be done now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from airflow_provider_soperator.hooks.cluster_clients import ClusterConnections, ClusterSides
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.node_conditions import in_lines
from airflow_provider_soperator.slurm.node_orders import NodeMove
from airflow_provider_soperator.slurm.requests import Undrain
from airflow_provider_soperator.soperator.clusters import NodeSetSeen
from airflow_provider_soperator.soperator.kinds import NODE_SET
from airflow_provider_soperator.soperator.resize import Resize, known
from airflow_provider_soperator.soperator.workloads import last_scaled_by
from airflow_provider_soperator.transports.transport_errors import TransportError, is_conflict
from airflow_provider_soperator.work.nodes import JobEnds, give_orders, jobs_on
from airflow_provider_soperator.work.protocols import Work, WorkFailed, WorkRefused


@dataclass(kw_only=True)
class NodeSetResize(Work[ClusterSides]):
    """Work that resizes a NodeSet: nodes are drained, the number is changed, and new nodes are waited for."""

    where: ClusterConnections
    resize: Resize
    #: Log and return the plan, and change nothing.
    plan_only: bool = False

    def __post_init__(self) -> None:
        #: True once this process has changed the number.
        self._has_set = False
        self._ends = JobEnds()

    def open(self) -> AbstractAsyncContextManager[ClusterSides]:
        return self.where.open()

    async def plan(self, sides: ClusterSides) -> dict[str, Any]:
        nodeset, _ = await self._look(sides, 0)
        self._refuse(sides, nodeset)
        leaving = self.resize.leaving(nodeset)
        jobs = await jobs_on(leaving, sides.slurm) if sides.slurm and leaving else []
        return {
            "nodeset": nodeset.name,
            "replicas": self.resize.replicas,
            "before": nodeset.replicas,
            "leaving": list(leaving),
            "coming": list(nodeset.names(range(nodeset.replicas, self.resize.replicas))),
            "jobs": [str(job.id) for job in jobs],
            "warning": nodeset.keeper.warning(self.resize.replicas) if nodeset.keeper else "",
        }

    async def step(self, sides: ClusterSides) -> dict[str, Any] | None:
        if self.plan_only:
            planned = await self.plan(sides)
            for name, value in planned.items():
                self._log.info("%s: %s", name, value)
            return planned
        nodeset, slurm = await self._look(sides, self.max_age)
        if not self.has_begun:
            await self._check(sides, nodeset)
            # From here on there may be drains to undo, also if this step fails.
            self.has_begun = True
        if nodeset.replicas != self.resize.replicas:
            await self._change(sides, nodeset, slurm)
            return None
        move = self.resize.finish(nodeset, slurm, self.since)
        self._tell(move)
        if move.lost and not move.waiting:
            raise WorkFailed("; ".join(in_lines(move.lost)))
        if sides.slurm:
            await give_orders(move.orders, sides.slurm)
        if not move.is_over:
            return None
        return {
            "nodeset": nodeset.name,
            "replicas": nodeset.replicas,
            "nodes": list(nodeset.nodes),
            "passed_over": list(self.resize.passed_over(nodeset, slurm, self.since)),
            "seconds": self.seconds,
        }

    async def undo(self, sides: ClusterSides) -> str:
        """Undrain the nodes that were to go, unless the number has been changed."""
        nodeset, slurm = await self._look(sides, 0)
        if nodeset.replicas <= self.resize.replicas:
            return f"NodeSet {nodeset.name} has {nodeset.replicas} replicas, and goes on towards that"
        leaving = known(self.resize.leaving(nodeset), slurm)
        drained = self.resize.drained_for_it(leaving)
        if drained and sides.slurm:
            await sides.slurm.ask(Undrain(drained))
        undrained = f", and {hostlist.fold(drained)} are undrained" if drained else ""
        return f"NodeSet {nodeset.name} keeps its {nodeset.replicas} replicas{undrained}"

    def left(self, error: Exception) -> str:
        return f"Nodes that were drained for it stay drained, as that could not be undone: {error}"

    async def _look(self, sides: ClusterSides, most_age: float) -> tuple[NodeSetSeen, Mapping[str, Node] | None]:
        return await asyncio.gather(sides.kubernetes.nodeset(self.resize.nodeset), sides.nodes(most_age))

    async def _check(self, sides: ClusterSides, nodeset: NodeSetSeen) -> None:
        """Refuse impossible orders before any change."""
        self._refuse(sides, nodeset)
        if nodeset.replicas == self.resize.replicas:
            return
        # A dry run needs the same permission as the change.
        await sides.kubernetes.set_replicas(nodeset.name, self.resize.replicas, dry_run=True)
        if nodeset.keeper:
            self._log.warning("%s", nodeset.keeper.warning(self.resize.replicas))

    def _refuse(self, sides: ClusterSides, nodeset: NodeSetSeen) -> None:
        if obstacle := self.resize.obstacle(nodeset, asks_slurm=sides.slurm is not None):
            raise WorkRefused(obstacle)

    async def _change(self, sides: ClusterSides, nodeset: NodeSetSeen, slurm: Mapping[str, Node] | None) -> None:
        if self._has_set:
            who = last_scaled_by(await sides.kubernetes.objects.read(NODE_SET, nodeset.name)) or "another client"
            raise WorkFailed(
                f"{who} has set NodeSet {nodeset.name} to {nodeset.replicas} replicas, while it goes to "
                f"{self.resize.replicas}: let only one of them scale it, and try again"
            )
        # A node may have been powered up since.
        self._refuse(sides, nodeset)
        move = self.resize.prepare(nodeset, slurm)
        self._tell(move)
        if sides.slurm:
            await give_orders(move.orders, sides.slurm)
        if self.resize.mode == "force" and sides.slurm:
            await self._ends.requeue(self.resize.leaving(nodeset), sides.slurm, self._log, may_cancel=True)
        if not move.is_over:
            return
        try:
            # Only as long as the NodeSet is the one that was looked at.
            await sides.kubernetes.set_replicas(nodeset.name, self.resize.replicas, version=nodeset.version)
        except TransportError as error:
            if not is_conflict(error):
                raise
            return
        self._has_set = True
        self._log.info("NodeSet %s goes from %d to %d nodes", nodeset.name, nodeset.replicas, self.resize.replicas)

    def _tell(self, move: NodeMove) -> None:
        self._tell_nodes(move.waiting)
        self.place = "; ".join(in_lines({**move.lost, **move.waiting})) or "all is done but for the last look"
