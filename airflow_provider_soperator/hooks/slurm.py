"""The Airflow hook for Slurm, and its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from airflow.sdk import BaseHook

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.sync import LOOP, SlurmClient
from airflow_provider_soperator.hooks.connections import known, read_connection
from airflow_provider_soperator.hooks.forms import SOPERATOR
from airflow_provider_soperator.hooks.settings import Settings, read
from airflow_provider_soperator.hooks.transports import open_transport
from airflow_provider_soperator.shared import SharedClients

_CLIENTS: SharedClients[Settings, AsyncSlurmClient] = SharedClients()


class SlurmHook(BaseHook):
    """A Slurm cluster behind an Airflow connection of type ``soperator``.

    All users of a connection in an event loop share a client: one connection, one poller. Threads share an event
    loop.

        with SlurmHook("soperator_default").client() as slurm:
            for node in slurm.ask(ListNodes()):
                print(node.name, node.state)
    """

    conn_name_attr = "slurm_conn_id"
    default_conn_name = "soperator_default"
    conn_type = SOPERATOR.conn_type
    hook_name = SOPERATOR.hook_name

    def __init__(self, slurm_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.slurm_conn_id = slurm_conn_id
        self._said: Settings | None = None

    @contextmanager
    def client(self) -> Iterator[SlurmClient]:
        """The client for threads."""
        shared = _CLIENTS.lend(self._settings(), _client)
        client = LOOP.run(shared.__aenter__())
        try:
            yield SlurmClient(client)
        finally:
            LOOP.run(shared.__aexit__(None, None, None))

    @asynccontextmanager
    async def async_client(self) -> AsyncIterator[AsyncSlurmClient]:
        """The client for the running event loop."""
        async with _CLIENTS.lend(await self.async_settings(), _client) as client:
            yield client

    async def async_settings(self) -> Settings:
        """The settings of the connection, read once; a new hook reads them anew."""
        if self._said is None:
            self._said = read(*await read_connection(self.slurm_conn_id))
        return self._said

    @property
    def reaches_files(self) -> bool:
        """Tell from the settings alone whether the connection has a way to the cluster's files."""
        return self._settings().reaches_files

    async def tell_of_pods(self, nodes: Sequence[str]) -> list[str]:
        """Lines for people about some nodes as Kubernetes sees them; none without a Kubernetes connection."""
        settings = await self.async_settings()
        if not settings.kubernetes_conn_id:
            return []
        from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook

        return await SoperatorClusterHook(settings.kubernetes_conn_id, settings.namespace).tell_of(nodes)

    def get_conn(self) -> SlurmClient:
        """A client of its own, which the caller closes."""
        return SlurmClient(_client(self._settings()))

    def test_connection(self) -> tuple[bool, str]:
        """Test the connection: whether it works, and a message."""
        from airflow_provider_soperator.hooks.check import check

        return check(self._settings)

    def _settings(self) -> Settings:
        with known(self.slurm_conn_id):
            connection = self.get_connection(self.slurm_conn_id)
        # Reading the extra tells Airflow's secrets masker what is in it.
        return read(connection, connection.extra_dejson)


def _client(settings: Settings) -> AsyncSlurmClient:
    return AsyncSlurmClient(open_transport(settings))
