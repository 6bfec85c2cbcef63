"""Replacement of the machines of nodes by Soperator, some nodes at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import chain
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
from airflow_provider_soperator.slurm.node_orders import NodeMove, NodeStep, move_of
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.values import NAMESPACE, number_or_share
from airflow_provider_soperator.work.nodes import JobEnds, give_orders
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
        self._witnesses: HealthSources | None = None
        self._replacements: dict[str, Replacement] = {}
        self._lost: Mapping[str, str] = {}
        self._ends = JobEnds()

    async def step(self, client: AsyncSlurmClient) -> dict[str, Any] | None:
        """Look, give the orders that can be given now, and log what is new; the result, once all machines are new.

        Raises ``WorkFailed`` for a mistake at the first look, before any order; later once no other node is on its way,
        as none is begun any more when one is lost.
        """
        first = not self._replacements
        sights = await self._look(client, self.max_age)
        if first:
            self._replacements = {name: Replacement(self) for name in self.nodes}
        move = self._decide(sights)
        self._lost = move.lost
        waiting = {**move.lost, **move.waiting}
        self.place = "; ".join(in_lines(waiting))
        on_their_way = [name for name, one in self._replacements.items() if one.is_under_way and name not in move.lost]
        if move.lost and (first or not on_their_way):
            raise WorkFailed("; ".join(in_lines(move.lost)))
        self._tell_nodes({**waiting, **self._settled()})
        self.has_begun = True
        await give_orders(move.orders, client)
        late = [name for name, sight in sights.items() if self._is_late(sight.node)]
        if late and self.mode != "asap":
            await self._ends.requeue(late, client, self._log, may_cancel=self.mode == "force")
        return self._result() if all(one.is_over for one in self._replacements.values()) else None

    async def undo(self, client: AsyncSlurmClient) -> str:
        """Undrain nodes that are only drained so far: Soperator would replace their machines once jobs have ended."""
        async with timeout(_UNDOING):
            sights = await self._look(client, 0)
            if not self._replacements:
                # Another process has begun them.
                self._replacements = {name: Replacement(self) for name in self.nodes}
                for name, one in self._replacements.items():
                    one.look(sights[name], datetime.now(timezone.utc), may_begin=False)
            undone = {name: orders for name, one in self._replacements.items() if (orders := one.undo(sights[name]))}
            await give_orders(chain(*undone.values()), client)
        all_ = self._replacements.items()
        said = {
            "Replaced": [name for name, one in all_ if one.new and one.is_over],
            "On their way, which they stay": [name for name, one in all_ if one.is_under_way and name not in undone],
            "Their drains were taken back": [*undone],
            "Untouched": [name for name, one in all_ if not one.is_begun and not one.is_over],
        }
        return ". ".join(f"{what}: {hostlist.fold(names)}" for what, names in said.items() if names)

    def left(self, error: Exception) -> str:
        return f"Nodes that were drained stay drained, as the cluster cannot be asked: {error}"

    async def _look(self, client: AsyncSlurmClient, most_age: float) -> dict[str, NodeSnapshot]:
        self._witnesses = self._witnesses or await self._sources()
        seen, nodes = await asyncio.gather(self._witnesses.ask(most_age), client.ask_shared(ListNodes(), most_age))
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

    async def _sources(self) -> HealthSources:
        """Kubernetes by its own connection, or that of the Soperator connection; without one it is not asked."""
        conn_id, namespace = self.kubernetes_conn_id, self.namespace
        if not conn_id:
            settings = await SlurmHook(self.slurm_conn_id).async_settings()
            conn_id, namespace = settings.kubernetes_conn_id or None, settings.namespace
        return HealthSources(kubernetes_conn_id=conn_id, namespace=namespace)

    def _decide(self, sights: Mapping[str, NodeSnapshot]) -> NodeMove:
        now = datetime.now(timezone.utc)
        limit = number_or_share("max_parallel", self.max_parallel, len(self._replacements))
        steps, is_lost = dict[str, NodeStep](), bool(self._lost)
        under_way = {name for name, one in self._replacements.items() if one.is_under_way}
        # The number of nodes that may begin depends on those that are on their way.
        for name in sorted(sights, key=lambda name: name not in under_way):
            may_begin = len(under_way) < limit and not is_lost
            steps[name] = self._replacements[name].look(sights[name], now, may_begin=may_begin)
            (under_way.add if self._replacements[name].is_under_way else under_way.discard)(name)
            is_lost = is_lost or bool(steps[name].lost)
        return move_of(steps)

    def _settled(self) -> dict[str, str]:
        """The nodes for which nothing more is done, and why."""
        said = {}
        for name, one in self._replacements.items():
            if one.is_skipped:
                said[name] = "is off: there is nothing to replace, and a power up takes another machine"
            elif one.is_over:
                said[name] = f"is on {one.new}{f', in place of {one.old}' if one.old else ' already'}"
        return said

    def _is_late(self, node: Node) -> bool:
        """True once its jobs have had the time that they were given."""
        one = self._replacements[node.name]
        # Jobs on its new machine need not end.
        is_draining = node.is_draining and one.is_under_way and one.new is None
        drained = (one.drained or node.reason_since) if is_draining else None
        return bool(drained and datetime.now(timezone.utc) - drained > self.grace)

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
