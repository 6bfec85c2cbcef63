"""A kubeconfig that is only on the machine where Terraform ran."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from airflow_provider_soperator.hooks.cluster import SoperatorClusterHook
from airflow_provider_soperator.transports.transport_errors import ConnectFailed

#: As ``nebius mk8s cluster get-credentials`` writes it.
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: no-such-nebius}}}]
contexts: [{name: nebius-research-slurm, context: {cluster: c, user: u}}]
"""


@pytest.mark.parametrize(
    ("context", "cause", "remedy"),
    [
        ("nebius-other-slurm", "lacks what the Kubernetes connection names .*nebius-other-slurm", "as kube_config"),
        ("nebius-research-slurm", "has no program no-such-nebius", "and the triggerer"),
    ],
    ids=["context", "program"],
)
def test_what_another_machine_has_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str, cause: str, remedy: str
) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    extra = {"kube_config_path": str(tmp_path / "config"), "cluster_context": context}
    monkeypatch.setenv("AIRFLOW_CONN_MADE", json.dumps({"conn_type": "kubernetes", "extra": extra}))

    async def connect() -> None:
        async with SoperatorClusterHook("made").async_client():
            pass

    with pytest.raises(ConnectFailed, match=f"{socket.gethostname()} {cause}.*: .*{remedy}"):
        asyncio.run(connect())
