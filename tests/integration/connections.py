"""Airflow connections to a sandbox: right ones over every way, and those with something wrong in them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.hooks.slurm import SlurmHook
from tests.integration.cluster import Cluster


class Connections:
    """Airflow connections of one test, all under names that no other test has: hooks may remember them by name."""

    _numbers = itertools.count()

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.cluster = cluster
        for variable, uri in cluster.access["airflow_connections"].items():
            monkeypatch.setenv(variable, uri)

    def add(self, conn_id: str, uri: str) -> None:
        self._monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", uri)

    def define(self, conn_type: str = "soperator", **fields: Any) -> str:
        own = {name: fields.pop(name) for name in ("host", "port", "login", "password") if name in fields}
        conn_id = f"hook_test_{next(self._numbers)}"
        said = {"conn_type": conn_type, **own, "extra": fields}
        self.add(conn_id, json.dumps(said))
        return conn_id

    def login_node(self, **fields: Any) -> SlurmHook:
        """The sandbox's login node, with some fields changed, or left out where they are None."""
        ssh = self.cluster.access["ssh"]
        right = {name: ssh[name] for name in ("host", "port", "key_file", "host_key")} | {"login": "root"}
        # A key that the developer's agent has must not let them in.
        said = {**right, "look_for_keys": "false", **fields}
        return SlurmHook(self.define(**{name: value for name, value in said.items() if value is not None}))

    def viewer(self) -> str:
        """A connection to the sandbox's Kubernetes of somebody who may only read."""
        config = json.loads(self.cluster.kubectl("config", "view", "--raw", "--output=json"))
        config["users"][0]["user"]["token"] = self.cluster.access["kubernetes"]["viewer_token"]
        return self.define("kubernetes", kube_config=json.dumps(config))

    def other(self, **fields: Any) -> SlurmHook:
        return SlurmHook(self.define(**fields))


WAYS: dict[str, Callable[[Connections], SlurmHook]] = {
    "own-fields": lambda connections: connections.login_node(),
    "form": lambda connections: connections.login_node(ssh_conn_id="", private_key="", namespace="", jwt_token=""),
    "as-pasted": lambda connections: connections.login_node(key_file=None, **pasted(connections.cluster.access["ssh"])),
    "ssh_conn_id": lambda connections: connections.other(ssh_conn_id="ssh_default"),
    "kubernetes_conn_id": lambda connections: connections.other(kubernetes_conn_id="kubernetes_default"),
    "cluster": lambda connections: connections.other(kubernetes_conn_id="kubernetes_default", cluster="soperator"),
    "soperator_kubernetes": lambda connections: SlurmHook("soperator_kubernetes"),
    "soperator_rest": lambda connections: SlurmHook("soperator_rest"),
    "rest-tokens-over-ssh": lambda connections: connections.other(
        host=connections.cluster.access["rest"]["url"], ssh_conn_id="ssh_default"
    ),
    "rest-tokens-over-kubernetes": lambda connections: connections.other(
        rest_url=connections.cluster.access["rest"]["url"], kubernetes_conn_id="kubernetes_default", login="root"
    ),
}


def pasted(ssh: dict[str, Any]) -> dict[str, str]:
    """Keys as the form has them: a private key without its lines, a host key with its host."""
    private_key = "".join(Path(ssh["key_file"]).read_text().splitlines())
    return {"private_key": private_key, "host_key": f"[{ssh['host']}]:{ssh['port']} {ssh['host_key']}"}
