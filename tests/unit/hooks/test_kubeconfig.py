"""A login that fails: a kubeconfig of the machine where Terraform ran, and plugins that bring no credentials."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import yaml
from async_timeout import timeout

from airflow_provider_soperator.client.pace import may_pass
from airflow_provider_soperator.hooks import cluster
from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.hooks.cluster_clients import ShiftClients
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, Unreachable
from tests.patience import PATIENCE

#: As ``nebius mk8s cluster get-credentials`` writes it.
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: no-such-nebius}}}]
contexts: [{name: nebius-research-slurm, context: {cluster: c, user: u}}]
"""
Connect = Callable[[], AbstractAsyncContextManager[object]]
CLIENT = SoperatorClusterHook("made").async_client


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a connection of this user, or of one with this plugin."""

    def write(context: str = "nebius-research-slurm", plugin: Sequence[str] = ()) -> None:
        config = yaml.safe_load(KUBECONFIG)
        if plugin:
            config["users"][0]["user"]["exec"] |= {"command": plugin[0], "args": list(plugin[1:])}
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        extra = {"kube_config_path": str(tmp_path / "config"), "cluster_context": context}
        monkeypatch.setenv("AIRFLOW_CONN_MADE", json.dumps({"conn_type": "kubernetes", "extra": extra}))

    return write


async def opened(connect: Connect = CLIENT) -> None:
    async with connect():
        pass


@pytest.mark.parametrize(
    ("context", "cause", "remedy"),
    [
        ("nebius-other-slurm", "lacks what the Kubernetes connection names .*nebius-other-slurm", "as kube_config"),
        ("nebius-research-slurm", "has no program no-such-nebius", "and the triggerer"),
    ],
    ids=["context", "program"],
)
def test_what_another_machine_has_is_named(write: Callable[..., None], context: str, cause: str, remedy: str) -> None:
    write(context)
    with pytest.raises(ConnectFailed, match=f"{socket.gethostname()} {cause}.*: .*{remedy}"):
        asyncio.run(opened())


def test_a_provider_that_mixes_up_connections_is_refused(
    write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load(hook: object, loading: object) -> None:
        """As before 10.18: into the default of the process."""

    write()
    monkeypatch.setattr(cluster, "_load", load)
    with pytest.raises(ConnectFailed, match=r"cncf-kubernetes is older than 10\.18, .*: `pip install"):
        asyncio.run(opened())


def test_a_plugin_that_is_missing_is_no_silent_api(write: Callable[..., None]) -> None:
    write(plugin=["/no/such/nebius"])
    with pytest.raises(ConnectFailed, match="has no file /no/such/nebius, from which") as failed:
        asyncio.run(opened())
    assert not failed.value.passing


@pytest.mark.parametrize(
    "connect",
    [
        CLIENT,
        lambda: SoperatorClusterHook("made").objects(max_age=1),
        lambda: ShiftClients().kubernetes("made"),
    ],
    ids=["client", "shared", "shift"],
)
def test_a_plugin_that_fails_may_work_again(write: Callable[..., None], connect: Connect) -> None:
    write(plugin=["sh", "-c", "echo the kube-config is away >&2; exit 3"])
    with pytest.raises(
        Unreachable, match=r"by the connection made: the plugin .* failed \(.* returned 3. the kube-config is away\)"
    ) as failed:
        asyncio.run(opened(connect))
    assert may_pass(failed.value)


def test_a_plugin_that_hangs_holds_up_no_other_login(
    write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(plugin=["sleep", "1000"])
    monkeypatch.setattr(cluster, "_LOGIN", 0.1)
    with pytest.raises(Unreachable, match=r"of the connection made did not come within 0\.1 s: see whether the plugin"):
        asyncio.run(opened())
    assert not cluster._LOADING["made"].locked()


def test_a_plugin_ends_with_the_login(write: Callable[..., None], tmp_path: Path) -> None:
    started = tmp_path / "pid"
    write(plugin=["sh", "-c", f"echo $$ > {started}.new; mv {started}.new {started}; exec sleep 1000"])

    async def main() -> None:
        login = asyncio.ensure_future(opened())
        async with timeout(PATIENCE):
            while not started.exists():
                await asyncio.sleep(0.01)
            login.cancel()
            await asyncio.wait([login])
            while Path("/proc", started.read_text().strip()).exists():
                await asyncio.sleep(0.01)

    asyncio.run(main())
