"""No event ends the triggerer: Airflow stores in its database what a trigger yields, and is not ready for a failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from airflow_provider_soperator.triggers.base import EventTrigger
from airflow_provider_soperator.triggers.work import WatchTrigger
from airflow_provider_soperator.work.protocols import succeeded

#: PostgreSQL refuses NUL, halves of characters and infinity; Airflow's processes pass no such integers on.
FOREIGN = {"a\0": "b\0c", "half": ["\ud800", ("\udfff",)], "most": [float("inf"), float("nan"), 2**64, -(2**63) - 1]}
KEPT = {"a\ufffd": "b\ufffdc", "half": ["\ufffd", ("\ufffd",)], "most": [None] * 4}
FINE = {"text": "\U0001f600\n\u0001", "numbers": [0.5, -7, 2**64 - 1, True], "none": None}


class Foreign(EventTrigger):
    """A watcher that sees foreign values once."""

    poll_interval = 0.0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Foreign", {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:  # type: ignore[override]
        yield

    async def look(self, client: Any) -> Sequence[dict[str, Any]]:
        return [FOREIGN | FINE]


async def first_of_watcher() -> Any:
    async for event in Foreign().run():
        return event.payload


async def end_of_task() -> Any:
    return (await WatchTrigger({}).end(succeeded(FOREIGN | FINE))).payload["result"]


def test_what_cannot_be_stored_is_replaced_in_each_event() -> None:
    for payload in (asyncio.run(first_of_watcher()), asyncio.run(end_of_task())):
        assert payload == KEPT | FINE
        msgspec.msgpack.encode(payload)
        assert "\\u0000" not in json.dumps(payload, allow_nan=False)
