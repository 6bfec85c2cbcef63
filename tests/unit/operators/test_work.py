"""A task that waits in a worker is ended from outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_soperator.operators.work import Waiting
from airflow_provider_soperator.triggers.base import KillableTrigger


class Endless(KillableTrigger):
    def __init__(self) -> None:
        super().__init__()
        self.begun, self.is_cancelled = threading.Event(), threading.Event()

    async def event(self) -> dict[str, Any]:
        self.begun.set()
        await asyncio.Event().wait()
        return {}

    async def cancel(self) -> None:
        self.is_cancelled.set()

    @property
    def fate(self) -> str:
        return ", and has ended"


def test_work_that_ends_before_who_ends_it_goes_on_has_been_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = Endless()
    waiting = Waiting(trigger)
    said: list[bool] = []

    def kill() -> None:
        assert trigger.begun.wait(30)
        loop = waiting._loop
        assert loop is not None
        call = loop.call_soon_threadsafe

        def slow(what: Callable[[], object]) -> None:
            call(what)
            said.append(trigger.is_cancelled.wait(30))

        monkeypatch.setattr(loop, "call_soon_threadsafe", slow)
        waiting.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(AirflowException, match="the task was told to end, and has ended"):
        waiting.event()
    killer.join(30)
    assert said == [True]
