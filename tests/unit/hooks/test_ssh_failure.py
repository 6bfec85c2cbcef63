"""An SSH connection says nothing in a task's log, and if it fails, names its host and its Airflow connection."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import asyncssh
import pytest
from airflow.sdk import Connection

from airflow_provider_soperator.hooks import slurm
from airflow_provider_soperator.transports.transport_errors import ConnectFailed, Unreachable
from tests.unit.transports.test_ssh import KEY, Sshd


def test_host_port_and_connection_are_named() -> None:
    connection = Connection(conn_id="mine", conn_type="soperator", host="127.0.0.1", port=9, login="root")
    with pytest.raises(Unreachable, match=r"^nothing listens there .* at 127.0.0.1:9 \(connection mine\): check host"):
        slurm._logged_in("mine", connection, {})


def test_one_without_a_host_names_the_connection() -> None:
    with pytest.raises(ConnectFailed, match=r"^the connection has no host \(connection mine\): set it"):
        slurm._logged_in("mine", Connection(conn_id="mine", conn_type="ssh"), {})


def test_one_that_is_made_is_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def connect() -> None:
        listening = await asyncssh.listen("127.0.0.1", 0, server_factory=lambda: Sshd(1), server_host_keys=[KEY])
        connection = Connection(
            conn_id="mine", conn_type="ssh", host="127.0.0.1", port=listening.get_port(), login="me", password="secret"
        )
        client = await asyncio.to_thread(slurm._logged_in, "mine", connection, {"no_host_key_check": "true"})
        await asyncio.to_thread(client.close)
        listening.close()

    asyncio.run(connect())
    assert not [record for record in caplog.records if record.name.startswith("paramiko")]


def test_a_key_file_with_a_passphrase_is_opened_by_the_password(tmp_path: Path) -> None:
    key, file = asyncssh.generate_private_key("ssh-ed25519"), str(tmp_path / "key")
    key.write_private_key(file, passphrase="secret", rounds=1)
    key.write_public_key(f"{file}.pub")

    async def connect(password: str | None) -> None:
        listening = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[KEY], authorized_client_keys=f"{file}.pub", password_auth=False
        )
        connection = Connection(
            conn_id="mine", conn_type="ssh", host="127.0.0.1", port=listening.get_port(), login="me", password=password
        )
        extra = {"no_host_key_check": "true", "key_file": file, "look_for_keys": "false"}
        try:
            (await asyncio.to_thread(slurm._logged_in, "mine", connection, extra)).close()
        finally:
            listening.close()

    asyncio.run(connect("secret"))
    with pytest.raises(ConnectFailed, match=r"the private key cannot be used \(.*encrypted"):
        asyncio.run(connect(None))


def test_the_test_of_a_connection_names_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WSVD4GVA", "soperator://airflow@127.0.0.1:9/?no_host_key_check=true")
    works, said = slurm.SlurmHook("Wsvd4gVa").test_connection()
    assert not works
    assert said.endswith("at 127.0.0.1:9. Check host and port, and whether the login node is up.")
