"""Connections to a cluster that was made, and plans that were agreed to."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from airflow_provider_soperator.hooks.airflow_api import AirflowApiHook
from airflow_provider_soperator.provisioning.fields import NotKnownYet, SpecMistake
from airflow_provider_soperator.provisioning.provisioner import ProvisioningPlan, Reached
from airflow_provider_soperator.provisioning.spec import Connections
from airflow_provider_soperator.transports.transport_errors import ConnectFailed


def written(reached: Reached, **wanted: Any) -> dict[str, Any]:
    made = reached.connections(Connections(airflow_conn_id="airflow_api", **wanted), "soperator")
    return {one.pop("connection_id"): one for one in made}


def test_slurm_goes_through_the_others() -> None:
    found = written(
        Reached(login="203.0.113.7", context="nebius-research-slurm"),
        slurm="research",
        ssh="research_ssh",
        kubernetes="research_kubernetes",
        ssh_extra={"key_file": "/etc/airflow/id_ed25519"},
    )
    assert found == {
        "research_kubernetes": {
            "conn_type": "kubernetes",
            "extra": {"cluster_context": "nebius-research-slurm", "namespace": "soperator"},
        },
        "research_ssh": {
            "conn_type": "ssh",
            "host": "203.0.113.7",
            "login": "root",
            "extra": {"key_file": "/etc/airflow/id_ed25519"},
        },
        "research": {
            "conn_type": "soperator",
            "extra": {
                "ssh_conn_id": "research_ssh",
                "kubernetes_conn_id": "research_kubernetes",
                "namespace": "soperator",
            },
        },
    }


def test_fields_that_a_person_has_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"job_link": "https://portal/{job_id}", "ssh_conn_id": "old", "jwt_secret": "s", "namespace": "old"}
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        said = json.loads(request.content)
        sent.append(json.loads(said["extra"]))
        return httpx.Response(409 if request.method == "POST" else 200)

    def client() -> httpx.Client:
        return httpx.Client(base_url="http://airflow", transport=httpx.MockTransport(answer))

    api = AirflowApiHook("airflow_api")
    monkeypatch.setattr(api, "_client", client)
    monkeypatch.setattr(api, "get_connection", lambda conn_id: SimpleNamespace(extra_dejson=there))
    wanted = Connections(slurm="research", kubernetes="k", airflow_conn_id="api", slurm_extra={"cluster": "physics"})
    k8s, slurm = Reached(context="c").connections(wanted, "soperator")
    assert not api.put_connection(slurm)
    ours = {"kubernetes_conn_id": "k", "namespace": "soperator", "cluster": "physics"}
    assert sent == [ours, {"job_link": "https://portal/{job_id}", "jwt_secret": "s", **ours}]
    api.put_connection(k8s)
    assert sent[2] == sent[3] == {"cluster_context": "c", "namespace": "soperator"}


def test_a_host_that_is_no_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_API", json.dumps({"conn_type": "http", "host": "http://airflow:port"}))
    with pytest.raises(ConnectFailed, match=r"\(Invalid port: 'port'\): correct the host of the connection"):
        AirflowApiHook("airflow_api").check()


def test_a_context_on_one_machine_is_not_looked_for_in_a_kubeconfig_that_is_given() -> None:
    given = {"kube_config": "apiVersion: v1"}
    found = written(Reached(context="c"), kubernetes="research", kubernetes_extra=given)
    assert found["research"]["extra"] == {**given, "namespace": "soperator"}


def test_a_kubeconfig_is_better_than_a_context() -> None:
    found = written(Reached(kubeconfig="apiVersion: v1", context="c"), kubernetes="research")
    assert found["research"]["extra"] == {"kube_config": "apiVersion: v1", "namespace": "soperator"}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"ssh": "a"}, "the address of the login nodes is not known, so a cannot be written"),
        ({"kubernetes": "a"}, "the Kubernetes API for a is not known"),
        ({"slurm": "a"}, "the connection a to Slurm needs another one"),
        ({}, "set slurm, kubernetes or ssh"),
    ],
)
def test_what_cannot_be_written(wanted: dict[str, str], said: str) -> None:
    with pytest.raises(SpecMistake, match=said):
        written(Reached(), **wanted)


def test_an_address_that_comes_by_itself_is_left_to_another_try() -> None:
    with pytest.raises(NotKnownYet, match="the login nodes have no address yet, so a cannot be written"):
        written(Reached(login_comes=True), ssh="a")
    assert written(Reached(login="203.0.113.7", login_comes=True), ssh="a")["a"]["host"] == "203.0.113.7"


AGREED = {"changes": {"a": "create", "b": "update", "r": "replace"}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"a": "create"},
        {"a": "replace"},
        {"a": "create", "b": "update"},
        {"r": "replace"},
        {"r": "create"},
        {"r (deposed object 1f)": "delete"},
        {"output address": "update"},
    ],
)
def test_no_more_than_was_agreed_to(changes: dict[str, str]) -> None:
    ProvisioningPlan("", changes).check_agreed(AGREED)


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"c": "create"}, r"c \(create\)"),
        ({"b": "replace"}, r"b \(replace\)"),
        ({"a": "delete"}, r"a \(delete\)"),
        ({"r": "delete"}, r"r \(delete\)"),
        ({"b (deposed object 1f)": "delete"}, r"b \(deposed object 1f\) \(delete\)"),
    ],
)
def test_more_than_was_agreed_to(changes: dict[str, str], more: str) -> None:
    with pytest.raises(SpecMistake, match=f"has changed since it was approved: {more}; plan again"):
        ProvisioningPlan("", changes).check_agreed(AGREED)


@pytest.mark.parametrize("agreed", ["yes", True, {}, [], None])
def test_what_is_no_consent(agreed: Any) -> None:
    with pytest.raises(SpecMistake, match="must be the result of a task with plan_only=True"):
        ProvisioningPlan("").check_agreed(agreed)
