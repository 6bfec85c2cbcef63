"""What Airflow's Test button says of a connection: for each mistake its cause and a remedy, and soon."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncssh
import pytest

from airflow_provider_soperator.hooks import check, slurm
from airflow_provider_soperator.hooks.slurm import SlurmHook
from tests.integration.cluster import Cluster
from tests.integration.connections import WAYS, Connections
from tests.patience import PATIENCE


@contextlib.contextmanager
def listening(*, answers: bool) -> Iterator[int]:
    """A port where connections are accepted and nothing is ever said, or not even that, as behind a firewall."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100 if answers else 0))
        if not answers:
            # The kernel completes one connection too many, and drops what comes after it.
            for _ in range(2):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check waits for a slow machine, so that what it says is what it has found."""
    monkeypatch.setattr(check, "PATIENCE", 300)


@contextlib.contextmanager
def machine_without_slurm(key_file: str) -> Iterator[dict[str, Any]]:
    """A login by SSH where commands run, but Slurm's are not among them: this machine, with another PATH."""
    host_key = asyncssh.generate_private_key("ssh-ed25519")

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        shell = await asyncio.create_subprocess_exec(
            "/bin/sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        await process.redirect(stdin=shell.stdin, stdout=shell.stdout, stderr=shell.stderr)
        process.exit(await shell.wait())

    async def start() -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(public_key(key_file)),
            process_factory=serve,
            encoding=None,
        )

    with running_loop() as loop:
        acceptor = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE)
        yield {"port": acceptor.get_port(), "host_key": host_key.export_public_key().decode()}
        loop.call_soon_threadsafe(acceptor.close)


@contextlib.contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def public_key(key_file: str) -> str:
    return asyncssh.read_private_key(key_file).export_public_key().decode()


def new_key(folder: Path, passphrase: str | None = None) -> str:
    file = folder / "key"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(file, passphrase=passphrase, rounds=1)
    return str(file)


def refusal(hook: SlurmHook) -> str:
    """What is said of a connection that does not work."""
    works, said = hook.test_connection()
    assert not works, said
    assert said.endswith((".", "?"))
    return said


def test_a_connection_that_works_is_said_to(connections: Connections, cluster: Cluster) -> None:
    works, said = connections.login_node().test_connection()
    assert works
    version = cluster.run("sinfo", "--version").split()[1]
    assert said == f"Slurm {version}, cluster soperator, over ssh as root. The user may power, drain and reserve nodes."


@pytest.mark.parametrize("way", ["soperator_kubernetes", "soperator_rest", "as-pasted"])
def test_other_ways_work_too(way: str, connections: Connections) -> None:
    works, said = WAYS[way](connections).test_connection()
    assert works, said


def test_rest_alone_is_said_not_to_reach_files(connections: Connections, cluster: Cluster) -> None:
    rest = cluster.access["rest"]
    key = b64encode(Path(rest["jwt_key_file"]).read_bytes()).decode()
    works, said = connections.other(rest_url=rest["url"], login="root", jwt_secret=key).test_connection()
    assert works
    assert "Scripts and output of jobs cannot be reached this way: set ssh_conn_id" in said


def test_a_user_who_may_do_less_is_told_so(connections: Connections) -> None:
    works, said = connections.login_node(login="alice").test_connection()
    assert works
    assert "over ssh as alice. The user may not power, drain or reserve nodes" in said
    assert "`sacctmgr modify user alice set AdminLevel=Administrator`" in said


@pytest.mark.parametrize(
    ("changed", "cause", "remedy"),
    [
        ({"host": "no-such-host.invalid"}, "The host name is unknown", "Check the host of the connection."),
        ({"port": 9}, "Nothing listens there", "Check host and port, and whether the login node is up."),
        ({"login": "nobody-there"}, "The login was refused", "Check user and key of the connection."),
        ({"key_file": "/no/such/key"}, "The private key cannot be used", "Check key_file"),
        ({"key_file": None, "private_key": "no key"}, "The private key cannot be used", "or private_key"),
        ({"host_key": None}, "The host key is unknown", "put its key into the connection's host_key"),
        ({"host_key": "no key"}, "host_key is not a public key", "`ssh-keyscan HOST`"),
        ({"hostkey": "ssh-ed25519 AAAA"}, "Unknown extra field hostkey", "did you mean 'host_key'?"),
    ],
    ids=["host", "port", "user", "key-file", "private-key", "host-key-unknown", "host-key", "typo"],
)
def test_a_mistake_about_the_login_node_is_named(
    changed: dict[str, Any], cause: str, remedy: str, connections: Connections
) -> None:
    said = refusal(connections.login_node(**changed))
    assert cause in said
    assert remedy in said


def test_a_key_that_is_not_the_right_one_is_named(connections: Connections, tmp_path: Path) -> None:
    assert "The login was refused" in refusal(connections.login_node(key_file=new_key(tmp_path)))


def test_a_key_with_a_passphrase_is_named(connections: Connections, tmp_path: Path) -> None:
    key = new_key(tmp_path, "secret")
    assert "encrypted" in refusal(connections.login_node(key_file=key))
    wrong = {"private_key": Path(key).read_text(), "private_key_passphrase": "wrong"}
    assert "The private key cannot be used" in refusal(connections.login_node(key_file=None, **wrong))


def test_a_changed_host_key_is_named(connections: Connections, tmp_path: Path) -> None:
    said = refusal(connections.login_node(host_key=public_key(new_key(tmp_path))))
    assert "The host key has changed at " in said
    assert "Make sure that it is the right host" in said


@pytest.mark.parametrize("answers", [False, True], ids=["blackhole", "silent"])
def test_a_host_that_says_nothing_is_not_waited_for(
    answers: bool, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "CONNECT_TIMEOUT", 1)
    with listening(answers=answers) as port:
        said = refusal(connections.login_node(port=port))
        assert f"The host does not answer at 127.0.0.1:{port}. Check host, port and firewalls." in said


def test_a_cluster_that_never_answers_is_not_waited_for(
    connections: Connections, monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    monkeypatch.setattr(check, "PATIENCE", 1)
    cluster.fault("slurmctld-hung")
    said = refusal(connections.login_node())
    assert said.startswith("No answer within 1 s. Check whether slurmctld is up")


def test_a_machine_without_slurm_is_named(connections: Connections, cluster: Cluster) -> None:
    with machine_without_slurm(cluster.access["ssh"]["key_file"]) as there:
        said = refusal(connections.login_node(**there))
    assert "scontrol: not found. Slurm's commands are not on PATH" in said


@pytest.mark.parametrize("way", ["own-fields", "soperator_kubernetes", "soperator_rest"])
def test_a_slurm_that_is_down_is_named(way: str, connections: Connections, cluster: Cluster) -> None:
    cluster.fault("slurmctld-down")
    said = refusal(WAYS[way](connections))
    assert "Check whether slurmctld is up (`scontrol ping`)" in said


def test_accounting_that_is_down_is_named(connections: Connections, cluster: Cluster) -> None:
    cluster.fault("slurmdbd-down")
    assert "Check whether slurmdbd" in refusal(connections.login_node())


@pytest.mark.parametrize(("seconds", "words"), [(-1200, "ahead of"), (1200, "behind")])
def test_clocks_that_differ_are_named(
    seconds: int, words: str, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "time", SimpleNamespace(time=lambda: time.time() + seconds))
    began = time.monotonic()
    said = refusal(connections.login_node())
    told = re.match(rf"The cluster's clock is (\d+) s {words} this machine's. Have both keep time \(NTP\)", said)
    assert told, said
    # It is told in whole seconds, and some time after it was asked for.
    assert abs(int(told[1]) - abs(seconds)) <= 1 + time.monotonic() - began


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"ssh_conn_id": "nowhere"}, "There is no connection nowhere."),
        ({"kubernetes_conn_id": "nowhere"}, "There is no connection nowhere."),
        ({"ssh_conn_id": "kubernetes_default"}, "The connection has no host (connection kubernetes_default)."),
        ({"kubernetes_conn_id": "kubernetes_default", "namespace": "nowhere"}, "There is no namespace nowhere."),
        ({"kubernetes_conn_id": "kubernetes_default", "cluster": "other"}, "No pod in namespace soperator has the"),
        ({}, "The connection does not say how to reach the cluster"),
    ],
    ids=["ssh", "kubernetes", "no-host", "namespace", "cluster", "empty"],
)
def test_a_mistake_about_other_connections_is_named(
    fields: dict[str, str], cause: str, connections: Connections
) -> None:
    assert cause in refusal(connections.other(**fields))


def test_a_kubernetes_token_that_is_refused_is_named(
    connections: Connections, cluster: Cluster, tmp_path: Path
) -> None:
    facts = cluster.access["kubernetes"]
    (tmp_path / "config").write_text(Path(facts["kubeconfig"]).read_text().replace(facts["token"], "wrong"))
    kubernetes = connections.define("kubernetes", kube_config_path=str(tmp_path / "config"))
    said = refusal(connections.other(kubernetes_conn_id=kubernetes))
    assert "The Kubernetes API refused the token" in said
    assert "Renew the credentials of the Kubernetes connection." in said


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        (
            {"jwt_secret": "dGhlIGtleSBvZiBxdWl0ZSBhbm90aGVyIGNsdXN0ZXIu"},
            "slurmrestd refused the token. See whether its key is the cluster's",
        ),
        ({"jwt_secret": "%"}, "jwt_secret is not in base64"),
        ({"jwt_token": "no token"}, "slurmrestd refused the token. It is not a JWT; `scontrol token` makes one."),
        ({"rest_url": "http://127.0.0.1:9", "jwt_token": "a"}, "Nothing listens at http://127.0.0.1:9"),
        ({"rest_url": "http://no-such-host.invalid", "jwt_token": "a"}, "The host name in"),
    ],
    ids=["key", "base64", "token", "port", "host"],
)
def test_a_mistake_about_slurmrestd_is_named(
    fields: dict[str, str], cause: str, connections: Connections, cluster: Cluster
) -> None:
    url = cluster.access["rest"]["url"]
    assert cause in refusal(connections.other(**{"rest_url": url, "login": "root", **fields}))
