"""One Kubernetes client for all who look at the same cluster at the same time, until one of them fails."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from airflow_provider_soperator.hooks import cluster
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.transports.transport_errors import TransportError


class Client:
    """A client that tells when it is closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    made: list[Client] = []

    async def connect(conn_id: str) -> Client:
        made.append(Client())
        return made[-1]

    monkeypatch.setattr(cluster, "connect", connect)
    return made


async def look(error: Exception | None = None) -> Any:
    async with SoperatorClusterHook("mine").objects(max_age=1) as objects:
        if error:
            raise error
        return objects.client


def test_after_a_failure_the_next_ones_get_a_new_client(made: list[Client]) -> None:
    async def main() -> None:
        async with AsyncExitStack() as opened:
            early = await opened.enter_async_context(SoperatorClusterHook("mine").objects(max_age=1))
            assert await look() is early.client
            with pytest.raises(TransportError):
                await look(TransportError("lost"))
            late = await look()
            assert late is not early.client
            assert late is await look()
            assert not made[0].closed, "somebody still uses it"
        assert await look() is late

    asyncio.run(main())
    assert [client.closed for client in made] == [True, True]
