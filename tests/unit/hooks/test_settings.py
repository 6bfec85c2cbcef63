"""A connection is read the same however it is written, and what cannot work is refused by the field's name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.forms import SOPERATOR
from airflow_provider_soperator.hooks.slurm import Settings, SlurmHook, read


def settings(uri: str = "", **fields: Any) -> Settings:
    """Of a connection by its URI, or by its fields; what is no field of all connections goes into the extra."""
    if uri:
        connection = Connection.from_uri(uri, conn_id="mine")
    else:
        own = {name: fields.pop(name) for name in ("host", "port", "login", "password") if name in fields}
        connection = Connection(conn_id="mine", conn_type="soperator", extra=json.dumps(fields), **own)
    return read(connection, connection.extra_dejson)


TOKEN = {"jwt_token": "a.b.c"}


@pytest.mark.parametrize(
    ("said", "transport", "expected"),
    [
        ({"host": "login"}, "ssh", {"ssh_conn_id": "mine", "files_via": ""}),
        ({"ssh_conn_id": "other"}, "ssh", {"ssh_conn_id": "other"}),
        ({"kubernetes_conn_id": "k"}, "kubernetes", {"kubernetes_conn_id": "k", "namespace": "soperator"}),
        ({"ssh_conn_id": "other", "kubernetes_conn_id": "k"}, "ssh", {}),
        ({"host": "http://rest:6820", **TOKEN}, "rest", {"rest_url": "http://rest:6820", "files_via": ""}),
        ({"host": "https://rest/", "port": 6820, **TOKEN}, "rest", {"rest_url": "https://rest:6820"}),
        ({"host": "https://proxy/slurm", "port": 8443, **TOKEN}, "rest", {"rest_url": "https://proxy:8443/slurm"}),
        ({"rest_url": "http://rest/", "port": 22, "host": "login", **TOKEN}, "rest", {"rest_url": "http://rest"}),
        ({"rest_url": "http://rest", "host": "login"}, "rest", {"files_via": "ssh", "ssh_conn_id": "mine"}),
        ({"rest_url": "http://rest", "ssh_conn_id": "other", "login": "me"}, "rest", {"user": "me"}),
        ({"ssh_conn_id": "other", "no_host_key_check": False}, "ssh", {"ssh_conn_id": "other"}),
        ({"rest_url": "http://rest", "kubernetes_conn_id": "k"}, "rest", {"files_via": "kubernetes"}),
        ({"transport": "native"}, "native", {"files_via": ""}),
        ({"transport": "local"}, "local", {}),
        ({"transport": "kubernetes", "ssh_conn_id": "s", "kubernetes_conn_id": "k"}, "kubernetes", {"files_via": ""}),
        ({"transport": "kubernetes", "kubernetes_conn_id": "k", "files_via": "local"}, "kubernetes", {}),
    ],
)
def test_the_way_follows_from_what_is_set(said: dict[str, Any], transport: str, expected: dict[str, str]) -> None:
    found = settings(**said)
    assert found.transport == transport
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("said", "elsewhere"),
    [
        ({"host": "login"}, False),
        ({"host": "login", "files_via": "ssh"}, False),
        ({"host": "login", "files_via": "local"}, True),
        ({"host": "http://rest", "files_via": "none", **TOKEN}, False),
        ({"host": "http://rest", "ssh_conn_id": "other"}, True),
    ],
)
def test_files_go_another_way_only_if_they_must(said: dict[str, Any], elsewhere: bool) -> None:
    assert settings(**said).files_elsewhere is elsewhere


def test_a_connection_of_another_type_is_refused() -> None:
    with pytest.raises(ConnectionMistake, match="mine is of type nebius: name a soperator one"):
        settings("nebius://:token@api.example.com")


@pytest.mark.parametrize("blank", [None, "", " "])
def test_fields_that_a_form_leaves_blank_say_nothing(blank: str | None) -> None:
    fields = {field.name: blank for field in SOPERATOR.fields}
    found = settings(**fields | {"kubernetes_conn_id": " k "})
    assert (found.transport, found.kubernetes_conn_id, found.namespace) == ("kubernetes", "k", "soperator")
    with pytest.raises(ConnectionMistake, match="does not say how to reach the cluster"):
        settings(**fields)


def test_a_uri_says_the_same() -> None:
    found = settings("soperator://me@http%3A%2F%2Frest%3A6820/?jwt_token=a.b.c&namespace=mine")
    assert (found.transport, found.rest_url, found.user, found.namespace) == ("rest", "http://rest:6820", "me", "mine")


def test_a_flag_may_be_a_text() -> None:
    key = "host_key=ssh-ed25519+AAAA"
    assert settings(f"soperator://login?{key}&no_host_key_check=false").transport == "ssh"
    with pytest.raises(ConnectionMistake, match="host_key and no_host_key_check are both set"):
        settings(f"soperator://login?{key}&no_host_key_check=True")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"transport": "telnet"}, "transport is 'telnet', but can be ssh, kubernetes, rest, native, local"),
        ({"host": "login", "files_via": "nfs"}, "files_via is 'nfs', but can be ssh, kubernetes, local, none"),
        ({"transport": "ssh"}, "transport is ssh, which needs a host, or ssh_conn_id"),
        ({"transport": "kubernetes", "host": "login"}, "transport is kubernetes, which needs kubernetes_conn_id"),
        ({"transport": "rest", "host": "login"}, "transport is rest, which needs rest_url, or an http"),
        ({"transport": "local", "files_via": "ssh"}, "files_via is ssh, which needs a host"),
        ({"host": "http://rest"}, "slurmrestd wants a token: set jwt_secret or jwt_token"),
        ({"host": "http://rest", "jwt_secret": "eA=="}, "a token is made for a user: set the login"),
        ({"host": "http://rest", "rest_url": "http://other"}, "rest_url and an http.s. host are both set"),
        ({"host": "login", "ssh_conn_id": "other"}, "ssh_conn_id and a login node as host are both set"),
        ({"ssh_conn_id": "other", "password": "p"}, "ssh_conn_id and a password are both set"),
        ({"ssh_conn_id": "other", "port": 2222}, "ssh_conn_id and a port are both set"),
        ({"ssh_conn_id": "other", "login": "me"}, "ssh_conn_id and a login are both set"),
        ({"ssh_conn_id": "other", "key_file": "/k"}, "ssh_conn_id and key_file are both set"),
        ({"ssh_conn_id": "other", "private_key": "k"}, "ssh_conn_id and private_key are both set"),
        ({"ssh_conn_id": "other", "private_key_passphrase": "p"}, "ssh_conn_id and private_key_passphrase are both"),
        ({"ssh_conn_id": "other", "host_key": "k"}, "ssh_conn_id and host_key are both set"),
        ({"ssh_conn_id": "other", "no_host_key_check": True}, "ssh_conn_id and no_host_key_check are both set"),
        ({"host": "http://rest", **TOKEN, "jwt_secret": "eA=="}, "jwt_token and jwt_secret are both set"),
        ({"host": "login", "key_file": "/k", "private_key": "k"}, "key_file and private_key are both set"),
        ({"host": "login", "keyfile": "/k"}, "unknown extra field keyfile: did you mean 'key_file'?"),
        ({"host": "login", "namespaces": "x"}, "did you mean 'namespace'?"),
        (
            {"host": "login", "proxy_jump": "bastion"},
            "unknown extra field proxy_jump: for SSH set ProxyCommand in ~",
        ),
        (
            {"host": "login", "ssh_proxy_cmd": "ssh bastion"},
            "unknown extra field ssh_proxy_cmd: for SSH set ProxyCommand",
        ),
        ({"host": "login", "jump_host": "bastion"}, "unknown extra field jump_host: for SSH set ProxyCommand"),
        ({"ssh_connection_id": "x"}, "did you mean 'ssh_conn_id'?"),
        (
            {"host": "login", "job_link": "https://x/{job}"},
            r"job_link has the unknown placeholder \{job\}: there are \{job_id\}",
        ),
        ({"host": "login", "grafana_link": "grafana.example.com"}, "grafana_link is not a link"),
    ],
)
def test_what_cannot_work_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ConnectionMistake, match=words):
        settings(**said)


def test_links_are_those_that_are_set() -> None:
    found = settings(host="login", job_link="https://x/{job_id}", output_link="", grafana_link=None)
    assert found.links == (("job_link", "https://x/{job_id}"),)


def test_the_test_button_tells_of_a_link_that_cannot_be_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"conn_type": "soperator", "host": "login", "extra": {"job_link": "https://x/{job}"}}
    monkeypatch.setenv("AIRFLOW_CONN_WITH_A_LINK", json.dumps(said))
    works, words = SlurmHook("with_a_link").test_connection()
    assert not works
    assert words.startswith("job_link has the unknown placeholder {job}: there are {job_id}, ")


def test_notes_and_settings_of_the_ssh_provider_may_stand_beside() -> None:
    assert settings(host="login", owner="ml-platform", conn_timeout=5, look_for_keys=False).transport == "ssh"


@pytest.mark.parametrize("changed", [{"password": "other"}, {"key_file": "/other"}, {"port": 2222}, {"login": "other"}])
def test_a_changed_connection_is_another(changed: dict[str, Any]) -> None:
    before = {"host": "login", "password": "secret", "key_file": "/key"}
    assert settings(**before) == settings(**before)
    assert settings(**before) != settings(**before | changed)


def test_no_secret_is_printed() -> None:
    found = settings(host="http://rest", password="hidden-1", jwt_token="hidden-2")
    assert "hidden" not in repr(found)
