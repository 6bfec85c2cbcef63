"""Over SSH: an sshd that allows few sessions, one that goes silent, and login shells that take their time."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator

import paramiko
import psutil
import pytest

from airflow_provider_soperator.transports import shell, ssh
from airflow_provider_soperator.transports.transport_errors import ConnectRefused, TransportError
from tests.contract.transports import AsyncWay, Run, inside, outcomes
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.oldest_slurm


class Login:
    """The login node with options of its own for sshd: an sshd for each connection, as inetd would start it."""

    def __init__(self, cluster: Cluster, options: tuple[str, ...]) -> None:
        self._cluster = cluster
        self._options = [word for option in options for word in ("-o", option)]
        self.started: list[subprocess.Popen[bytes]] = []
        self.way = AsyncWay(lambda: ssh.SshTransport(self._connecting))

    async def _connecting(self) -> Callable[[], paramiko.SSHClient]:
        return self._connect

    def _connect(self) -> paramiko.SSHClient:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
        with theirs:
            sshd = inside(self._cluster, "/usr/sbin/sshd", "-i", *self._options)
            self.started.append(subprocess.Popen(sshd, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL))
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        key = self._cluster.access["ssh"]["key_file"]
        client.connect("login", username="root", key_filename=key, sock=ours, allow_agent=False, look_for_keys=False)
        return client

    def signal(self, number: int) -> None:
        """To the sshds of all connections, and not to what runs in them."""
        for sshd in self.started:
            # It may end meanwhile.
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in psutil.Process(sshd.pid).children(recursive=True):
                    if process.name().startswith("sshd"):
                        process.send_signal(number)

    def close(self) -> None:
        self.way.close()
        self.signal(signal.SIGKILL)
        for sshd in self.started:
            # What has entered the sandbox stops with the sshd that it started.
            sshd.kill()
            sshd.wait()


@pytest.fixture
def login(cluster: Cluster) -> Iterator[Callable[..., Login]]:
    made: list[Login] = []

    def make(*options: str) -> Login:
        made.append(Login(cluster, options))
        return made[-1]

    cluster.run("rm", "-f", "/root/ran", "/root/starts", "/root/go")
    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("allowed", [1, 2])
def test_few_sessions_serve_all_commands_once(allowed: int, login: Callable[..., Login], cluster: Cluster) -> None:
    node = login(f"MaxSessions={allowed}")
    commands = [Run(("sh", "-c", f"echo {number} >>/root/ran; sleep 0.2; echo {number}")) for number in range(12)]
    assert outcomes(node.way, *commands) == [b"%d\n" % number for number in range(12)]
    assert sorted(map(int, cluster.run("cat", "/root/ran").split())) == list(range(12))
    assert len(node.started) == 1


def test_an_sshd_that_allows_no_session_is_named(login: Callable[..., Login]) -> None:
    with pytest.raises(ConnectRefused, match="MaxSessions"):
        login("MaxSessions=0").way.ask(Run(("true",)))


@pytest.mark.parametrize("at_once", [1, 8], ids=["over an open shell", "also over new ones"])
def test_a_connection_that_has_gone_silent_is_replaced(
    at_once: int, login: Callable[..., Login], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a limit may strike also where nothing is silent.
    for limit in (0.5, 5, 50):
        node = login()
        assert node.way.ask(Run(("echo", "on"))).stdout == b"on\n"
        with monkeypatch.context() as brief:
            brief.setattr(shell, "SLACK", limit)
            brief.setattr(ssh, "_OPENING", 4 + 4 * limit)
            node.signal(signal.SIGSTOP)
            # What waited for a shell of it goes on with the next one.
            said = [one for one in outcomes(node.way, *[Run(("true",), timeout=limit)] * at_once) if one != b""]
        assert said
        assert all(isinstance(one, TransportError) and one.retryable for one in said), said
        assert outcomes(node.way, *[Run(("echo", "on"))] * at_once) == [b"on\n"] * at_once
        if len(said) <= shell.MAX_SHELLS and len(node.started) == 2:
            break
    assert len(said) <= shell.MAX_SHELLS
    assert len(node.started) == 2


def test_a_slow_login_shell_is_not_waited_for_while_another_is_free(
    login: Callable[..., Login], cluster: Cluster
) -> None:
    slow = "echo >>/root/starts; [ $(wc -l </root/starts) = 1 ] || until test -e /root/go; do sleep 0.1; done"
    node = login(f'ForceCommand={slow}; echo Welcome; echo Welcome >&2; eval "$SSH_ORIGINAL_COMMAND"')
    said = outcomes(node.way, *[Run(("sh", "-c", f"sleep 0.2; echo {number}")) for number in range(8)])
    assert said == [b"%d\n" % number for number in range(8)]
    cluster.wait("another one starts", lambda: cluster.run("cat", "/root/starts").count("\n") == 2)
    cluster.run("touch", "/root/go")
