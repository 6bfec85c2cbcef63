"""Clients of the Kubernetes API, made by the stock hooks from a connection of type ``kubernetes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_soperator.hooks.stock import installed, known

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
