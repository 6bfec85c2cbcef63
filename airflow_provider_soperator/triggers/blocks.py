"""Waits in the triggerer for a capacity block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone

from airflow.triggers.base import TriggerEvent

from airflow_provider_soperator.capacity.awaited import BlockAwaited, told
from airflow_provider_soperator.hooks.nebius import NebiusHook
from airflow_provider_soperator.triggers.base import SlurmTrigger
from airflow_provider_soperator.triggers.rounds import rounds_with


class CapacityBlockTrigger(SlurmTrigger):
    """Fires when a block is as it is wanted."""

    def __init__(
        self,
        nebius_conn_id: str,
        block: str,
        at_least: int | None,
        state: str | None,
        no_change_seconds: float | None,
        poll_interval: float,
    ) -> None:
        super().__init__()
        self.nebius_conn_id = nebius_conn_id
        self.block = block
        self.at_least = at_least
        self.state = state
        self.no_change_seconds = no_change_seconds
        self.poll_interval = poll_interval

    async def run(self) -> AsyncIterator[TriggerEvent]:
        still = None if self.no_change_seconds is None else timedelta(seconds=self.no_change_seconds)
        awaited = BlockAwaited(at_least=self.at_least, state=self.state, no_change_before=still)
        hook, said = NebiusHook(self.nebius_conn_id), ""
        async for block in rounds_with(
            # It stays open between two rounds.
            hook.async_client,
            lambda _: hook.block(self.block),
            self.poll_interval,
            self.log,
            must_work=True,
            whom="Nebius",
        ):
            lacks = awaited.lacks(block, datetime.now(timezone.utc))
            if not lacks:
                yield await self.resume(told(block))
                return
            if lacks != said:
                said = lacks
                self.log.info("Block %s: %s", self.block, lacks)
