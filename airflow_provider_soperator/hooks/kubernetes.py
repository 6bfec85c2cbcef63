"""Clients of the Kubernetes API, made by the stock hooks from a connection of type ``kubernetes``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from airflow_provider_soperator.answers import SharedAnswers
from airflow_provider_soperator.hooks.connections import installed, known
from airflow_provider_soperator.hooks.shared import SharedClients
from airflow_provider_soperator.transports.transport_errors import TransportError

if TYPE_CHECKING:
    import kubernetes_asyncio.client


async def connect(kubernetes_conn_id: str) -> kubernetes_asyncio.client.ApiClient:
    """A client for the running event loop, which the caller closes."""
    with installed("kubernetes"):
        import kubernetes_asyncio.client
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
    hook = AsyncKubernetesHook(kubernetes_conn_id=kubernetes_conn_id)
    # Its client ends with this block; what is wanted is the configuration that it was made from.
    with known(kubernetes_conn_id):
        async with hook.get_conn():
            pass
    return kubernetes_asyncio.client.ApiClient(configuration=hook.client_configuration)


class SharedKubernetes:
    """One client, and one set of answers, for all in an event loop who look at a Kubernetes cluster."""

    def __init__(self, kubernetes_conn_id: str) -> None:
        self._kubernetes_conn_id = kubernetes_conn_id
        self._answers = SharedAnswers()
        self._client: asyncio.Future[kubernetes_asyncio.client.ApiClient] | None = None
        self._users: Counter[asyncio.Future[kubernetes_asyncio.client.ApiClient]] = Counter()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[kubernetes_asyncio.client.ApiClient, SharedAnswers]]:
        """The client. After a failure another one is made, as the connection or its token may have changed."""
        client = self._client = self._client or asyncio.ensure_future(connect(self._kubernetes_conn_id))
        self._users[client] += 1
        try:
            yield await asyncio.shield(client), self._answers
        except Exception:
            if self._client is client:
                self._client = None
            raise
        finally:
            self._users[client] -= 1
            if not self._users[client] and self._client is not client:
                await _closed(client)

    async def close(self) -> None:
        if self._client:
            await _closed(self._client)


async def _closed(client: asyncio.Future[kubernetes_asyncio.client.ApiClient]) -> None:
    with suppress(TransportError):
        await (await client).close()


_SHARED: SharedClients[str, SharedKubernetes] = SharedClients()


@asynccontextmanager
async def shared_kubernetes(
    kubernetes_conn_id: str,
) -> AsyncIterator[tuple[kubernetes_asyncio.client.ApiClient, SharedAnswers]]:
    """The client of all who look at a cluster, and the answers that they share."""
    async with _SHARED.lend(kubernetes_conn_id, SharedKubernetes) as shared, shared.open() as opened:
        yield opened
