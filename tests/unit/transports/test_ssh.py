"""What paramiko makes of an sshd that refuses sessions, with a server in this process."""

from __future__ import annotations

import asyncio
import socket
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncssh
import paramiko
import pytest

from airflow_provider_soperator.slurm.requests import Command
from airflow_provider_soperator.transports.ssh import SshTransport
from airflow_provider_soperator.transports.transport_errors import ConnectRefused
from tests.unit.transports.test_shell import Run

KEY = asyncssh.generate_private_key("ssh-ed25519")


class Sshd(asyncssh.SSHServer):
    """Lets anybody in, and refuses sessions as OpenSSH does, once there are MaxSessions of them."""

    def __init__(self, max_sessions: int) -> None:
        self._left = max_sessions

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return True

    def session_requested(self) -> asyncssh.SSHServerProcess[bytes] | bool:
        self._left -= 1
        return asyncssh.SSHServerProcess(shell, None, 3, False) if self._left >= 0 else False


async def shell(process: asyncssh.SSHServerProcess[bytes]) -> None:
    running: Any = await asyncio.create_subprocess_exec("/bin/sh", stdin=PIPE, stdout=PIPE, stderr=PIPE)

    async def copy(source: Any, target: Any) -> None:
        while data := await source.read(10_000):
            target.write(data)
        if target is running.stdin:
            target.close()

    streams = (process.stdin, running.stdin), (running.stdout, process.stdout), (running.stderr, process.stderr)
    await asyncio.gather(*(copy(*pair) for pair in streams))
    process.exit(await running.wait())


class Clients:
    """Connects to the server; remembers the connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        #: How many connections are closed as soon as they are made.
        self.dropped = 0
        self.made: list[paramiko.SSHClient] = []

    async def __call__(self) -> Callable[[], paramiko.SSHClient]:
        return self._connect

    def _connect(self) -> paramiko.SSHClient:
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect("127.0.0.1", self._port, "me", "secret", allow_agent=False, look_for_keys=False)
        self.made.append(client)
        if (transport := client.get_transport()) and len(self.made) <= self.dropped:
            transport.sock.close()
        return client


@asynccontextmanager
async def serving(max_sessions: int) -> AsyncIterator[tuple[SshTransport, Clients]]:
    listening = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=lambda: Sshd(max_sessions), server_host_keys=[KEY], encoding=None
    )
    clients = Clients(listening.get_port())
    transport = SshTransport(clients)
    try:
        yield transport, clients
    finally:
        await transport.close()
        listening.close()
        await listening.wait_closed()


@pytest.mark.parametrize("max_sessions", [1, 2])
def test_a_refused_session_leaves_the_connection_to_the_others(max_sessions: int) -> None:
    async def main() -> None:
        async with serving(max_sessions) as (transport, clients):
            echoes = [Run(Command(("echo", str(number)))) for number in range(12)]
            answers = await asyncio.gather(*map(transport.ask, echoes))
            assert [answer.stdout for answer in answers] == [b"%d\n" % number for number in range(12)]
            assert len(clients.made) == 1

    asyncio.run(main())


def test_an_sshd_that_allows_no_session_is_named() -> None:
    async def main() -> None:
        async with serving(0) as (transport, _):
            with pytest.raises(ConnectRefused, match=r"no further session .*MaxSessions"):
                await transport.ask(Run(Command(("true",))))

    asyncio.run(main())


def test_an_sshd_that_closes_the_connection_after_the_login_is_called_again() -> None:
    async def main() -> None:
        async with serving(10) as (transport, clients):
            clients.dropped = 2
            await transport.ask(Run(Command(("true",))))
            assert len(clients.made) == 3

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has it")
def test_a_host_that_acknowledges_nothing_is_given_up_within_minutes() -> None:
    async def main() -> None:
        async with serving(10) as (transport, clients):
            await transport.ask(Run(Command(("true",))))
            transports = [client.get_transport() for client in clients.made]
            [limit] = [one.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for one in transports if one]
            assert 0 < limit <= 120_000

    asyncio.run(main())
