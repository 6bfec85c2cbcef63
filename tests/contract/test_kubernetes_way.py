"""Over Kubernetes: which pod is taken, what happens when it goes, and what is said when there is no way in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kubernetes.client
import pytest

from airflow_provider_soperator.slurm.requests.commands import TIMEOUT
from airflow_provider_soperator.transports.kubernetes import LOGIN, KubernetesTransport, PodChoice, login_pods
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, ConnectionLost, ConnectRefused
from sandbox.settings import NAMESPACE, USER
from tests.contract.transports import (
    AsyncWay,
    Run,
    Way,
    kubernetes_client,
    outcomes,
)
from tests.integration.cluster import Cluster, is_ready

HOSTNAME = Run(("hostname",))
LOGIN_POD = "login-0"

#: Opens a way with these settings, with a client that the last argument may change before it is used.
Reach = Callable[..., Way]


@pytest.fixture
def reach(cluster: Cluster) -> Iterator[Reach]:
    opened: list[Way] = []

    def reach(
        namespace: str = NAMESPACE,
        choice: PodChoice = LOGIN,
        change: Callable[[Any], None] = lambda client: None,
    ) -> Way:
        async def connect() -> Any:
            client = await kubernetes_client(cluster)
            change(client)
            return client

        opened.append(AsyncWay(lambda: KubernetesTransport(connect, namespace, choice)))
        return opened[-1]

    yield reach
    for way in opened:
        way.close()


@pytest.fixture
def login_pod(cluster: Cluster) -> Iterator[LoginPod]:
    pod = LoginPod(cluster)
    yield pod
    pod.create()


class LoginPod:
    """Deletes the login pod and makes it again: in the sandbox no controller does."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = cluster.pod(LOGIN_POD)

    def delete(self) -> None:
        self._cluster.kubernetes.delete_namespaced_pod(LOGIN_POD, NAMESPACE)

    def create(self) -> None:
        if self._cluster.pod(LOGIN_POD) is None:
            metadata = kubernetes.client.V1ObjectMeta(name=LOGIN_POD, labels=self._before.metadata.labels)
            body = kubernetes.client.V1Pod(metadata=metadata, spec=self._before.spec)
            body.spec.node_name = None
            self._cluster.kubernetes.create_namespaced_pod(NAMESPACE, body)
        self._cluster.wait("the login pod is Ready", lambda: is_ready(self._cluster.pod(LOGIN_POD)))


def shell_of(way: Way) -> str:
    """The process id of the shell that runs the commands, in its pod."""
    return way.ask(Run(("sh", "-c", "echo $PPID"))).stdout.decode().strip()


def set_token(client: Any, token: str) -> None:
    client.configuration.api_key = dict.fromkeys(client.configuration.api_key, f"Bearer {token}")
    client.configuration.refresh_api_key_hook = None


def test_a_login_is_a_user_of_the_jail_as_over_ssh(reach: Reach) -> None:
    said = reach(choice=login_pods("", USER)).ask(Run(("sh", "-c", 'id -un; id -Gn; pwd; echo "$USER" "$HOME"')))
    assert said.stdout.decode().splitlines() == [USER, USER, f"/home/{USER}", f"{USER} /home/{USER}"]


def test_a_deleted_pod_is_looked_for_again(reach: Reach, login_pod: LoginPod, cluster: Cluster) -> None:
    way = reach()
    shell = shell_of(way)
    login_pod.delete()
    # As the kubelet does; the sandbox leaves the processes of a deleted login pod alone.
    cluster.run("kill", "-KILL", shell)
    with pytest.raises(ConnectionLost):
        way.ask(HOSTNAME)
    # The controller's pod is there, but it has a root of its own.
    with pytest.raises(ConnectRefused, match=r"has the labels app\.kubernetes\.io/component=login, though .* such as"):
        way.ask(HOSTNAME)
    login_pod.create()
    assert way.ask(HOSTNAME).stdout == b"login-0\n"
    assert shell_of(way) != shell


def test_one_shell_that_breaks_leaves_the_commands_of_others_alone(reach: Reach) -> None:
    breaks = Run(("sh", "-c", "sleep 0.3; kill -9 $PPID"))
    lost, said = outcomes(reach(), breaks, Run(("sh", "-c", "sleep 0.6; echo on")))
    assert isinstance(lost, ConnectionLost)
    assert said == b"on\n"


def test_a_pod_that_is_not_ready_may_be_later(reach: Reach, login_pod: LoginPod, cluster: Cluster) -> None:
    status = {"status": {"conditions": [{"type": "Ready", "status": "False", "message": "sshd starts"}]}}
    odd = {"metadata": {"name": "odd", "labels": {"app": "odd"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    odd["spec"]["nodeSelector"] = {"no": "such"}  # type: ignore[index]
    cluster.kubernetes.create_namespaced_pod(NAMESPACE, odd)
    try:
        cluster.kubernetes.patch_namespaced_pod_status("odd", NAMESPACE, status)
        with pytest.raises(ConnectRefused, match=r"no login pod is Ready in namespace soperator: odd .+pod odd"):
            reach(choice=PodChoice("app=odd", "a")).ask(HOSTNAME)
    finally:
        cluster.kubernetes.delete_namespaced_pod("odd", NAMESPACE)


def test_a_wrong_token_is_said_to_be_refused_and_a_new_one_is_taken(reach: Reach) -> None:
    tokens = ["wrong"]
    way = reach(change=lambda client: set_token(client, tokens.pop()) if tokens else None)
    with pytest.raises(ConnectFailed, match=r"refused the token .*: renew the credentials"):
        way.ask(HOSTNAME)
    assert way.ask(HOSTNAME).stdout == b"login-0\n"


def test_a_token_that_expires_is_replaced_for_the_next_shell(reach: Reach, cluster: Cluster) -> None:
    clients: list[Any] = []
    way = reach(change=clients.append)
    assert way.ask(HOSTNAME).status == 0
    set_token(clients[0], "expired")
    assert way.ask(HOSTNAME).status == 0
    cluster.run("rm", "-f", "/root/first", "/root/second")
    # Each waits for the other, so that they need a shell each.
    meets = "touch /root/{}; until test -e /root/{}; do sleep 0.1; done; hostname"
    pair = (("first", "second"), ("second", "first"))
    both = [Run(("sh", "-c", meets.format(one, other)), timeout=TIMEOUT) for one, other in pair]
    assert outcomes(way, *both) == [b"login-0\n"] * 2
    assert way.ask(HOSTNAME).stdout == b"login-0\n"
    assert len(clients) == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"namespace": "nowhere"}, "there is no namespace nowhere: set the namespace"),
        (
            {"choice": login_pods("other")},
            "no pod in namespace soperator has the labels .*instance=other: see `kubectl -n soperator get pods",
        ),
        (
            {"choice": PodChoice(LOGIN.labels, "nothing")},
            r"pod login-0 has no container nothing, only sshd",
        ),
        (
            {"choice": PodChoice(LOGIN.labels, "sshd", ("chroot", "/mnt/nowhere", "/bin/sh"))},
            r"cannot start a shell in container sshd of pod login-0 \(chroot: .*No such file or directory",
        ),
        (
            {"choice": PodChoice(LOGIN.labels, "sshd", ("/bin/no-such-shell",))},
            r"cannot start a shell in container sshd of pod login-0 \(.*no-such-shell.*see whether",
        ),
        (
            {"choice": login_pods("", "ann")},
            r"pod login-0 \(runuser: user ann does not exist.*see whether `chroot /mnt/jail env -i .+ runuser ann ",
        ),
    ],
    ids=["namespace", "cluster", "container", "root", "shell", "user"],
)
def test_what_is_wrong_with_the_settings_is_said(reach: Reach, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConnectFailed, match=words) as caught:
        reach(**settings).ask(HOSTNAME)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("https://127.0.0.1:9", "does not answer"),
        # Where no name server answers, nobody knows whether there is such a host.
        ("https://no-such-host.invalid", "is unknown|does not answer"),
    ],
    ids=["port", "name"],
)
def test_an_api_that_cannot_be_reached_is_said_to_be(reach: Reach, host: str, words: str) -> None:
    def change(client: Any) -> None:
        client.configuration.host = host
        # It would load the old host again.
        client.configuration.refresh_api_key_hook = None

    with pytest.raises(ConnectFailed, match=words):
        reach(change=change).ask(HOSTNAME)


def test_an_api_that_nobody_vouches_for_is_not_trusted(reach: Reach) -> None:
    def change(client: Any) -> None:
        client.configuration.ssl_ca_cert = None
        client.rest_client = type(client.rest_client)(client.configuration)

    with pytest.raises(ConnectFailed, match="is not trusted"):
        reach(change=change).ask(HOSTNAME)


@pytest.mark.parametrize("call", ["GET pods/", "GET pods/*/exec"], ids=["list", "exec"])
def test_an_api_that_hangs_is_not_waited_for(
    reach: Reach, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    cluster.fault("api", api="kubernetes", effect="hang", matching=call, count=0)
    way = reach()
    with monkeypatch.context() as brief:
        brief.setattr("airflow_provider_soperator.transports.kubernetes.API_TIMEOUT", 1)
        with pytest.raises(ConnectFailed, match="does not answer"):
            way.ask(HOSTNAME)
    cluster.fault("clear")
    assert way.ask(HOSTNAME).stdout == b"login-0\n"


@pytest.mark.parametrize("call", ["GET pods/", "GET pods/*/exec"], ids=["list", "exec"])
def test_an_api_that_stumbles_once_is_asked_again(reach: Reach, cluster: Cluster, call: str) -> None:
    cluster.fault("api", api="kubernetes", effect="error", matching=call, count=1)
    assert reach().ask(HOSTNAME).stdout == b"login-0\n"
