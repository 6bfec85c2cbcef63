"""Clients for a shift, from the Airflow connections that its targets name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from airflow_provider_soperator.nebius.capacity_blocks import CapacityBlock

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient
    from nebius.sdk import SDK

    from airflow_provider_soperator.client.client import AsyncSlurmClient


class AirflowClients:
    """Opened by hooks, each of which is imported when a connection of its type is asked for."""

    def slurm(self, conn_id: str) -> AbstractAsyncContextManager[AsyncSlurmClient]:
        from airflow_provider_soperator.hooks.slurm import SlurmHook

        return SlurmHook(conn_id).async_client()

    def nebius(self, conn_id: str) -> AbstractAsyncContextManager[SDK]:
        from airflow_provider_soperator.hooks.nebius import NebiusHook

        return NebiusHook(conn_id).async_client()

    @asynccontextmanager
    async def kubernetes(self, conn_id: str) -> AsyncIterator[ApiClient]:
        from airflow_provider_soperator.hooks.kubernetes import connect

        async with await connect(conn_id) as client:
            yield client

    async def block(self, conn_id: str, block: str) -> CapacityBlock:
        from airflow_provider_soperator.hooks.nebius import NebiusHook

        return await NebiusHook(conn_id).block(block)
