"""Blocking calls of Airflow's task SDK: what a trigger that is ended in the middle of one does about it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from airflow_provider_soperator.triggers.base import call
from tests.patience import PATIENCE


def test_a_trigger_that_is_ended_in_a_call_knows_why_and_the_call_is_completed() -> None:
    begun, may_end, done = threading.Event(), threading.Event(), threading.Event()

    def push() -> None:
        begun.set()
        assert may_end.wait(PATIENCE)
        done.set()

    async def ended() -> None:
        calling = asyncio.ensure_future(call(push))
        while not begun.is_set():
            await asyncio.sleep(0)
        # In these words Airflow's triggerer says that it is the user who has ended the task.
        calling.cancel("__airflow_user_action__")
        try:
            with pytest.raises(asyncio.CancelledError, match="__airflow_user_action__"):
                await calling
        finally:
            may_end.set()
        # Whoever asks next gets the answer to their own question.
        assert await call(lambda: "mine") == "mine"
        assert done.is_set()

    asyncio.run(ended())


def test_what_goes_wrong_in_a_call_is_raised() -> None:
    def fail(what: str, *, how: str) -> None:
        raise ValueError(f"{what} {how}")

    with pytest.raises(ValueError, match="pushed twice"):
        asyncio.run(call(fail, "pushed", how="twice"))
