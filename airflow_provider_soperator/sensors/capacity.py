"""Wait for a capacity block to have GPUs free, to be active, or to keep its limit for a while."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.nebius.capacity_blocks import BlockAwaited
from airflow_provider_soperator.sensors.watch import WatchSensor
from airflow_provider_soperator.values import check_durations

if TYPE_CHECKING:
    from airflow_provider_soperator.work.watches import BlockWatch


class CapacityBlockSensor(WatchSensor):
    """Wait until a capacity block is in a state, and a number of its GPUs is free.

        CapacityBlockSensor(task_id="free", block="capacityblockgroup-e00example", min_free_gpus=32)

    While Nebius does not know the usage, the sensor waits. Returns the block.

    :param block: id of the capacity block
    :param min_free_gpus: number of GPUs that must be free at least
    :param target_state: state of the block; None for any
    :param stable_for: time within which no decrease of the block's limit may be announced
    :param nebius_conn_id: Airflow connection to the Nebius API
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
        check_durations(or_none=True, stable_for=stable_for)
        self.awaited = BlockAwaited(min_free_gpus=min_free_gpus, target_state=target_state, stable_for=stable_for)
        self.block, self.nebius_conn_id = block, nebius_conn_id

    def watch(self) -> BlockWatch:
        from airflow_provider_soperator.work.watches import BlockWatch

        return BlockWatch(nebius_conn_id=self.nebius_conn_id, block=self.block, awaited=self.awaited)
