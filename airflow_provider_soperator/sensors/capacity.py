"""Wait for a capacity block to have GPUs free, to be active, or to keep its limit for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf

from airflow_provider_soperator.capacity.awaited import BlockAwaited, told
from airflow_provider_soperator.hooks.nebius import NebiusHook

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class CapacityBlockSensor(BaseSensorOperator):
    """Wait until a capacity block is in a state, and so many of its GPUs are free.

        CapacityBlockSensor(task_id="free", block="capacityblockgroup-e00example", at_least=32)

    With ``no_change_before`` its limit must not be announced to fall within that time, either. A usage that Nebius does
    not know at present is waited out. Returns what there is of the block.
    """

    template_fields: Sequence[str] = ("nebius_conn_id", "block")
    ui_color = "#d9f2e6"

    def __init__(
        self,
        *,
        block: str,
        at_least: int | None = None,
        state: str | None = "active",
        no_change_before: timedelta | None = None,
        nebius_conn_id: str = NebiusHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        BlockAwaited(at_least=at_least, state=state, no_change_before=no_change_before)
        self.block = block
        self.at_least, self.state, self.no_change_before = at_least, state, no_change_before
        self.nebius_conn_id = nebius_conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        from airflow_provider_soperator.triggers.blocks import CapacityBlockTrigger

        still = self.no_change_before
        trigger = CapacityBlockTrigger(
            self.nebius_conn_id,
            self.block,
            self.at_least,
            self.state,
            None if still is None else still.total_seconds(),
            self.poke_interval,
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        return event

    def poke(self, context: Context) -> PokeReturnValue:
        awaited = BlockAwaited(at_least=self.at_least, state=self.state, no_change_before=self.no_change_before)
        block = asyncio.run(NebiusHook(self.nebius_conn_id).block(self.block))
        if lacks := awaited.lacks(block, datetime.now(timezone.utc)):
            self.log.info("Block %s: %s", self.block, lacks)
            return PokeReturnValue(False)
        return PokeReturnValue(True, told(block))
