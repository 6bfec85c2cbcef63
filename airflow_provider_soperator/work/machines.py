"""Replacement of the machines of nodes by Soperator, some nodes at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from async_timeout import timeout

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.health.machine_replacement import (
    NodeSnapshot,
    Replacement,
    ReplacementOptions,
    by_kubernetes,
    by_slurm,
)
from airflow_provider_soperator.hooks.cluster_clients import HealthSources
from airflow_provider_soperator.hooks.slurm import SlurmHook
from airflow_provider_soperator.slurm import hostlist
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.errors import InvalidRequest
from airflow_provider_soperator.slurm.node_conditions import in_lines, refuse_unknown
from airflow_provider_soperator.slurm.node_orders import NodeStep
from airflow_provider_soperator.slurm.requests import ListJobs, ListNodes
from airflow_provider_soperator.values import NAMESPACE, number_or_share
from airflow_provider_soperator.work.nodes import give_orders, requeue
from airflow_provider_soperator.work.polling import SlurmAccess
from airflow_provider_soperator.work.protocols import Work, WorkFailed

#: Seconds in which drains are taken back when a task ends early.
_UNDOING = 30.0


@dataclass(kw_only=True)
class MachineReplacement(SlurmAccess, ReplacementOptions, Work[AsyncSlurmClient]):
    """Work that replaces the machines of nodes, a few at a time. Machines count as new if they are younger than it."""

    nodes: tuple[str, ...]
    max_parallel: int | str = 1
    mode: Literal["asap", "requeue", "force"] = "asap"
    grace: timedelta = timedelta(0)
    kubernetes_conn_id: str | None = None
    namespace: str = NAMESPACE

    def __post_init__(self) -> None:
        super().__post_init__()
        #: Access to Kubernetes; without a connection it is not asked.
        self._witnesses = HealthSources()
        self._replacements: dict[str, Replacement] = {}
        self._steps: dict[str, NodeStep] = {}
        self._told: dict[str, str] = {}
        self._ended_jobs: set[str] = set()

    async def step(self, client: AsyncSlurmClient) -> dict[str, Any] | None:
        """Look, give the orders that can be given now, and log what is new; the result, once all machines are new.

        Raises ``WorkFailed`` for a mistake at the first look, before any order; later once no other node is on its way,
        as none is begun any more when one is lost.
        """
        first = not self._replacements
        if first:
            self._witnesses = await self._whom_to_ask()
        sights = await self._look(client, self.poll_interval / 2)
        if first:
            self._replacements = {name: Replacement(self) for name in self.nodes}
        self._steps = self._decide(sights)
        waiting = {name: step.lost or step.waits for name, step in self._steps.items() if step.lost or step.waits}
        self.place = "; ".join(in_lines(waiting))
        lost = {name: step.lost for name, step in self._steps.items() if step.lost}
        on_their_way = [name for name, one in self._replacements.items() if one.is_under_way and name not in lost]
        if lost and (first or not on_their_way):
            raise WorkFailed("; ".join(in_lines(lost)))
        self._tell(waiting)
        self.has_begun = True
        await self._order(client, sights)
        return self._result() if all(one.is_over for one in self._replacements.values()) else None

    async def undo(self, client: AsyncSlurmClient) -> str:
        """Undrain nodes that are only drained so far: Soperator would replace their machines once jobs have ended."""
        async with timeout(_UNDOING):
            sights = await self._look(client, 0)
            undone = []
            for name, replacement in self._replacements.items():
                for order in replacement.undo(sights[name]):
                    await client.ask(order)
                    undone.append(name)
        left = [name for name, one in self._replacements.items() if one.is_under_way and name not in undone]
        untouched = [name for name, one in self._replacements.items() if not one.is_begun and not one.is_over]
        done = [name for name, one in self._replacements.items() if one.new and one.is_over]
        said = {
            "Replaced": done,
            "On their way, which they stay": left,
            "Their drains were taken back": undone,
            "Untouched": untouched,
        }
        return ". ".join(f"{what}: {hostlist.fold(names)}" for what, names in said.items() if names)

    def left(self, error: Exception) -> str:
        return f"Nodes that were drained stay drained, as the cluster cannot be asked: {error}"

    async def _whom_to_ask(self) -> HealthSources:
        """Access to Kubernetes by its own connection, or by that of the Soperator connection, if there is any."""
        settings = await SlurmHook(self.slurm_conn_id).async_settings()
        if self.kubernetes_conn_id:
            return HealthSources(kubernetes_conn_id=self.kubernetes_conn_id, namespace=self.namespace)
        return HealthSources(kubernetes_conn_id=settings.kubernetes_conn_id or None, namespace=settings.namespace)

    async def _look(self, client: AsyncSlurmClient, most_age: float) -> dict[str, NodeSnapshot]:
        seen, nodes = await asyncio.gather(self._witnesses.ask(), client.ask_shared(ListNodes(), most_age))
        known = {node.name: node for node in nodes}
        refuse_unknown(self.nodes, known)
        wanted = [known[name] for name in self.nodes]
        if seen.kubernetes is not None:
            return {node.name: by_kubernetes(node, seen.kubernetes.get(node.name)) for node in wanted}
        sights = {node.name: by_slurm(node) for node in wanted}
        if unknown := [node.name for node in wanted if node.is_up and sights[node.name].machine is None]:
            raise InvalidRequest(
                f"Slurm has not learnt which machine {hostlist.fold(unknown)} is on: give kubernetes_conn_id"
            )
        return sights

    def _decide(self, sights: Mapping[str, NodeSnapshot]) -> dict[str, NodeStep]:
        now = datetime.now(timezone.utc)
        limit = number_or_share("max_parallel", self.max_parallel, len(self._replacements))
        is_lost = any(step.lost for step in self._steps.values())
        steps = {}
        # The number of nodes that may begin depends on those that are on their way.
        for name in sorted(sights, key=lambda name: not self._replacements[name].is_under_way):
            under_way = sum(one.is_under_way for one in self._replacements.values())
            may_begin = under_way < limit and not is_lost
            steps[name] = self._replacements[name].look(sights[name], now, may_begin=may_begin)
            is_lost = is_lost or bool(steps[name].lost)
        return steps

    def _tell(self, waiting: Mapping[str, str]) -> None:
        arrived = {
            name: f"is on {one.new}, in place of {one.old}" if one.old else f"is on {one.new} already"
            for name, one in self._replacements.items()
            if one.new and one.is_over
        }
        off = {
            name: "is off: there is nothing to replace, and a power up takes another machine"
            for name, one in self._replacements.items()
            if one.is_skipped
        }
        said = {**waiting, **arrived, **off}
        new = {name: text for name, text in said.items() if self._told.get(name) != text}
        for line in in_lines(new):
            self._log.info("%s", line)
        self._told = said

    async def _order(self, client: AsyncSlurmClient, sights: Mapping[str, NodeSnapshot]) -> None:
        for step in self._steps.values():
            await give_orders(step.orders, client)
        late = [sight.node for sight in sights.values() if self._is_late(sight.node)]
        if late and self.mode != "asap":
            await self._end_jobs(client, late)

    def _is_late(self, node: Node) -> bool:
        """True once its jobs have had the time that they were given."""
        drained = node.reason_since if node.is_draining and self._replacements[node.name].is_under_way else None
        return bool(drained and datetime.now(timezone.utc) - drained > self.grace)

    async def _end_jobs(self, client: AsyncSlurmClient, nodes: Sequence[Node]) -> None:
        names = [node.name for node in nodes]
        running = await client.ask(ListJobs(states=("RUNNING", "SUSPENDED")))
        for job in running:
            if str(job.id) in self._ended_jobs or not hostlist.intersect(names, [job.nodelist]):
                continue
            await requeue(client, job, self._log, may_cancel=self.mode == "force")
            # Not before: a connection that breaks meanwhile must not keep the job from being cancelled.
            self._ended_jobs.add(str(job.id))

    def _result(self) -> dict[str, Any]:
        return {
            name: {
                "old": one.old,
                "new": one.new,
                "seconds": round((one.ended - one.began).total_seconds(), 1) if one.ended and one.began else 0.0,
            }
            for name, one in self._replacements.items()
            if not one.is_skipped
        }
