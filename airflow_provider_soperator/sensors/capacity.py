"""Wait for a capacity block to have GPUs free, to be active, or to keep its limit for a while."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.capacity.awaited import BlockAwaited
from airflow_provider_soperator.sensors.watch import WatchSensor

if TYPE_CHECKING:
    from airflow_provider_soperator.work.watches import BlockWatch


class CapacityBlockSensor(WatchSensor):
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
        nebius_conn_id: str = "nebius_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        BlockAwaited(at_least=at_least, state=state, no_change_before=no_change_before)
        self.block = block
        self.at_least, self.state, self.no_change_before = at_least, state, no_change_before
        self.nebius_conn_id = nebius_conn_id

    def watch(self) -> BlockWatch:
        from airflow_provider_soperator.work.watches import BlockWatch

        awaited = BlockAwaited(at_least=self.at_least, state=self.state, no_change_before=self.no_change_before)
        return BlockWatch(
            nebius_conn_id=self.nebius_conn_id, block=self.block, awaited=awaited, poll_interval=self.poke_interval
        )
