"""The sensor of a capacity block: it waits for GPUs while the block is full, and while its usage is not known."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_soperator.sensors.capacity import CapacityBlockSensor
from sandbox.cloud.landscape import BLOCK_ID
from tests.integration.cluster import Cluster
from tests.integration.connections import Connections
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("connections")


def poked(**options: Any) -> Any:
    """What a sensor comes to that looks again and again in a worker."""
    return CapacityBlockSensor(task_id="block", poke_interval=0.2, timeout=PATIENCE, **options).execute({})


def deferred(**options: Any) -> Any:
    """What it comes to by its trigger."""
    sensor = CapacityBlockSensor(task_id="block", poke_interval=0.2, timeout=PATIENCE, deferrable=True, **options)
    with pytest.raises(TaskDeferred) as left:
        sensor.execute({})
    trigger: Any = left.value.trigger

    async def event() -> Any:
        return (await anext(trigger.run())).payload

    return sensor.execute_complete({}, asyncio.run(event()))


each_way = pytest.mark.parametrize("wait", [poked, deferred])


@each_way
def test_free_gpus_are_waited_for(wait: Callable[..., Any], cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where Airflow's loggers write to without a supervisor. What is taken from `capsys` may lose what is written then.
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8", write_through=True))

    def wait_told(words: str) -> None:
        cluster.wait(f"it is told that {words}", lambda: words in written.getvalue().decode())

    cluster.fault("block-exhausted", leave=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, block=BLOCK_ID, min_free_gpus=8)
        try:
            wait_told(f"Block {BLOCK_ID}: 0 of its 32 GPUs are free, expected 8")
            cluster.fault("block-unknown")
            wait_told("the number of free GPUs is unknown at present")
            assert not waiting.done()
        finally:
            cluster.fault("clear")
        block = waiting.result(PATIENCE)
    assert (block["id"], block["state"], block["limit"]) == (BLOCK_ID, "active", 32)
    assert block["free"] == 32 - block["usage"] >= 8


def test_a_state_and_a_limit_that_stays_need_no_gpus() -> None:
    block = poked(block=BLOCK_ID, stable_for=timedelta(hours=1))
    assert block["next_change_at"] is None


@each_way
def test_a_block_that_is_not_there_fails_it(wait: Callable[..., Any], connections: Connections) -> None:
    with pytest.raises(Exception, match="there is no capacity block capacityblockgroup-e00none"):
        wait(block="capacityblockgroup-e00none")
