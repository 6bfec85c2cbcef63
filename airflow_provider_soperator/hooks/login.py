"""Connections to a login node, made by the stock SSH hooks from what people write into a connection."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.hooks.stock import known
from airflow_provider_soperator.transports.errors import ConnectFailed

if TYPE_CHECKING:
    import asyncssh
    import paramiko

#: Seconds to reach a login node, unless its connection says otherwise.
CONNECT_TIMEOUT = 15

_PRIVATE_KEY = re.compile(r"\s*-----BEGIN ([A-Z ]+)-----([A-Za-z0-9+/=\s\\]+)-----END \1-----\s*")


def straightened(extra: Mapping[str, Any]) -> dict[str, Any]:
    r"""What the stock hooks can read, from what people paste.

    They stumble over fields that are there but blank, and over a host key with its host, as ssh-keyscan prints it. A
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
    """A private key with its lines, which it may have lost on its way."""
    found = _PRIVATE_KEY.fullmatch(said)
    if not found:
        return said
    body = re.sub(r"\s|\\n", "", found[2])
    lines = [body[at : at + 70] for at in range(0, len(body), 70)]
    return "\n".join([f"-----BEGIN {found[1]}-----", *lines, f"-----END {found[1]}-----", ""])


def connect(ssh_conn_id: str) -> paramiko.SSHClient:
    """A connection for threads."""
    from airflow.providers.ssh.hooks.ssh import SSHHook

    class LoginHook(SSHHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            connection = copy.copy(super().get_connection(conn_id))
            connection.extra = json.dumps(straightened(connection.extra_dejson))
            return connection

    with known(ssh_conn_id):
        # The transport tries again by itself, and knows when there is no use in it.
        hook = LoginHook(ssh_conn_id=ssh_conn_id, conn_retry_attempts=1)
    hook.conn_timeout = hook.conn_timeout or CONNECT_TIMEOUT
    client: paramiko.SSHClient = hook.get_conn()
    return client


@dataclass(frozen=True)
class _Read:
    """As much of a connection as the hook for event loops takes its extra from."""

    host: str
    extra_dejson: dict[str, Any]


async def connect_async(ssh_conn_id: str) -> asyncssh.SSHClientConnection:
    """A connection for the running event loop."""
    from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson
    from airflow.providers.ssh.hooks.ssh import SSHHookAsync

    _quieten("asyncssh")
    with known(ssh_conn_id):
        connection = await get_async_connection(ssh_conn_id)
    if not connection.host:
        # The hook would go on without one.
        raise ConnectFailed(f"the connection {ssh_conn_id} names no host", "set it, or name another connection")
    # Read here: the hook would do it in a way that may block the loop.
    extra = straightened(await get_async_extra_dejson(connection))

    class LoginHook(SSHHookAsync):
        def _parse_extras(self, conn: Any) -> None:
            super()._parse_extras(_Read(conn.host, extra))

    hook: Any = LoginHook(ssh_conn_id=ssh_conn_id)
    connected: asyncssh.SSHClientConnection = await asyncio.wait_for(
        hook.get_conn(), float(extra.get("conn_timeout", CONNECT_TIMEOUT))
    )
    return connected


def _quieten(name: str) -> None:
    # It tells of every channel that opens and closes, and each shell is one.
    library = logging.getLogger(name)
    if library.level == logging.NOTSET:
        library.setLevel(logging.WARNING)
