"""From a connection's settings to a transport: each kind through the stock hook of its own connection type.

Stock connections are read again whenever a transport connects, so a changed key needs no restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from airflow_provider_soperator.hooks import kubernetes, login
from airflow_provider_soperator.hooks.rest import open_async_rest, open_rest
from airflow_provider_soperator.hooks.settings import Settings
from airflow_provider_soperator.transports.kubernetes import AsyncKubernetesTransport, KubernetesTransport
from airflow_provider_soperator.transports.local import AsyncLocalTransport, LocalTransport
from airflow_provider_soperator.transports.native import AsyncNativeTransport, NativeTransport
from airflow_provider_soperator.transports.pods import CONTROLLER, LOGIN, PodChoice
from airflow_provider_soperator.transports.protocol import AsyncTransport, Transport
from airflow_provider_soperator.transports.split import AsyncSplitTransport, SplitTransport
from airflow_provider_soperator.transports.ssh import AsyncSshTransport, SshTransport


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


TRANSPORTS: dict[str, Callable[[Settings], Transport]] = {
    "ssh": lambda settings: SshTransport(partial(login.connect, settings.ssh_conn_id)),
    "kubernetes": lambda settings: KubernetesTransport(
        partial(kubernetes.connect, settings.kubernetes_conn_id), settings.namespace, _pods(settings)
    ),
    "rest": lambda settings: open_rest(settings, lambda: TRANSPORTS[settings.tokens_via](settings)),
    "native": lambda settings: NativeTransport(),
    "local": lambda settings: LocalTransport(),
}
ASYNC_TRANSPORTS: dict[str, Callable[[Settings], AsyncTransport]] = {
    "ssh": lambda settings: AsyncSshTransport(partial(login.connect_async, settings.ssh_conn_id)),
    "kubernetes": lambda settings: AsyncKubernetesTransport(
        partial(kubernetes.connect_async, settings.kubernetes_conn_id), settings.namespace, _pods(settings)
    ),
    "rest": lambda settings: open_async_rest(settings, lambda: ASYNC_TRANSPORTS[settings.tokens_via](settings)),
    "native": lambda settings: AsyncNativeTransport(),
    "local": lambda settings: AsyncLocalTransport(),
}
