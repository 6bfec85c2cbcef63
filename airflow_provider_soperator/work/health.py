"""The health of nodes that sensors wait for: what Slurm, Kubernetes and Prometheus say of them, in one look."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.health.assessment import HealthQuery, in_words, told, unclear
from airflow_provider_soperator.hooks.health import Witnesses
from airflow_provider_soperator.slurm.node_conditions import in_lines
from airflow_provider_soperator.slurm.requests import ListNodes
from airflow_provider_soperator.work.polling import slurm_client
from airflow_provider_soperator.work.protocols import Look, Watch


@dataclass(frozen=True, kw_only=True)
class HealthWatch(Watch[AsyncSlurmClient]):
    """Some nodes that are waited for until they are healthy, or until one is not."""

    slurm_conn_id: str
    watched: HealthQuery
    witnesses: Witnesses

    def open(self) -> AbstractAsyncContextManager[AsyncSlurmClient]:
        return slurm_client(self.slurm_conn_id)

    async def look(self, client: AsyncSlurmClient, max_age: float) -> Look:
        nodes, seen = await asyncio.gather(client.ask_shared(ListNodes(), max_age), self.witnesses.ask(max_age))
        unhealthy = self.watched.unhealthy(nodes, seen)
        lines = in_lines(in_words(unhealthy)) or ("nothing is wrong",)
        doubt = unclear(nodes, seen)
        says = (*lines, doubt) if doubt else lines
        return Look(self.watched.is_reached(unhealthy), told(unhealthy), says)
