"""From a connection's settings to a transport: each kind through the stock hook of its own connection type.

Stock connections are read again whenever a transport connects, so a changed key needs no restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from airflow_provider_soperator.hooks import kubernetes, login
from airflow_provider_soperator.hooks.rest import open_rest
from airflow_provider_soperator.hooks.settings import Settings
from airflow_provider_soperator.transports.kubernetes import CONTROLLER, LOGIN, KubernetesTransport, PodChoice
from airflow_provider_soperator.transports.local import LocalTransport
from airflow_provider_soperator.transports.native import NativeTransport
from airflow_provider_soperator.transports.ssh import SshTransport
from airflow_provider_soperator.transports.transport import SplitTransport, Transport


def open_transport(settings: Settings) -> Transport:
    """A transport that connects at its first question."""
    slurm = TRANSPORTS[settings.transport](settings)
    if not settings.files_elsewhere:
        return slurm
    return SplitTransport(slurm, TRANSPORTS[settings.files_via](settings))


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
