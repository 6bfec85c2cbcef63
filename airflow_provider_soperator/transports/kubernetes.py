"""The login pod by exec, a websocket for each long-lived shell.

Where no login pod is Ready, the controller's is used: both see the same Slurm.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from async_timeout import timeout

from airflow_provider_soperator.transports.errors import ConnectFailed, ConnectionLost, ConnectRefused
from airflow_provider_soperator.transports.kubernetes_errors import PATIENCE, explained, status_message
from airflow_provider_soperator.transports.pods import CONTROLLER, LOGIN, PodChoice, find_pod
from airflow_provider_soperator.transports.shell import Pipe, ShellTransport

if TYPE_CHECKING:
    import aiohttp
    import kubernetes_asyncio.client

#: Seconds between pings: load balancers before an API server cut connections that are silent for a minute or more.
_HEARTBEAT = 25.0

#: Bytes sent at a time; API servers limit the size of a message.
_CHUNK = 64 * 1024

_STDIN, _STDOUT, _STDERR, _STATUS = b"\0", b"\1", b"\2", b"\3"


class _Frames:
    """What comes over one websocket: each frame begins with a byte that names its stream."""

    def __init__(self, pod: str, choice: PodChoice) -> None:
        self._where = f"container {choice.container} of pod {pod}"
        self._shell = " ".join(choice.shell)
        self._started = False
        self._complaint = b""

    def read(self, frame: bytes) -> tuple[str, bytes] | None:
        """The stream that a frame belongs to and its bytes; None: the shell has ended."""
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
                f"no shell could be started in {self._where} ({why})", f"see whether `{self._shell}` runs there"
            )
        if channel != _STDOUT:
            return "stdout", b""
        self._started = self._started or bool(data)
        return "stdout", data


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK):
        yield _STDIN + data[start : start + _CHUNK]


class _Pipe:
    """A websocket of aiohttp with a shell at its end, and the client it was opened with."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        client: kubernetes_asyncio.client.ApiClient,
        frames: _Frames,
    ) -> None:
        self._socket, self._client, self._frames = socket, client, frames
        self._coming = asyncio.ensure_future(socket.receive())

    async def send(self, data: bytes) -> None:
        for piece in _pieces(data):
            await self._socket.send_bytes(piece)

    async def receive(self) -> tuple[str, bytes] | None:
        import aiohttp

        message = await self._coming
        if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            return None
        # Also while nobody waits: aiohttp notices the answers to its pings only where something is being received.
        self._coming = asyncio.ensure_future(self._socket.receive())
        data = message.data
        return self._frames.read(data.encode() if isinstance(data, str) else data)

    async def close(self) -> None:
        self._coming.cancel()
        with contextlib.suppress(Exception):
            async with timeout(1):
                await self._socket.close()
        await self._client.close()


class KubernetesTransport(ShellTransport["kubernetes_asyncio.client.ApiClient"]):
    """Asks through shells in the first Ready pod of ``choices``, which is looked up for each new shell."""

    # A client whose token has expired is of no more use either; open websockets do not need it.

    _final = (ConnectionLost, ConnectFailed)

    def __init__(
        self,
        connect: Callable[[], Awaitable[kubernetes_asyncio.client.ApiClient]],
        namespace: str,
        choices: Sequence[PodChoice] = (LOGIN, CONTROLLER),
    ) -> None:
        super().__init__()
        self._connect = connect
        self._namespace = namespace
        self._choices = tuple(choices)

    async def _open(self) -> kubernetes_asyncio.client.ApiClient:
        with explained("connect"):
            return await self._connect()

    async def _open_pipe(self, connection: kubernetes_asyncio.client.ApiClient) -> Pipe:
        try:
            return await self._exec(connection, *await self._find(connection))
        except ConnectRefused:
            # The pod may have gone after it was found.
            return await self._exec(connection, *await self._find(connection))

    async def _hang_up(self, connection: kubernetes_asyncio.client.ApiClient) -> None:
        await connection.close()

    async def _find(self, connection: kubernetes_asyncio.client.ApiClient) -> tuple[str, PodChoice]:
        import kubernetes_asyncio.client

        steps = find_pod(kubernetes_asyncio.client.CoreV1Api(connection), self._namespace, self._choices, PATIENCE)
        try:
            call = next(steps)
            while True:
                try:
                    answer = await call
                except Exception as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as found:
            return cast("tuple[str, PodChoice]", found.value)

    async def _exec(self, connection: kubernetes_asyncio.client.ApiClient, pod: str, choice: PodChoice) -> Pipe:
        import kubernetes_asyncio.client
        import kubernetes_asyncio.stream

        # A session of its own: one that is dropped later takes no shell with it that is still at work.
        client = kubernetes_asyncio.stream.WsApiClient(connection.configuration, heartbeat=_HEARTBEAT)
        client.default_headers.update(connection.default_headers)
        core: Any = kubernetes_asyncio.client.CoreV1Api(client)

        try:
            with explained(f"exec into pod {pod}"):
                async with timeout(PATIENCE):
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
        return _Pipe(socket, client, _Frames(pod, choice))
