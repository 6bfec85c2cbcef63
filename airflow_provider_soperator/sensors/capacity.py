"""Wait for a capacity block to have GPUs free, to be active, or to keep its limit for a while."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.capacity.awaited import BlockAwaited
from airflow_provider_soperator.sensors.watch import WatchSensor

if TYPE_CHECKING:
    from airflow_provider_soperator.work.blocks import BlockWatch


class CapacityBlockSensor(WatchSensor):
    """Wait until a capacity block is in a state, and so many of its GPUs are free.

        CapacityBlockSensor(task_id="free", block="capacityblockgroup-e00example", min_free_gpus=32)

    With ``stable_for`` its limit must not be announced to fall within that time, either. A usage that Nebius does
    not know at present is waited out. Returns what there is of the block.
    """

    template_fields: Sequence[str] = ("nebius_conn_id", "block")
    ui_color = "#d9f2e6"

    def __init__(
        self,
        *,
        block: str,
        min_free_gpus: int | None = None,
        target_state: str | None = "active",
        stable_for: timedelta | None = None,
        nebius_conn_id: str = "nebius_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        BlockAwaited(min_free_gpus=min_free_gpus, target_state=target_state, stable_for=stable_for)
        self.block = block
        self.min_free_gpus, self.target_state, self.stable_for = min_free_gpus, target_state, stable_for
        self.nebius_conn_id = nebius_conn_id

    def watch(self) -> BlockWatch:
        from airflow_provider_soperator.work.blocks import BlockWatch

        awaited = BlockAwaited(
            min_free_gpus=self.min_free_gpus, target_state=self.target_state, stable_for=self.stable_for
        )
        return BlockWatch(
            nebius_conn_id=self.nebius_conn_id, block=self.block, awaited=awaited, poll_interval=self.poke_interval
        )
