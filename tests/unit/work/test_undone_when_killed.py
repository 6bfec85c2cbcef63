"""What a task that is ended takes back, and when it only looks as if it were ended."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

import pytest

from airflow_provider_soperator.triggers.work import WorkTrigger
from airflow_provider_soperator.work.machines import MachineReplacement

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)


class Observed(WorkTrigger):
    """Its task is in a state, and what it would undo is noted."""

    is_undone = False

    def __init__(self, is_in: str | None) -> None:
        work = MachineReplacement(
            slurm_conn_id="soperator_default", nodes=("worker-0",), owner="nights", since=NOW, deadline=NOW
        )
        super().__init__(work.write())
        self.is_in = is_in

    async def state(self) -> str | None:
        return self.is_in

    async def cancel(self) -> None:
        self.is_undone = True


@pytest.mark.parametrize(("is_in", "is_undone"), [("deferred", False), ("failed", True), ("scheduled", True)])
def test_drains_are_taken_back_unless_another_triggerer_goes_on(is_in: str, is_undone: bool) -> None:
    trigger = Observed(is_in)
    asyncio.run(trigger.on_kill())
    assert trigger.is_undone is is_undone
