"""Transport over SSH to the login node: one paramiko connection, with a few long-lived shells.

Airflow's SSH hook makes the connection, so that all fields of an SSH connection mean the same here.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import select
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from async_timeout import timeout

from airflow_provider_soperator.transports.shell import MAX_SHELLS, SHELL, Pipe
from airflow_provider_soperator.transports.shell_transport import ShellTransport
from airflow_provider_soperator.transports.transport_errors import (
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    ssh_error,
)

if TYPE_CHECKING:
    import paramiko

R = TypeVar("R")

#: Bytes taken from a stream at a time.
_CHUNK = 256 * 1024
#: Bytes that are sent without a thread, if the socket takes any.
_AT_ONCE = 16 * 1024

#: Seconds that a session may take to open.
_OPENING = 20.0
#: Milliseconds after which a host that acknowledges nothing is given up; the kernel would take a quarter of an hour.
#: Airflow's hook sends something every 30 s.
_UNACKNOWLEDGED = 60_000

#: Tries, and maximum seconds between them, for an sshd that drops connections when there are too many. A wide fan-out
#: opens hundreds at once, and a stock sshd drops half of them.
CONNECT_TRIES = 8
_LONGEST_WAIT = 8.0


def _tune(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    if transport is None:
        raise ConnectFailed("the connection was closed at once")
    # Without it each command waits 40 ms for an acknowledgement of the one before.
    if isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Only Linux has it.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED)


def _session(client: paramiko.SSHClient) -> paramiko.Channel:
    """A channel with one more shell."""
    import paramiko

    transport = client.get_transport()
    if transport is None or not transport.is_active():
        raise ConnectionLost("the SSH connection has ended")
    try:
        channel = transport.open_session(timeout=_OPENING)
        channel.exec_command(SHELL)
    except paramiko.ChannelException as error:
        raise ConnectRefused(
            f"sshd allows no further session on this connection ({error.text})", "see MaxSessions in its sshd_config"
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise ConnectionLost(f"cannot open a session ({error})") from error
    return channel


class _InThread:
    """Runs blocking calls in threads of its own."""

    def __init__(self) -> None:
        # It starts them when they are needed.
        self._threads = ThreadPoolExecutor(MAX_SHELLS + 1, "soperator-ssh")

    async def __call__(self, call: Callable[..., R], *args: Any, undo: Callable[[R], object] | None = None) -> R:
        """The result of a call. If the caller is cancelled, ``undo`` is called with it."""
        called = self.begin(call, *args)
        try:
            return await asyncio.wrap_future(called)
        except asyncio.CancelledError:
            if undo and not called.cancel():
                called.add_done_callback(lambda done: None if done.exception() else undo(done.result()))
            raise

    def begin(self, call: Callable[..., R], *args: Any) -> Future[R]:
        """Start a call without waiting for it."""
        return self._threads.submit(call, *args)


class _News:
    """Replaces a threading event of paramiko, and wakes a task of the loop."""

    def __init__(self) -> None:
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()

    def set(self) -> None:
        # Its loop may have ended before the connection.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Do nothing: ``wait`` clears the event."""

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()


class _ParamikoPipe:
    """A session channel that runs one shell: paramiko's thread reads, and notifies the loop."""

    def __init__(self, channel: paramiko.Channel, in_thread: _InThread) -> None:
        self._channel, self._in_thread = channel, in_thread
        self._news = _News()
        channel.in_buffer.set_event(self._news)  # type: ignore[arg-type]
        channel.in_stderr_buffer.set_event(self._news)  # type: ignore[arg-type]

    async def send(self, data: bytes) -> None:
        if self._takes(len(data)):
            self._channel.sendall(data)
        else:
            await self._in_thread(self._channel.sendall, data)

    async def receive(self) -> tuple[str, bytes] | None:
        channel = self._channel
        while True:
            # Read first: all bytes before the end are there by then.
            has_ended = channel.eof_received or channel.closed
            if channel.recv_ready():
                return "stdout", channel.recv(_CHUNK)
            if channel.recv_stderr_ready():
                return "stderr", channel.recv_stderr(_CHUNK)
            if has_ended:
                return None
            await self._news.wait()

    async def close(self) -> None:
        if not self._takes(0):
            # Closing blocks while the host does not answer.
            with contextlib.suppress(RuntimeError):
                self._in_thread.begin(self._channel.close)
            return
        # It notifies the other side, which may be gone; the caller has an error of its own then.
        with contextlib.suppress(Exception):
            self._channel.close()

    def _takes(self, size: int) -> bool:
        """True if ``size`` bytes can be sent without blocking."""
        transport: Any = self._channel.transport
        if size > min(_AT_ONCE, self._channel.out_window_size) or not transport.clear_to_send.is_set():
            return False
        # The other end of a proxy command is a pipe.
        if not isinstance(transport.sock, socket.socket):
            return False
        poll = select.poll()
        try:
            poll.register(transport.sock, select.POLLOUT)
            return any(events & select.POLLOUT for _, events in poll.poll(0))
        except (OSError, ValueError):
            # It is closed.
            return False


class SshTransport(ShellTransport["paramiko.SSHClient"]):
    """Runs commands over a paramiko connection, opened for the first request and reopened after it has broken."""

    def __init__(self, connect: Callable[[], Awaitable[Callable[[], paramiko.SSHClient]]]) -> None:
        super().__init__()
        self._connect = connect
        # Its own threads: those blocked by a silent host must not be taken from others.
        self._in_thread = _InThread()

    async def _open(self) -> paramiko.SSHClient:
        for attempt in range(CONNECT_TRIES):
            try:
                client = await self._in_thread(await self._connect(), undo=lambda client: client.close())
                _tune(client)
                break
            except Exception as error:
                failure = ssh_error(error)
                if not failure.retryable or attempt == CONNECT_TRIES - 1:
                    raise failure from error
                # With jitter: clients that were dropped together must not return together.
                await asyncio.sleep(random.uniform(0, min(_LONGEST_WAIT, 0.25 * 2.0**attempt)))
        return client

    async def _open_pipe(self, connection: paramiko.SSHClient) -> Pipe:
        opening = self._in_thread(_session, connection, undo=lambda channel: channel.close())
        try:
            async with timeout(_OPENING):
                return _ParamikoPipe(await opening, self._in_thread)
        except asyncio.TimeoutError as error:
            raise ConnectionLost(f"cannot open a session (no answer within {_OPENING:g} s)") from error

    async def _hang_up(self, connection: paramiko.SSHClient) -> None:
        try:
            # Not in its own threads: this call ends the blocked ones.
            await asyncio.to_thread(connection.close)
        except RuntimeError:
            # A process that exits starts no threads any more.
            connection.close()
