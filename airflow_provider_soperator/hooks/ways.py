"""From a connection's settings to a transport: each kind through the stock hook of its own connection type.

Stock connections are read again whenever a transport connects, so a changed key needs no restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.hooks.settings import Settings
from airflow_provider_soperator.transports.errors import ConnectFailed
from airflow_provider_soperator.transports.kubernetes import AsyncKubernetesTransport, KubernetesTransport
from airflow_provider_soperator.transports.local import AsyncLocalTransport, LocalTransport
from airflow_provider_soperator.transports.pods import CONTROLLER, LOGIN, PodChoice
from airflow_provider_soperator.transports.protocol import AsyncTransport, Transport
from airflow_provider_soperator.transports.split import AsyncSplitTransport, SplitTransport
from airflow_provider_soperator.transports.ssh import AsyncSshTransport, SshTransport

if TYPE_CHECKING:
    import asyncssh
    import kubernetes.client
    import kubernetes_asyncio.client
    import paramiko

#: Seconds to reach a login node, unless its connection says otherwise.
CONNECT_TIMEOUT = 15


def open_transport(settings: Settings) -> Transport:
    """A transport that connects at its first question."""
    slurm = TRANSPORTS[settings.transport](settings)
    if not settings.files_elsewhere:
        return slurm
    return SplitTransport(slurm, TRANSPORTS[settings.files_via](settings))


def open_async_transport(settings: Settings) -> AsyncTransport:
    """The same for an event loop."""
    slurm = ASYNC_TRANSPORTS[settings.transport](settings)
    if not settings.files_elsewhere:
        return slurm
    return AsyncSplitTransport(slurm, ASYNC_TRANSPORTS[settings.files_via](settings))


def _pods(settings: Settings) -> tuple[PodChoice, ...]:
    if not settings.cluster:
        return LOGIN, CONTROLLER
    mine = f"app.kubernetes.io/instance={settings.cluster}"
    return tuple(replace(choice, labels=f"{choice.labels},{mine}") for choice in (LOGIN, CONTROLLER))


def _paramiko(settings: Settings) -> paramiko.SSHClient:
    from airflow.providers.ssh.hooks.ssh import SSHHook

    # The transport tries again by itself, and knows when there is no use in it.
    hook = SSHHook(ssh_conn_id=settings.ssh_conn_id, conn_retry_attempts=1)
    hook.conn_timeout = hook.conn_timeout or CONNECT_TIMEOUT
    client: paramiko.SSHClient = hook.get_conn()
    return client


async def _asyncssh(settings: Settings) -> asyncssh.SSHClientConnection:
    from airflow.providers.ssh.hooks.ssh import SSHHookAsync

    # It tells of every channel that opens and closes, and each shell is one.
    library = logging.getLogger("asyncssh")
    if library.level == logging.NOTSET:
        library.setLevel(logging.WARNING)
    hook: Any = SSHHookAsync(ssh_conn_id=settings.ssh_conn_id)
    connection: asyncssh.SSHClientConnection = await hook.get_conn()
    return connection


def _kubernetes(settings: Settings) -> kubernetes.client.ApiClient:
    try:
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    except ImportError as error:
        raise _not_installed("kubernetes", error) from error
    client: kubernetes.client.ApiClient = KubernetesHook(kubernetes_conn_id=settings.kubernetes_conn_id).get_conn()
    return client


async def _kubernetes_asyncio(settings: Settings) -> kubernetes_asyncio.client.ApiClient:
    try:
        import kubernetes_asyncio.client
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
    except ImportError as error:
        raise _not_installed("kubernetes", error) from error
    hook = AsyncKubernetesHook(kubernetes_conn_id=settings.kubernetes_conn_id)
    # Its client ends with this block; what is wanted is the configuration that it was made from.
    async with hook.get_conn():
        pass
    return kubernetes_asyncio.client.ApiClient(configuration=hook.client_configuration)


def _not_installed(extra: str, error: ImportError) -> ConnectFailed:
    return ConnectFailed(f"{error}", f"pip install 'airflow-provider-soperator[{extra}]'")


TRANSPORTS: dict[str, Callable[[Settings], Transport]] = {
    "ssh": lambda settings: SshTransport(lambda: _paramiko(settings)),
    "kubernetes": lambda settings: KubernetesTransport(
        lambda: _kubernetes(settings), settings.namespace, _pods(settings)
    ),
    "local": lambda settings: LocalTransport(),
}
ASYNC_TRANSPORTS: dict[str, Callable[[Settings], AsyncTransport]] = {
    "ssh": lambda settings: AsyncSshTransport(lambda: _asyncssh(settings)),
    "kubernetes": lambda settings: AsyncKubernetesTransport(
        lambda: _kubernetes_asyncio(settings), settings.namespace, _pods(settings)
    ),
    "local": lambda settings: AsyncLocalTransport(),
}
