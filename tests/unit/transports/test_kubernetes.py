"""Shells in pods: what is closed with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.stream import WsApiClient

from airflow_provider_soperator.transports.kubernetes import LOGIN, _WebSocketPipe


class Socket:
    """A websocket to an API server that no longer answers."""

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    async def close(self) -> None:
        await asyncio.Event().wait()


def test_a_client_is_closed_also_by_a_task_that_is_cancelled_as_it_closes_its_shell() -> None:
    async def main() -> None:
        client: Any = WsApiClient(Configuration())
        pipe = _WebSocketPipe(Socket(), client, "login-0", LOGIN)  # type: ignore[arg-type]
        closing = asyncio.ensure_future(pipe.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert client.rest_client.pool_manager.closed

    asyncio.run(main())
