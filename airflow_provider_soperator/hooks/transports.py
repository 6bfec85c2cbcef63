"""Transports from the settings of a connection: SSH, slurmrestd and Kubernetes, each by its stock hook."""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.connections import installed, read_connection
from airflow_provider_soperator.hooks.settings import Settings
from airflow_provider_soperator.transports.transport import SplitTransport, Transport
from airflow_provider_soperator.transports.transport_errors import ssh_error

if TYPE_CHECKING:
    import paramiko


#: Seconds to reach a login node, unless its connection says otherwise.
CONNECT_TIMEOUT = 15

_PRIVATE_KEY = re.compile(r"\s*-----BEGIN ([A-Z ]+)-----([A-Za-z0-9+/=\s\\]+)-----END \1-----\s*")


def straightened(extra: Mapping[str, Any]) -> dict[str, Any]:
    r"""Mend an extra as users paste it, for the stock SSH hook.

    It stumbles over fields that are there but blank, and over a host key with its host, as ssh-keyscan prints it. A
    private key loses its line ends in a form's password field, and has them as backslash and n in an environment file.

    >>> straightened({"host_key": "login.example.com ssh-ed25519 AAAA", "private_key": "", "conn_timeout": 5})
    {'host_key': 'ssh-ed25519 AAAA', 'conn_timeout': 5}
    >>> straightened({"private_key": r"-----BEGIN KEY-----\nabc\n-----END KEY-----"})["private_key"]
    '-----BEGIN KEY-----\nabc\n-----END KEY-----\n'
    """
    kept = {name: value for name, value in extra.items() if value not in ("", None)}
    if "host_key" in kept:
        kept["host_key"] = _host_key(kept["host_key"])
    if "private_key" in kept:
        kept["private_key"] = lines_of_key(kept["private_key"])
    return kept


def _host_key(said: str) -> str:
    words = said.split()
    # A line of ssh-keyscan or of known_hosts has the host before them, a line of a .pub file a comment behind them.
    start = next((at for at, word in enumerate(words) if word.startswith(("ssh-", "ecdsa-"))), 0)
    return " ".join(words[start : start + 2])


def lines_of_key(said: str) -> str:
    """A private key, with line ends that it may have lost on its way."""
    found = _PRIVATE_KEY.fullmatch(said)
    if not found:
        return said
    body = re.sub(r"\s|\\n", "", found[2])
    lines = [body[at : at + 70] for at in range(0, len(body), 70)]
    return "\n".join([f"-----BEGIN {found[1]}-----", *lines, f"-----END {found[1]}-----", ""])


async def connect(ssh_conn_id: str) -> Callable[[], paramiko.SSHClient]:
    """Read an SSH connection; returns a function that connects, for a thread other than the loop's."""
    # Read here: the hook would do it in a way that may block the loop.
    return partial(_opened, ssh_conn_id, *await read_connection(ssh_conn_id))


def _opened(ssh_conn_id: str, connection: Any, extra: Mapping[str, Any]) -> paramiko.SSHClient:
    from airflow.providers.ssh.hooks.ssh import SSHHook

    # "Connected" and "Authentication successful" are no lines of a task's log; a failure is raised.
    log = logging.getLogger("paramiko.transport")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)
    connection = copy.copy(connection)
    connection.extra = json.dumps(straightened(extra))

    class LoginHook(SSHHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return connection

    try:
        # The transport tries again by itself, and knows when that is useless.
        hook = LoginHook(ssh_conn_id=ssh_conn_id, conn_retry_attempts=1)
        hook.conn_timeout = hook.conn_timeout or CONNECT_TIMEOUT
        client: paramiko.SSHClient = hook.get_conn()
    except Exception as error:
        at = f"at {connection.host}:{connection.port or 22} " if connection.host else ""
        raise ssh_error(error, f"{at}(connection {ssh_conn_id})") from error
    return client


def open_transport(settings: Settings) -> Transport:
    """A transport that connects at its first request."""
    slurm = _open(settings.transport, settings)
    return SplitTransport(slurm, _open(settings.files_via, settings)) if settings.files_elsewhere else slurm


def _open(way: str, settings: Settings) -> Transport:
    # Each with what it imports: a task needs one of them.
    if way == "ssh":
        from airflow_provider_soperator.transports.ssh import SshTransport

        return SshTransport(partial(connect, settings.ssh_conn_id))
    if way == "kubernetes":
        from airflow_provider_soperator.hooks import cluster
        from airflow_provider_soperator.transports.kubernetes import KubernetesTransport, login_pods

        kubernetes = partial(cluster.connect, settings.kubernetes_conn_id)
        return KubernetesTransport(kubernetes, settings.namespace, login_pods(settings.cluster))
    if way == "rest":
        return open_rest(settings, lambda: _open("ssh" if settings.ssh_conn_id else "kubernetes", settings))
    if way == "native":
        from airflow_provider_soperator.transports.native import NativeTransport

        return NativeTransport()
    from airflow_provider_soperator.transports.local import LocalTransport

    return LocalTransport()


def open_rest(settings: Settings, over: Callable[[], Transport]) -> Transport:
    """Open slurmrestd; ``over`` makes the transport by which tokens are fetched, if necessary."""
    from airflow_provider_soperator.transports.rest import RestTransport, Tokens, fetched, given, minted

    make: Callable[[], Awaitable[str]]
    if settings.jwt_token:
        make = partial(given, settings.jwt_token)
    elif settings.jwt_secret:
        make = partial(minted, _key(settings.jwt_secret), settings.user)
    else:
        make = partial(fetched, over, settings.user)
    with installed("rest"):
        return RestTransport(settings.rest_url, Tokens(partial(masked, make)), user=settings.user)


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret, validate=True)
    except binascii.Error as error:
        raise ConnectionMistake(f"jwt_secret is not in base64, as Kubernetes shows a Secret ({error})") from error


async def masked(make: Callable[[], Awaitable[str]]) -> str:
    """A token, registered with Airflow's secrets masker before it is used."""
    from airflow.sdk.log import mask_secret

    token = await make()
    # The masker's message to the supervisor must not block the loop.
    await asyncio.to_thread(mask_secret, token)
    return token
