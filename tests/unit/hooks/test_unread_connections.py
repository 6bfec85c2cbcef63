"""A connection that cannot be read is told from one that is not there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.models import Connection
from airflow.sdk.execution_time import supervisor
from airflow.secrets.environment_variables import EnvironmentVariablesBackend
from airflow.secrets.metastore import MetastoreBackend
from cryptography.fernet import InvalidToken

from airflow_provider_soperator.hooks.connections import read_connection
from airflow_provider_soperator.transports.transport_errors import ConnectFailed


def database(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Airflow's database, which a command reads itself."""

    def get_connection(self: Any, conn_id: str, **more: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(MetastoreBackend, "get_connection", get_connection)
    backends = [EnvironmentVariablesBackend(), MetastoreBackend()]
    monkeypatch.setattr(supervisor, "ensure_secrets_backend_loaded", lambda: backends)


def undecipherable(field: str) -> Connection:
    made = Connection(conn_id="mine", conn_type="soperator", host="login")
    setattr(made, f"_{field}", "encrypted by another key")
    made.is_encrypted = made.is_extra_encrypted = True
    return made


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "there is no connection mine: add it"),
        (OSError("refused\nat 5432"), r"the connection mine cannot be read \(OSError: refused\):"),
        # Airflow decrypts a password at once, and an extra when it is asked for.
        (InvalidToken(), r"the connection mine cannot be read \(InvalidToken\): .* whether \[core\] fernet_key is"),
        (undecipherable("extra"), r"the connection mine cannot be read \((InvalidToken|ValueError: Can't decrypt)"),
    ],
    ids=["none", "away", "password", "extra"],
)
def test_why_a_connection_is_not_known(answer: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database(monkeypatch, answer)
    with pytest.raises(ConnectFailed, match=said):
        asyncio.run(read_connection("mine"))
