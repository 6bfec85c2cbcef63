"""Connections to a login node, made by the stock SSH hook from what people write into a connection."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.hooks.stock import known

if TYPE_CHECKING:
    import paramiko

#: Seconds to reach a login node, unless its connection says otherwise.
CONNECT_TIMEOUT = 15

_PRIVATE_KEY = re.compile(r"\s*-----BEGIN ([A-Z ]+)-----([A-Za-z0-9+/=\s\\]+)-----END \1-----\s*")


def straightened(extra: Mapping[str, Any]) -> dict[str, Any]:
    r"""What the stock hook can read, from what people paste.

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
    """A private key with its lines, which it may have lost on its way."""
    found = _PRIVATE_KEY.fullmatch(said)
    if not found:
        return said
    body = re.sub(r"\s|\\n", "", found[2])
    lines = [body[at : at + 70] for at in range(0, len(body), 70)]
    return "\n".join([f"-----BEGIN {found[1]}-----", *lines, f"-----END {found[1]}-----", ""])


async def connect(ssh_conn_id: str) -> Callable[[], paramiko.SSHClient]:
    """What makes a connection, in another thread than the loop's."""
    from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson

    with known(ssh_conn_id):
        connection = await get_async_connection(ssh_conn_id)
    # Read here: the hook would do it in a way that may block the loop.
    return partial(_opened, ssh_conn_id, connection, await get_async_extra_dejson(connection))


def _opened(ssh_conn_id: str, connection: Any, extra: Mapping[str, Any]) -> paramiko.SSHClient:
    from airflow.providers.ssh.hooks.ssh import SSHHook

    connection = copy.copy(connection)
    connection.extra = json.dumps(straightened(extra))

    class LoginHook(SSHHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return connection

    # The transport tries again by itself, and knows when there is no use in it.
    hook = LoginHook(ssh_conn_id=ssh_conn_id, conn_retry_attempts=1)
    hook.conn_timeout = hook.conn_timeout or CONNECT_TIMEOUT
    client: paramiko.SSHClient = hook.get_conn()
    return client
