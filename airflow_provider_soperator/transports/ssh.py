"""The login node over SSH: one connection, a few long-lived shells on it; paramiko for threads, asyncssh for loops.

Both take connections as the stock SSH provider makes them, so that its host-key checks and key settings hold here.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from airflow_provider_soperator.transports.errors import ConnectFailed, ConnectionLost, ConnectRefused, TransportError
from airflow_provider_soperator.transports.framing import SHELL
from airflow_provider_soperator.transports.shell import AsyncPipe, AsyncShellTransport, Pipe, ShellTransport

if TYPE_CHECKING:
    import asyncssh
    import paramiko

#: Bytes taken from a stream at a time.
_CHUNK = 256 * 1024

#: How often an sshd that drops connections for having too many is tried again, and for how long at the most each time.
#: A wide fan-out opens hundreds at once, and a stock sshd drops half of them.
CONNECT_TRIES = 8
_LONGEST_WAIT = 8.0


def _pause(attempt: int) -> float:
    """Seconds before the next try, spread so that those refused together do not come back together."""
    return random.uniform(0, min(_LONGEST_WAIT, 0.25 * 2.0**attempt))


class _ParamikoPipe:
    """A session channel that runs one shell."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        # Set when either stream has data or has ended. A select on the channel would do the same by a pipe, but
        # one that is closed while data comes in takes the whole connection down with it.
        self._news = threading.Event()
        channel.in_buffer.set_event(self._news)
        channel.in_stderr_buffer.set_event(self._news)

    def send(self, data: bytes) -> None:
        self._channel.sendall(data)

    def receive(self, timeout: float) -> tuple[str, bytes] | None:
        channel = self._channel
        deadline = time.monotonic() + timeout
        while True:
            if channel.recv_ready():
                return "stdout", channel.recv(_CHUNK)
            if channel.recv_stderr_ready():
                return "stderr", channel.recv_stderr(_CHUNK)
            if channel.eof_received or channel.closed:
                return None
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            # What empties one stream clears the event, also if the other has had news: never wait long on it alone.
            self._news.wait(min(left, 0.1))

    def close(self) -> None:
        # It says so to the other side, which may have gone: whoever closes it for that has an error of their own.
        with contextlib.suppress(EOFError, OSError):
            self._channel.close()


class SshTransport(ShellTransport["paramiko.SSHClient"]):
    """Asks over a paramiko connection, opened at the first question and again when it has broken."""

    def __init__(self, connect: Callable[[], paramiko.SSHClient]) -> None:
        super().__init__()
        self._connect = connect

    def _open(self) -> paramiko.SSHClient:
        for attempt in range(CONNECT_TRIES):
            try:
                client = self._connect()
                break
            except Exception as error:
                failure = explain(error)
                if not failure.retryable or attempt == CONNECT_TRIES - 1:
                    raise failure from error
                time.sleep(_pause(attempt))
        transport = client.get_transport()
        if transport is None:
            raise ConnectFailed("the connection was closed at once")
        # Without it each command waits 40 ms for an acknowledgement of the one before.
        if isinstance(transport.sock, socket.socket):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def _open_pipe(self, connection: paramiko.SSHClient) -> Pipe:
        import paramiko

        transport = connection.get_transport()
        if transport is None or not transport.is_active():
            raise ConnectionLost("the SSH connection has ended")
        try:
            channel = transport.open_session(timeout=20)
            channel.exec_command(SHELL)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ConnectionLost(f"no session could be opened ({error})") from error
        return _ParamikoPipe(channel)

    def _hang_up(self, connection: paramiko.SSHClient) -> None:
        connection.close()


class _AsyncsshPipe:
    """A process of asyncssh that runs one shell; both streams are read at once."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._process = process
        self._pending: dict[str, asyncio.Task[bytes]] = {}

    async def send(self, data: bytes) -> None:
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def receive(self) -> tuple[str, bytes] | None:
        import asyncssh

        streams = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        for name, stream in streams.items():
            if name not in self._pending:
                self._pending[name] = asyncio.ensure_future(stream.read(_CHUNK))
        await asyncio.wait(self._pending.values(), return_when=asyncio.FIRST_COMPLETED)
        for name in streams:
            task = self._pending[name]
            if task.done():
                del self._pending[name]
                try:
                    data = task.result()
                except (asyncssh.Error, OSError) as error:
                    raise EOFError(str(error)) from error
                return (name, data) if data else None
        raise AssertionError("one of them was done")

    async def close(self) -> None:
        for task in self._pending.values():
            task.cancel()
        self._process.close()


class AsyncSshTransport(AsyncShellTransport["asyncssh.SSHClientConnection"]):
    """Asks over an asyncssh connection, opened at the first question and again when it has broken."""

    def __init__(self, connect: Callable[[], Awaitable[asyncssh.SSHClientConnection]]) -> None:
        super().__init__()
        self._connect = connect

    async def _open(self) -> asyncssh.SSHClientConnection:
        for attempt in range(CONNECT_TRIES):
            try:
                return await self._connect()
            except Exception as error:
                failure = explain(error)
                if not failure.retryable or attempt == CONNECT_TRIES - 1:
                    raise failure from error
                await asyncio.sleep(_pause(attempt))
        raise AssertionError("the last try has returned or raised")

    async def _open_pipe(self, connection: asyncssh.SSHClientConnection) -> AsyncPipe:
        import asyncssh

        try:
            process = await connection.create_process(SHELL, encoding=None)
        except (asyncssh.Error, OSError) as error:
            raise ConnectionLost(f"no session could be opened ({error})") from error
        return _AsyncsshPipe(process)

    async def _hang_up(self, connection: asyncssh.SSHClientConnection) -> None:
        connection.close()


#: How paramiko, asyncssh and the SSH provider call a private key that they cannot read, and what they say of it.
_KEY_ERRORS = ("KeyEncryptionError", "KeyImportError", "PasswordRequiredException")
_KEY_UNREADABLE = ("private key file", "Key must have BEGIN", "Private key provided")
_HOST_KEY_UNREADABLE = ("Invalid key (class", "host key algorithm", "missing key data", "Incorrect padding")


def explain(error: BaseException) -> TransportError:
    """What kept a connection from being made, in words about the user's settings, whichever library says it."""
    if isinstance(error, TransportError):
        return error
    kind, text = type(error).__name__, str(error).removeprefix("[Errno None] ").rstrip(".") or type(error).__name__
    if isinstance(error, socket.gaierror):
        return ConnectFailed(f"the host name is unknown ({text})", "check the host of the connection")
    if isinstance(error, ConnectionRefusedError) or kind == "NoValidConnectionsError":
        return ConnectFailed(f"nobody listens there ({text})", "check host and port, and whether the login node is up")
    if kind == "BadHostKeyException":
        return ConnectFailed(
            "the host key has changed",
            "make sure that it is the right host, then put its new key into the connection's host_key or into "
            "known_hosts, wherever the old one is",
        )
    if any(words in text for words in _HOST_KEY_UNREADABLE):
        return ConnectFailed(
            f"the connection's host_key is no public key ({text})", "put a line of `ssh-keyscan HOST` there"
        )
    if kind == "HostKeyNotVerifiable" or "not found in known_hosts" in text or "Host key is not" in text:
        return ConnectFailed(
            f"the host key is unknown, or not the expected one ({text})",
            "make sure that it is the right host, then put its key into the connection's host_key, or into known_hosts",
        )
    dropped = ("banner", "Connection lost", "Connection reset", "closed", "Connection aborted", "saw EOF")
    if isinstance(error, (ConnectionError, EOFError)) or any(words in text for words in dropped):
        # An sshd with too many unauthenticated connections (MaxStartups) hangs up before it says anything. If that
        # happens while it is logged in, paramiko calls it a failed authentication.
        return ConnectRefused(f"the login node hung up ({text})", "it has too many connections at once, or is starting")
    if kind in ("AuthenticationException", "PermissionDenied", "BadAuthenticationType"):
        return ConnectFailed(f"the login was refused ({text})", "check user and key of the connection")
    unreadable = kind in _KEY_ERRORS or any(words in text for words in _KEY_UNREADABLE)
    if unreadable or isinstance(error, (FileNotFoundError, PermissionError)):
        return ConnectFailed(
            f"the private key cannot be used ({text})", "check key_file, or private_key and its passphrase"
        )
    if "remote_host" in text:
        return ConnectFailed("the connection names no host", "set it, or choose another connection of type SSH")
    # What paramiko says of one who accepts a connection and is silent then, is the last of these.
    if isinstance(error, (TimeoutError, asyncio.TimeoutError, socket.timeout)) or text == "No existing session":
        return ConnectFailed("the host does not answer", "check host, port and firewalls")
    return ConnectFailed(f"{kind}: {text}", "check the connection")
