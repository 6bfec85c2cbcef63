"""The sensor of a capacity block: in a worker, in a worker again and again, and in the triggerer."""

from __future__ import annotations

import pytest

from sandbox.cloud.landscape import BLOCK_ID
from tests.airflow.stack import Run, Stack
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.lane("airflow of shifts")

WAYS = ("poke", "reschedule", "defer")
TASKS = f"""
from airflow_provider_soperator.sensors.capacity import CapacityBlockSensor

# Airflow fails a task that it has rescheduled and that comes back before the scheduler has noticed.
ways = {{
    "poke": {{"poke_interval": 1}},
    "reschedule": {{"mode": "reschedule", "poke_interval": 8}},
    "defer": {{"deferrable": True, "poke_interval": 1}},
}}
for way, common in ways.items():
    CapacityBlockSensor(task_id=f"free_{{way}}", block="{{{{ params.block }}}}", at_least=8, **common)
CapacityBlockSensor(task_id="active", block="{BLOCK_ID}", no_change_before=timedelta(hours=1))
for way in ("poke", "defer"):
    CapacityBlockSensor(task_id=f"wrong_{{way}}", block="capacityblockgroup-e00none", **ways[way])
"""


@pytest.fixture(scope="module")
def run(stack: Stack, slurm: Cluster) -> Run:
    """A run that has waited for GPUs of a block that was full, and then of one that nobody knew anything of."""
    slurm.fault("block-exhausted", leave=0)
    run = stack.add_dag("blocks", TASKS, dag_options=f"params={{'block': '{BLOCK_ID}'}}").trigger()
    try:
        for way in WAYS:
            run.wait_log(f"free_{way}", f"Block {BLOCK_ID}: 0 of its 32 GPUs are free, and not 8")
        slurm.fault("block-unknown")
        for way in ("poke", "defer"):
            run.wait_log(f"free_{way}", "how many GPUs are free is not known just now")
    finally:
        slurm.fault("clear")
    return run


@pytest.mark.parametrize("way", WAYS)
def test_free_gpus_are_waited_for(run: Run, way: str) -> None:
    run.wait(f"free_{way}", "success")
    block = run.xcom(f"free_{way}")
    assert (block["id"], block["state"], block["limit"]) == (BLOCK_ID, "active", 32)
    assert block["free"] == 32 - block["usage"] >= 8


def test_a_state_and_a_limit_that_stays_need_no_gpus(run: Run) -> None:
    run.wait("active", "success")
    assert run.xcom("active")["next_change_at"] is None


@pytest.mark.parametrize("way", ["poke", "defer"])
def test_a_block_that_is_not_there_fails_it(run: Run, way: str) -> None:
    run.wait(f"wrong_{way}", "failed")
    run.wait_log(f"wrong_{way}", "there is no capacity block capacityblockgroup-e00none")
