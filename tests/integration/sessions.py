"""Sessions of targets, opened one after another and used in one event loop, as a trigger has them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.capacity.targets import Target
from airflow_provider_soperator.capacity.targets.protocol import Session, SessionContext
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from tests.patience import PATIENCE
from tests.sandbox.nebius_world import BLOCK

T = TypeVar("T")


class Sessions:
    """Sessions in an event loop that stands still between the steps of a test."""

    def __init__(self) -> None:
        self.log = logging.getLogger("shift")
        self._loop = asyncio.new_event_loop()
        self._opened = AsyncExitStack()

    def open(self, target: Target, **context: Any) -> Session:
        purpose = SessionContext(**{"block": BLOCK, "key": "shift-1", "why": "a test", **context})
        return self.do(self._opened.enter_async_context(target.open(purpose, ShiftClients(), self.log)))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        async def in_time() -> T:
            async with timeout(PATIENCE):
                return await work

        return self._loop.run_until_complete(in_time())

    def close(self) -> None:
        self._loop.run_until_complete(self._opened.aclose())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
