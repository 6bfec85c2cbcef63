"""What a shift has cost goes with its end, whatever that is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_soperator.capacity.order import Superseded
from airflow_provider_soperator.capacity.shift import ShiftFailed
from airflow_provider_soperator.capacity.steering import ShiftAtWork
from airflow_provider_soperator.errors import CapacityMistake
from airflow_provider_soperator.triggers.shift import ShiftTrigger

BACK = ShiftFailed("no machine; it was rolled back")
BACK.is_rolled_back = True


class Shift:
    """A shift that ends as it is told to."""

    def __init__(self, end: Exception | None) -> None:
        self._end = end
        #: True once it has given its block back.
        self.is_left = False

    async def run(self, *_: Any) -> Any:
        if self._end is None:
            await asyncio.Event().wait()
        else:
            raise self._end

    async def leave(self) -> None:
        self.is_left = True

    async def leave_if_possible(self) -> None: ...

    async def report(self, state: str) -> dict[str, Any]:
        return {"state": state}

    async def __aenter__(self) -> Shift:
        return self

    async def __aexit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("end", "status", "state"),
    [
        (ShiftFailed("no machine"), "failed", "failed"),
        (BACK, "failed", "rolled_back"),
        (CapacityMistake("no such node"), "refused", "failed"),
        (Superseded("another window"), "success", "superseded"),
        (None, "timeout", "timed_out"),
    ],
)
def test_each_end_has_its_state(
    end: Exception | None, status: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShiftAtWork, "find", lambda block: None)
    trigger = ShiftTrigger({"block": "block"}, deadline=None if end else 0.0)
    trigger._open = lambda: Shift(end)  # type: ignore[method-assign, assignment, return-value]
    event = asyncio.run(trigger.event())
    assert (event["status"], event["report"]) == (status, {"state": state})


@pytest.mark.parametrize(
    ("is_last_try", "left", "fate"),
    [
        (False, False, "; its next try goes on with the shift"),
        (True, True, "; what the shift has moved by now stays where it is, and the next one goes on from there"),
    ],
)
def test_the_block_is_given_back_with_the_last_try(
    is_last_try: bool, left: bool, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShiftAtWork, "find", lambda block: None)
    shift = Shift(None)
    trigger = ShiftTrigger({"block": "block"}, deadline=0.0, is_last_try=is_last_try)
    trigger._open = lambda: shift  # type: ignore[method-assign, assignment, return-value]
    event = asyncio.run(trigger.event())
    assert (shift.is_left, event["message"]) == (left, "the time of the task was over" + fate)
