"""The example that makes a cluster, in Airflow's processes; and its API, through which connections are written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_soperator.hooks.airflow_api import AirflowApiHook
from airflow_provider_soperator.provisioning.spec import Connections
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, ConnectRefused
from sandbox.airflow.beside import DAGS
from sandbox.settings import RELEASES
from tests.airflow.stack import Stack
from tests.integration.cluster import Cluster
from tests.integration.provisioning import destroy, provision, recipe
from tests.integration.terraforming import needs_terraform


@pytest.fixture
def example(stack: Stack, slurm: Cluster) -> Any:
    slurm.reset()
    shutil.copytree(DAGS / "provision_cluster", stack.dags / "provision_cluster")
    source = (DAGS / "provision_cluster.py").read_text()
    return stack.add_source("provision_cluster", source.replace("4.1.7", RELEASES[slurm.settings.soperator]))


@pytest.mark.terraform
@pytest.mark.skipif(needs_terraform[0].args[0], reason="there is no terraform on PATH")
def test_a_plan_is_agreed_to_applied_and_tried(stack: Stack, slurm: Cluster, example: Any) -> None:
    run = example.trigger(name="research", size=4)
    asked = run.answer("agree", "Approve")
    assert asked["subject"] == "Cluster research: 6 to create"
    assert "- create module.k8s.terraform_data.this\n" in asked["body"]
    run.wait("provision", "success")
    run.wait("verify", "success")
    made = run.xcom("provision")
    assert made["done"] == "6 added, 0 changed, 0 destroyed"
    assert made["tried"] == {"worker": "worker-0", "worker-cpu": "worker-cpu-0"}
    log = run.wait_log("provision", "worker-cpu: worker-cpu-0")
    assert "created module.slurm.terraform_data.this" in log


def test_connections_are_written_and_deleted(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_API", json.dumps({"conn_type": "http", "host": stack.api.url}))
    # As a task sees it, whose fields stay.
    monkeypatch.setenv("AIRFLOW_CONN_WRITTEN", json.dumps({"conn_type": "ssh", "extra": {"key_file": "/old"}}))
    api = AirflowApiHook("airflow_api")
    api.check()
    body = {"connection_id": "written", "conn_type": "ssh", "host": "203.0.113.7", "login": "root", "extra": {}}
    assert api.put_connection(body)
    assert not api.put_connection({**body, "host": "203.0.113.8", "extra": {"key_file": "/k"}})
    found = stack.call("GET", "/connections/written")
    assert (found["host"], json.loads(found["extra"])) == ("203.0.113.8", {"key_file": "/k"})
    assert api.delete_connection("written")
    assert not api.delete_connection("written")


def test_what_is_sent_is_not_in_an_error(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_API", json.dumps({"conn_type": "http", "host": stack.api.url}))
    body = {"connection_id": "odd", "extra": {"kube_config": "not-to-be-told"}}
    with pytest.raises(ConnectFailed, match=r"add the connection odd .422: body.conn_type: ") as refused:
        AirflowApiHook("airflow_api").put_connection(body)
    assert "not-to-be-told" not in str(refused.value)


@pytest.mark.terraform
@pytest.mark.skipif(needs_terraform[0].args[0], reason="there is no terraform on PATH")
def test_connections_to_a_new_cluster_come_and_go_with_it(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_API", json.dumps({"conn_type": "http", "host": stack.api.url}))
    ids = Connections(
        slurm="new_slurm",
        ssh="new_ssh",
        airflow_conn_id="airflow_api",
        ssh_extra={"key_file": "/etc/airflow/id_ed25519"},
    )
    provision(recipe(tmp_path), connections=ids)
    ssh = stack.call("GET", "/connections/new_ssh")
    # Where the recipe, which has no outputs for it, keeps the address.
    assert (ssh["host"], ssh["login"]) == ("203.0.113.7", "root")
    assert json.loads(stack.call("GET", "/connections/new_slurm")["extra"])["ssh_conn_id"] == "new_ssh"
    destroy(recipe(tmp_path), connections=ids, end_jobs=True, remove_connections=True)
    left = {one["connection_id"] for one in stack.call("GET", "/connections")["connections"]}
    assert not {"new_slurm", "new_ssh"} & left


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"password": "no-token-at-all"}, ConnectFailed, "did not list connections .40[13].*a new token"),
        ({"host": "http://127.0.0.1:9"}, ConnectRefused, "does not answer"),
    ],
)
def test_an_api_that_cannot_be_used(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], error: type[Exception], said: str
) -> None:
    right = {"conn_type": "http", "host": stack.api.url}
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_API", json.dumps({**right, **changed}))
    with pytest.raises(error, match=said):
        AirflowApiHook("airflow_api").check()
