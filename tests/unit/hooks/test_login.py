"""Keys are understood however people paste them, by the libraries that must read them."""

from __future__ import annotations

import json
from io import StringIO

import asyncssh
import paramiko
import pytest
from airflow.providers.ssh.hooks.ssh import SSHHook
from airflow.sdk import Connection

from airflow_provider_soperator.hooks.connections import straightened
from airflow_provider_soperator.hooks.slurm import _logged_in
from airflow_provider_soperator.transports.transport_errors import ConnectFailed

KEY = asyncssh.generate_private_key("ssh-ed25519")
HOST_KEY = KEY.export_public_key().decode().strip()


def private_keys() -> dict[str, str]:
    rsa = asyncssh.generate_private_key("ssh-rsa", key_size=2048)
    return {
        "openssh": KEY.export_private_key().decode(),
        "pem": rsa.export_private_key("pkcs1-pem").decode(),
    }


@pytest.mark.parametrize("newline", ["\n", "\r\n", "", " ", "\\n"], ids=["unix", "dos", "form", "words", "escaped"])
@pytest.mark.parametrize("kind", ["openssh", "pem"])
def test_a_private_key_is_read_with_its_lines_or_without(kind: str, newline: str) -> None:
    key = private_keys()[kind]
    said = straightened({"private_key": newline.join(key.splitlines())})["private_key"]
    expected = asyncssh.import_private_key(key).export_public_key()
    assert asyncssh.import_private_key(said).export_public_key() == expected
    read = {"openssh": paramiko.Ed25519Key, "pem": paramiko.RSAKey}[kind].from_private_key(StringIO(said))
    assert read.get_base64() == expected.split()[1].decode()


def test_what_is_no_key_is_left_for_the_library_to_refuse() -> None:
    assert straightened({"private_key": "no key"}) == {"private_key": "no key"}


@pytest.mark.parametrize(
    "said",
    [
        HOST_KEY,
        f"{HOST_KEY} root@login",
        f"login.example.com {HOST_KEY}",
        f"[127.0.0.1]:2222,login {HOST_KEY}\n",
        f" {HOST_KEY} ",
        f"ssh-gate.example.com {HOST_KEY}",
    ],
    ids=["key", "comment", "ssh-keyscan", "known_hosts", "spaces", "host-like-a-type"],
)
def test_a_host_key_is_read_from_any_line_that_has_one(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = straightened({"host_key": said})
    assert extra == {"host_key": " ".join(HOST_KEY.split()[:2])}
    monkeypatch.setenv("AIRFLOW_CONN_LOGIN", json.dumps({"conn_type": "ssh", "host": "login", "extra": extra}))
    key = SSHHook(ssh_conn_id="login").host_key
    assert key is not None
    assert key.get_base64() == HOST_KEY.split()[1]


@pytest.mark.parametrize("comment", ["", "+root@login"])
@pytest.mark.parametrize("data", ["+" * 42, "a+" * 21, "++a" * 14, "a" * 42])
def test_a_host_key_keeps_each_plus_that_a_uri_has(data: str, comment: str) -> None:
    key = f"AAAAC3NzaC1lZDI1NTE5AAAAIA{data}"
    said = Connection.from_uri(f"soperator://login/?host_key=ssh-ed25519+{key}{comment}", conn_id="mine").extra_dejson
    assert straightened(said) == {"host_key": f"ssh-ed25519 {key}"}


@pytest.mark.parametrize("left", [0, 1, 20, 27, 28, 44, 67])
def test_a_host_key_of_which_a_part_is_missing_is_refused(left: int) -> None:
    kind, key = HOST_KEY.split()[:2]
    connection = Connection(conn_id="mine", conn_type="ssh", host="127.0.0.1", port=9, login="me")
    words = r"host_key is not a public key \(missing key data\) at 127.0.0.1:9 \(connection mine\): put a line"
    with pytest.raises(ConnectFailed, match=words):
        _logged_in("mine", connection, {"host_key": f"{kind} {key[:left]}"})


def test_a_blank_is_left_out_and_a_no_is_not() -> None:
    blank = {"host_key": "", "private_key": None, "conn_timeout": ""}
    assert straightened({**blank, "compress": False, "look_for_keys": "false"}) == {
        "compress": False,
        "look_for_keys": "false",
    }
