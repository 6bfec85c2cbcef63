"""What a trigger that replaces machines takes back, and when it only looks as if its task were ended."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_soperator.triggers.replacing import Errand, ReplaceTrigger


class Watched(ReplaceTrigger):
    """Its task is in a state, and what it would undo is noted."""

    is_undone = False

    def __init__(self, is_in: str | None) -> None:
        errand = Errand(nodes=("worker-0",), owner="nights").write()
        super().__init__("soperator_default", errand, "2026-11-22T12:00:00+00:00", 0.0, 1.0)
        self.is_in = is_in

    async def state(self) -> str | None:
        return self.is_in

    async def cancel(self) -> None:
        self.is_undone = True


@pytest.mark.parametrize(("is_in", "is_undone"), [("deferred", False), ("failed", True), ("scheduled", True)])
def test_drains_are_taken_back_unless_another_triggerer_goes_on(is_in: str, is_undone: bool) -> None:
    trigger = Watched(is_in)
    asyncio.run(trigger.on_kill())
    assert trigger.is_undone is is_undone
