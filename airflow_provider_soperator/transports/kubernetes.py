"""Transport by exec into the login pod: a websocket for each long-lived shell, and the choice of the pod.

No other pod will do: in the controller's, commands would see the same Slurm, but other files.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from async_timeout import timeout

from airflow_provider_soperator.transports.shell import NotSent, Pipe
from airflow_provider_soperator.transports.shell_transport import ShellTransport
from airflow_provider_soperator.transports.transport_errors import (
    API_TIMEOUT,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    is_refused,
    kubernetes_errors,
    namespace_errors,
    status_message,
)

if TYPE_CHECKING:
    import aiohttp
    import kubernetes_asyncio.client


@dataclass(frozen=True)
class PodChoice:
    """Pods in which Slurm's commands can run, and the shell to start there.

    ``of_cluster`` are labels of all pods of the SlurmCluster: where there is any, those that are missing may come.

    >>> PodChoice("app.kubernetes.io/component=login,app.kubernetes.io/instance=mine", "sshd").shell
    ('/bin/sh',)
    """

    labels: str
    container: str
    shell: tuple[str, ...] = ("/bin/sh",)
    of_cluster: str = "app.kubernetes.io/name=slurmcluster"


# sshd hands on none of its own variables either. Those of the container, such as KUBERNETES_SERVICE_HOST, would be in
# each job, and some programs take them for those of a Pod.
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The jail, as users see it when they log in.
LOGIN = PodChoice("app.kubernetes.io/component=login", "sshd", ("chroot", "/mnt/jail", "env", "-i", _PATH, "/bin/sh"))


def login_pods(cluster: str, user: str = "") -> PodChoice:
    """The login pods of a SlurmCluster, of the only one in the namespace without its name; for root, or another user.

    >>> login_pods("", "ann").shell[5:7]
    ('runuser', 'ann')
    """
    mine = f",app.kubernetes.io/instance={cluster}" if cluster else ""
    choice = replace(LOGIN, labels=LOGIN.labels + mine, of_cluster=LOGIN.of_cluster + mine)
    if user in ("", "root"):
        return choice
    # An exec is root's, as the container is. As with sshd, its limits are those that PAM has for the user.
    become = ("runuser", user, "-s", "/bin/sh", "-c", "exec /bin/sh")
    return replace(choice, shell=(*LOGIN.shell[:-1], *become))


async def find_pod(core: Any, namespace: str, choice: PodChoice) -> str:
    """Find the pod to run commands in; returns its name."""

    async def found(labels: str, **options: int) -> Sequence[Any]:
        with kubernetes_errors(f"list the pods of namespace {namespace}"):
            listed = await core.list_namespaced_pod(
                namespace, label_selector=labels, _request_timeout=API_TIMEOUT, **options
            )
        return list(listed.items)

    pods = await found(choice.labels)
    if name := _ready(pods, choice):
        return name
    if pods:
        names = ", ".join(f"{pod.metadata.name} ({_condition(pod)})" for pod in pods)
        raise ConnectRefused(
            f"no login pod is Ready in namespace {namespace}: {names}",
            f"see `kubectl -n {namespace} describe pod {pods[0].metadata.name}`",
        )
    missing = f"no pod in namespace {namespace} has the labels {choice.labels}"
    if others := await found(choice.of_cluster, limit=1):
        raise ConnectRefused(
            f"{missing}, though the SlurmCluster has pods, such as {others[0].metadata.name}",
            f"see `kubectl -n {namespace} get statefulsets,events` for why the login pods are not there",
        )
    # Kubernetes also lists no pods if the namespace does not exist.
    with namespace_errors(namespace):
        await core.read_namespace(namespace, _request_timeout=API_TIMEOUT)
    raise ConnectFailed(
        missing,
        f"see `kubectl -n {namespace} get pods --show-labels`, and whether it is the SlurmCluster's namespace",
    )


def _ready(pods: Sequence[Any], choice: PodChoice) -> str | None:
    """The name of the first usable pod in alphabetical order, so that all processes choose the same one."""
    for pod in sorted(pods, key=lambda pod: str(pod.metadata.name)):
        conditions = {one.type: one.status for one in pod.status.conditions or ()}
        if conditions.get("Ready") != "True" or pod.metadata.deletion_timestamp:
            continue
        containers = [container.name for container in pod.spec.containers]
        if choice.container not in containers:
            raise ConnectFailed(
                f"pod {pod.metadata.name} has no container {choice.container}, only {', '.join(containers)}",
                "choose another container, or other labels",
            )
        return str(pod.metadata.name)
    return None


def _condition(pod: Any) -> str:
    if pod.metadata.deletion_timestamp:
        return "is being deleted"
    for one in pod.status.conditions or ():
        if one.type == "Ready":
            return str(one.message or one.reason or "not Ready")
    return str(pod.status.phase or "not started")


#: Seconds between pings: load balancers before an API server cut connections that are silent for a minute or more.
_HEARTBEAT = 25.0

#: Bytes sent at a time; API servers limit the size of a message.
_CHUNK = 64 * 1024

_STDIN, _STDOUT, _STDERR, _STATUS = b"\0", b"\1", b"\2", b"\3"


class _WebSocketPipe:
    """An aiohttp websocket to a shell, and the client that opened it.

    Each message begins with a byte that names its stream.
    """

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        client: kubernetes_asyncio.client.ApiClient,
        pod: str,
        choice: PodChoice,
    ) -> None:
        self._socket, self._client, self._pod, self._choice = socket, client, pod, choice
        self._coming = asyncio.ensure_future(socket.receive())
        self._started = False
        self._complaint = b""

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            await self._socket.send_bytes(_STDIN + data[start : start + _CHUNK])

    async def receive(self) -> tuple[str, bytes] | None:
        import aiohttp

        message = await self._coming
        if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            return None
        # Always keep a receive pending: aiohttp notices the answers to its pings only during one.
        self._coming = asyncio.ensure_future(self._socket.receive())
        frame = message.data.encode() if isinstance(message.data, str) else message.data
        channel, data = frame[:1], frame[1:]
        if channel == _STDERR:
            if not self._started:
                self._complaint += data
            return "stderr", data
        if channel == _STATUS:
            if self._started:
                return None
            why = self._complaint.decode(errors="replace").strip() or status_message(data)
            raise ConnectFailed(
                f"cannot start a shell in container {self._choice.container} of pod {self._pod} ({why})",
                f"see whether `{shlex.join(self._choice.shell)}` runs there",
            )
        if channel != _STDOUT:
            return "stdout", b""
        self._started = self._started or bool(data)
        return "stdout", data

    async def close(self) -> None:
        self._coming.cancel()
        try:
            with contextlib.suppress(Exception):
                async with timeout(1):
                    await self._socket.close()
        finally:
            # Also if a task that was cancelled is cancelled once more.
            await self._client.close()


def _take_the_same_way(client: kubernetes_asyncio.client.ApiClient) -> None:
    """Open websockets by the proxy, and for the server name, of other requests, which kubernetes_asyncio does not."""
    rest: Any = client.rest_client
    server = urlsplit(str(client.configuration.host))
    proxy = rest.proxy
    if not proxy and server.hostname and not proxy_bypass(server.hostname):
        # aiohttp would look for one of wss://.
        proxy = getproxies().get(server.scheme)
    rest.pool_manager.ws_connect = partial(
        rest.pool_manager.ws_connect,
        proxy=proxy,
        proxy_headers=rest.proxy_headers,
        server_hostname=rest.server_hostname,
    )


class KubernetesTransport(ShellTransport["kubernetes_asyncio.client.ApiClient"]):
    """Runs commands in shells in the first Ready pod of the choice, which is looked up for each new shell."""

    # A client with an expired token must be replaced, too; open websockets do not need it.
    _final = (ConnectionLost, ConnectFailed)

    def __init__(
        self,
        connect: Callable[[], Awaitable[kubernetes_asyncio.client.ApiClient]],
        namespace: str,
        choice: PodChoice = LOGIN,
    ) -> None:
        super().__init__()
        self._connect = connect
        self._namespace = namespace
        self._choice = choice
        #: The client whose token was last accepted.
        self._accepted: kubernetes_asyncio.client.ApiClient | None = None

    async def _open(self) -> kubernetes_asyncio.client.ApiClient:
        with kubernetes_errors("connect"):
            return await self._connect()

    async def _open_pipe(self, connection: kubernetes_asyncio.client.ApiClient) -> Pipe:
        try:
            pipe = await self._exec(connection)
        except ConnectRefused:
            # The pod may have gone since it was found.
            pipe = await self._exec(connection)
        except ConnectFailed as error:
            if connection is self._accepted and is_refused(error):
                # It has expired; another client has a new one.
                raise NotSent(error.what, error.remedy) from error
            raise
        self._accepted = connection
        return pipe

    async def _hang_up(self, connection: kubernetes_asyncio.client.ApiClient) -> None:
        await connection.close()

    async def _exec(self, connection: kubernetes_asyncio.client.ApiClient) -> Pipe:
        import kubernetes_asyncio.client
        import kubernetes_asyncio.stream

        core: Any = kubernetes_asyncio.client.CoreV1Api(connection)
        choice = self._choice
        pod = await find_pod(core, self._namespace, choice)
        # A client of its own, so that dropping the connection later does not end a shell that is at work.
        client = kubernetes_asyncio.stream.WsApiClient(connection.configuration, heartbeat=_HEARTBEAT)
        client.default_headers.update(connection.default_headers)
        _take_the_same_way(client)
        core = kubernetes_asyncio.client.CoreV1Api(client)
        try:
            with kubernetes_errors(f"exec into pod {pod}"):
                async with timeout(API_TIMEOUT):
                    opening = await core.connect_get_namespaced_pod_exec(
                        pod,
                        self._namespace,
                        container=choice.container,
                        command=list(choice.shell),
                        stdin=True,
                        stdout=True,
                        stderr=True,
                        tty=False,
                        _preload_content=False,
                    )
                    socket: aiohttp.ClientWebSocketResponse = await opening
        except BaseException:
            await client.close()
            raise
        return _WebSocketPipe(socket, client, pod, choice)
