"""The Airflow hook for Slurm: the settings of its connection, the transport that they mean, and its clients.

Each transport is made by its stock hook: SSH, slurmrestd and Kubernetes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.connections import (
    at_most_one,
    filled,
    http_address,
    installed,
    known,
    read_connection,
    straightened,
)
from airflow_provider_soperator.hooks.forms import LINKS, SOPERATOR, SSH_EXTRAS
from airflow_provider_soperator.shared import SharedClients
from airflow_provider_soperator.slurm.links import link_problem
from airflow_provider_soperator.transports import SplitTransport, Transport
from airflow_provider_soperator.transports.transport_errors import ssh_error
from airflow_provider_soperator.values import NAMESPACE

if TYPE_CHECKING:
    import paramiko

    from airflow_provider_soperator.client.sync import SlurmClient
    from airflow_provider_soperator.transports.rest import HeldToken

#: Seconds to reach a login node, unless its connection says otherwise.
CONNECT_TIMEOUT = 15
#: Fields of a login, which the connection has that ssh_conn_id names.
_OF_LOGIN = ("key_file", "private_key", "private_key_passphrase", "host_key", "no_host_key_check")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A way to a cluster. Two connections with equal settings share a client."""

    conn_id: str
    transport: str
    files_via: str = ""
    user: str = ""
    #: The connection that has the login node: another one, or this one itself.
    ssh_conn_id: str = ""
    kubernetes_conn_id: str = ""
    namespace: str = NAMESPACE
    cluster: str = ""
    rest_url: str = ""
    jwt_token: str = field(default="", repr=False)
    jwt_secret: str = field(default="", repr=False)
    #: The templates of links to pages about a job, by the names of their fields.
    links: tuple[tuple[str, str], ...] = ()
    #: All that the connection holds, so that a client is not shared with a changed one.
    written: tuple[object, ...] = field(default=(), repr=False)

    @property
    def files_elsewhere(self) -> bool:
        """True if files take another way than requests to Slurm."""
        return self.files_via not in ("", "none", self.transport)

    @property
    def reaches_files(self) -> bool:
        """True if there is a way to the cluster's files."""
        return self.transport != "rest" or self.files_elsewhere


def read(connection: Any, extra: Mapping[str, Any]) -> Settings:
    """The settings of an Airflow connection; ``ConnectionMistake`` says what is wrong with it.

    The extra is an argument of its own, as threads and event loops read it in different ways.
    """
    said = filled(connection, extra, SOPERATOR, SSH_EXTRAS)
    host = (connection.host or "").strip()
    # In a URI, soperator://http%3A%2F%2F..., or in the form's field.
    is_address = host.startswith(("http://", "https://"))
    is_login_node = bool(host) and not is_address
    at_most_one({"rest_url": said.get("rest_url"), "an http(s) host": is_address})
    login = {"a login node as host": is_login_node, "a password": connection.password}
    login |= {"a port": not is_address and connection.port} | {name: said.get(name) for name in _OF_LOGIN}
    for name, its in login.items():
        at_most_one({"ssh_conn_id": said.get("ssh_conn_id"), name: its})
    url = said.get("rest_url") or (http_address(connection) if is_address else "")
    ssh = said.get("ssh_conn_id") or (connection.conn_id if is_login_node else "")
    kubernetes = said.get("kubernetes_conn_id", "")
    ways = {
        "rest": (url, "rest_url, or an http(s) host"),
        "ssh": (ssh, "a host, or ssh_conn_id"),
        "kubernetes": (kubernetes, "kubernetes_conn_id"),
    }
    transport = said.get("transport") or next((way for way, (given, _) in ways.items() if given), "")
    if not transport:
        raise ConnectionMistake(
            "the connection does not say how to reach the cluster: set a host, ssh_conn_id, kubernetes_conn_id or "
            "rest_url"
        )
    files_via = said.get("files_via") or ""
    if transport != "rest":
        at_most_one({"ssh_conn_id": said.get("ssh_conn_id"), "a login": connection.login})
    if transport == "rest" and not files_via:
        files_via = "ssh" if ssh else "kubernetes" if kubernetes else ""
    for name, way in (("transport", transport), ("files_via", files_via)):
        if way in ways and not ways[way][0]:
            raise ConnectionMistake(f"{name} is {way}, which needs {ways[way][1]}")
    if transport == "rest" and not (said.get("jwt_token") or said.get("jwt_secret") or ssh or kubernetes):
        raise ConnectionMistake(
            "slurmrestd wants a token: set jwt_secret or jwt_token, or an SSH or Kubernetes connection to fetch one by"
        )
    if transport == "rest" and said.get("jwt_secret") and not connection.login:
        raise ConnectionMistake("a token is made for a user: set the login beside jwt_secret")
    links = tuple((name, said[name]) for name in LINKS if name in said)
    for name, template in links:
        if wrong := link_problem(template):
            raise ConnectionMistake(f"{name} {wrong}")
    return Settings(
        conn_id=connection.conn_id,
        transport=transport,
        files_via=files_via,
        user=connection.login or "",
        ssh_conn_id=ssh,
        kubernetes_conn_id=kubernetes,
        rest_url=url.rstrip("/"),
        links=links,
        written=(connection.host, connection.port, connection.login, connection.password, connection.extra),
        **{name: said[name] for name in ("namespace", "cluster", "jwt_token", "jwt_secret") if name in said},
    )


_CLIENTS: SharedClients[Settings, AsyncSlurmClient] = SharedClients()
#: Clients come and go, but Airflow's secrets masker keeps each new token as long as the process lives.
_TOKENS: dict[Settings, HeldToken] = {}
# Airflow empties the masker for the tasks that it forks.
os.register_at_fork(after_in_child=_TOKENS.clear)


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
        # Imported here: most tasks wait in an event loop.
        from airflow_provider_soperator.client.sync import LOOP, SlurmClient

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
        from airflow_provider_soperator.client.sync import SlurmClient

        return SlurmClient(_client(self._settings()))

    def test_connection(self) -> tuple[bool, str]:
        """Test the connection: whether it works, and a message."""
        from airflow_provider_soperator.hooks.check import check

        is_fine, said = check(self._opened)
        # The button of Airflow's page gives it a name of the moment.
        return is_fine, said.replace(f" (connection {self.slurm_conn_id})", "")

    def _opened(self) -> tuple[Transport, str]:
        settings = self._settings()
        return open_transport(settings), settings.transport

    def _settings(self) -> Settings:
        with known(self.slurm_conn_id):
            connection = self.get_connection(self.slurm_conn_id)
        # Reading the extra tells Airflow's secrets masker what is in it.
        return read(connection, connection.extra_dejson)


def _client(settings: Settings) -> AsyncSlurmClient:
    return AsyncSlurmClient(open_transport(settings))


async def connect_login(ssh_conn_id: str) -> Callable[[], paramiko.SSHClient]:
    """Read an SSH connection; returns a function that connects, for a thread other than the loop's."""
    # Read here: the hook would do it in a way that may block the loop.
    return partial(_logged_in, ssh_conn_id, *await read_connection(ssh_conn_id))


def _logged_in(ssh_conn_id: str, connection: Any, extra: Mapping[str, Any]) -> paramiko.SSHClient:
    from airflow.providers.ssh.hooks.ssh import SSHHook

    # "Connected" and "Authentication successful" are no lines of a task's log; a failure is raised.
    log = logging.getLogger("paramiko.transport")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)
    connection = copy.copy(connection)

    class LoginHook(SSHHook):
        @classmethod
        def get_connection(cls, conn_id: str) -> Any:
            return connection

    try:
        connection.extra = json.dumps(straightened(extra))
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

        return SshTransport(partial(connect_login, settings.ssh_conn_id))
    if way == "kubernetes":
        from airflow_provider_soperator.hooks import cluster
        from airflow_provider_soperator.transports.kubernetes import KubernetesTransport, login_pods

        kubernetes = partial(cluster.connect, settings.kubernetes_conn_id)
        return KubernetesTransport(kubernetes, settings.namespace, login_pods(settings.cluster, settings.user))
    if way == "rest":
        # Root fetches a token for any user, also where the user has no login.
        over = replace(settings, user="")
        return open_rest(settings, lambda: _open("ssh" if settings.ssh_conn_id else "kubernetes", over))
    if way == "native":
        from airflow_provider_soperator.transports.native import NativeTransport

        return NativeTransport()
    from airflow_provider_soperator.transports.local import LocalTransport

    return LocalTransport()


def open_rest(settings: Settings, over: Callable[[], Transport]) -> Transport:
    """Open slurmrestd; ``over`` makes the transport by which tokens are fetched, if necessary."""
    from airflow_provider_soperator.transports.rest import HeldToken, RestTransport, Tokens, fetched, minted

    make: Callable[[], Awaitable[str]]
    if settings.jwt_token:
        make = partial(_given, settings)
    elif settings.jwt_secret:
        make = partial(minted, _key(settings.jwt_secret), settings.user)
    else:
        make = partial(fetched, over, settings.user)
    with installed("rest"):
        held = _TOKENS.setdefault(settings, HeldToken())
        return RestTransport(settings.rest_url, Tokens(partial(masked, make), held), user=settings.user)


async def _given(settings: Settings) -> str:
    """The token in a connection, or the one that has replaced it there since: it expires, and jobs take long."""
    token = settings.jwt_token
    with suppress(Exception):  # Airflow may not answer now
        _, extra = await read_connection(settings.conn_id)
        token = str(extra["jwt_token"] or token).strip()
    # As `scontrol token` prints it.
    return token.removeprefix("SLURM_JWT=")


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
    # For each token, the cache of re would keep a pattern of all that the masker had by then.
    re.purge()
    return token
