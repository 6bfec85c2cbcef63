"""Capacity blocks that sensors wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_provider_soperator.capacity.awaited import BlockAwaited, told
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.work.protocols import Look, Watch


@dataclass(frozen=True, kw_only=True)
class BlockWatch(Watch[NebiusHook]):
    """A capacity block, and the state that is waited for."""

    nebius_conn_id: str
    block: str
    awaited: BlockAwaited

    @asynccontextmanager
    async def open(self) -> AsyncIterator[NebiusHook]:
        hook = NebiusHook(self.nebius_conn_id)
        # The connection stays open between two looks.
        async with hook.async_client():
            yield hook

    async def look(self, client: NebiusHook, max_age: float) -> Look:
        block = await client.block(self.block)
        lacks = self.awaited.lacks(block, datetime.now(timezone.utc))
        return Look(not lacks, told(block), (f"Block {self.block}: {lacks}",) if lacks else ())
